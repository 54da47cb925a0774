//! HTTP servers for health, metrics and debug pages, at the addresses and ports in the settings.

mod debug;
mod denials;
mod tls;

pub use denials::DenialMetrics;
#[cfg(test)]
pub use denials::page as denials_page;

use crate::bgp;
use crate::health::{HealthLevel, NodeHealth};
use crate::metrics::wireguard;
use crate::state::NodeState;
use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tortie_compute::NodeParameters;
use tortie_http::ListenerTlsFiles;

/// Timeout for the BGP speaker and other sources of metrics, so that one that does not respond does not block the
/// rest.
const METRICS_SOURCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after a failure to listen.
const LISTEN_RETRY_DELAY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
struct HttpListenAddress {
    host: String,
    port: u16,
    tls: Option<ListenerTlsFiles>,
}

/// Serves `/liveness` and `/readiness`.
pub async fn serve_health(state: Arc<NodeState>) {
    let router = Router::new()
        .route("/liveness", get(liveness))
        .route("/readiness", get(readiness))
        .with_state(state.clone());
    follow(state, "health", router, |p| place(p.health_enabled, &p.health_host, p.health_port, None)).await;
}

/// Serves `/metrics`.
pub async fn serve_metrics(state: Arc<NodeState>) {
    let router = Router::new().route("/metrics", get(metrics)).with_state(state.clone());
    follow(state, "metrics", router, |p| {
        let tls = tls::files_of_metrics(p);
        place(p.prometheus_metrics_enabled, &p.prometheus_metrics_host, p.prometheus_metrics_port, tls)
    })
    .await;
}

/// Serves `/debug`, which describes the process. `of` is the runtime that does the node's work.
pub async fn serve_debug(state: Arc<NodeState>, of: Handle) {
    let router = debug::router(of, state.clone());
    follow(state, "debug", router, |p| p.debug_port.and_then(|port| place(true, &p.debug_host, port, None)))
        .await;
}

/// Listens at the configured address, and moves the listener when the settings change.
async fn follow(
    state: Arc<NodeState>,
    what: &'static str,
    router: Router,
    place: impl Fn(&NodeParameters) -> Option<HttpListenAddress>,
) {
    let mut parameters = state.parameters();
    loop {
        let wanted = place(&parameters.borrow_and_update());
        let serving = async {
            let Some(place) = &wanted else { return std::future::pending().await };
            loop {
                match tortie_http::listen(&place.host, place.port).await {
                    Ok(listener) => {
                        let closed = state
                            .metrics
                            .closed_connections
                            .get_or_create(&[("listener", what.into())])
                            .clone();
                        tortie_http::serve(listener, router.clone(), place.tls.clone(), closed).await;
                    }
                    Err(error) => {
                        let place = format!("{}:{}", place.host, place.port);
                        tracing::warn!(%error, what, place, "cannot listen for HTTP; trying again");
                    }
                }
                tokio::time::sleep(LISTEN_RETRY_DELAY).await;
            }
        };
        let changed = async {
            loop {
                if parameters.changed().await.is_err() {
                    return false;
                }
                if place(&parameters.borrow_and_update()) != wanted {
                    return true;
                }
            }
        };
        tokio::select! {
            () = serving => {}
            more = changed => if !more { return },
        }
        parameters.mark_changed();
    }
}

fn place(enabled: bool, host: &str, port: u16, tls: Option<ListenerTlsFiles>) -> Option<HttpListenAddress> {
    enabled.then(|| HttpListenAddress { host: host.to_owned(), port, tls })
}

async fn liveness(Shared(state): Shared<Arc<NodeState>>) -> (StatusCode, String) {
    page(&state, HealthLevel::NotLive).await
}

async fn readiness(Shared(state): Shared<Arc<NodeState>>) -> (StatusCode, String) {
    page(&state, HealthLevel::NotReady).await
}

/// Renders the health of every component, with an error status if one is at the level `bad` or worse.
async fn page(state: &NodeState, bad: HealthLevel) -> (StatusCode, String) {
    let health = NodeHealth::check(state).await;
    let code = if health.worst() < bad { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, health.text())
}

async fn metrics(Shared(state): Shared<Arc<NodeState>>) -> ([(&'static str, &'static str); 1], String) {
    let mut sessions = None;
    if let Some(running) = state.running_bgp() {
        let status = tokio::time::timeout(METRICS_SOURCE_TIMEOUT, running.backend.status()).await;
        sessions = status.ok().and_then(Result::ok);
    }
    let parameters = state.parameters().borrow().clone();
    let mut text = state.metrics.text();
    if parameters.prometheus_process_metrics_enabled {
        text += &tortie_http::process::text();
    }
    if parameters.prometheus_wireguard_metrics_enabled {
        text += &wireguard::text(&state.host, &parameters, METRICS_SOURCE_TIMEOUT).await;
    }
    if let Some(status) = sessions {
        text += &bgp::render_metrics(&status);
    }
    text += &state.denials.text(METRICS_SOURCE_TIMEOUT).await;
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], text)
}
