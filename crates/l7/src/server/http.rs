//! The HTTP endpoints: metrics, and the termination of the process for containers of a Job.

use crate::metrics::L7Metrics;
use crate::state::PolicyState;
use axum::Router;
use axum::extract::State as Shared;
use axum::routing::get;
use std::sync::Arc;
use tokio::sync::watch;

const TEXT_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `/metrics`.
pub fn route_metrics(metrics: Arc<L7Metrics>, state: Arc<PolicyState>) -> Router {
    Router::new().route("/metrics", get(render_page)).with_state((metrics, state))
}

async fn render_page(
    Shared((metrics, state)): Shared<(Arc<L7Metrics>, Arc<PolicyState>)>,
) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", TEXT_CONTENT_TYPE)], metrics.render(&state))
}

/// Serves `/terminate`, which stops the process.
pub fn route_termination(stop: watch::Sender<bool>) -> Router {
    Router::new().route("/terminate", get(terminate).post(terminate)).with_state(Arc::new(stop))
}

async fn terminate(Shared(stop): Shared<Arc<watch::Sender<bool>>>) -> &'static str {
    tracing::info!("/terminate was requested");
    stop.send_replace(true);
    "terminating\n"
}
