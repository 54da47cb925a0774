//! HTTP endpoints for health probes and metrics.

use crate::state::ControllerState;
use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus_client::metrics::counter::Counter;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Delay before the next attempt after a failure to listen.
const LISTEN_RETRY_DELAY: Duration = Duration::from_secs(2);

pub fn build_health_router(state: Arc<ControllerState>) -> Router {
    Router::new()
        .route("/liveness", get(answer_liveness))
        .route("/readiness", get(answer_readiness))
        .with_state(state)
}

pub fn build_metrics_router(state: Arc<ControllerState>) -> Router {
    Router::new().route("/metrics", get(answer_metrics)).with_state(state)
}

async fn answer_liveness(Shared(state): Shared<Arc<ControllerState>>) -> (StatusCode, String) {
    state.liveness.page()
}

async fn answer_readiness(Shared(state): Shared<Arc<ControllerState>>) -> (StatusCode, String) {
    match state.problems() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reasons) => (StatusCode::SERVICE_UNAVAILABLE, reasons + "\n"),
    }
}

async fn answer_metrics(
    Shared(state): Shared<Arc<ControllerState>>,
) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], state.metrics())
}

/// Serves HTTP on a port that may change. Port 0 disables the server.
pub async fn serve_on_port(mut port: watch::Receiver<u16>, server: &'static str, router: Router) {
    loop {
        let current = *port.borrow_and_update();
        let serving = async {
            if current == 0 {
                return std::future::pending().await;
            }
            let mut error_logged = false;
            loop {
                match tortie_http::listen("", current).await {
                    Ok(listener) => {
                        error_logged = false;
                        tortie_http::serve(listener, router.clone(), None, Counter::default()).await;
                    }
                    // Another replica on this host may use the port as long as it runs, so log the error only once.
                    Err(error) if !std::mem::replace(&mut error_logged, true) => {
                        tracing::warn!(%error, server, port = current, "cannot listen for HTTP; retrying");
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(LISTEN_RETRY_DELAY).await;
            }
        };
        let changed = port.wait_for(|port| *port != current);
        let is_sender_dropped = tokio::select! {
            () = serving => false,
            changed = changed => changed.is_err(),
        };
        if is_sender_dropped {
            return;
        }
    }
}
