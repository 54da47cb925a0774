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

/// Delay after a failure to listen.
const LISTEN_RETRY_DELAY: Duration = Duration::from_secs(2);

pub fn health(state: Arc<ControllerState>) -> Router {
    Router::new().route("/liveness", get(liveness)).route("/readiness", get(readiness)).with_state(state)
}

pub fn metrics(state: Arc<ControllerState>) -> Router {
    Router::new().route("/metrics", get(page)).with_state(state)
}

async fn liveness(Shared(state): Shared<Arc<ControllerState>>) -> (StatusCode, String) {
    state.liveness.page()
}

async fn readiness(Shared(state): Shared<Arc<ControllerState>>) -> (StatusCode, String) {
    match state.problems() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reasons) => (StatusCode::SERVICE_UNAVAILABLE, reasons + "\n"),
    }
}

async fn page(Shared(state): Shared<Arc<ControllerState>>) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], state.metrics())
}

/// Serves on the current port and moves when it changes; port 0 disables the server.
pub async fn follow(mut port: watch::Receiver<u16>, what: &'static str, router: Router) {
    loop {
        let wanted = *port.borrow_and_update();
        let serving = async {
            if wanted == 0 {
                return std::future::pending().await;
            }
            let mut said = false;
            loop {
                match tortie_http::listen("", wanted).await {
                    Ok(listener) => {
                        said = false;
                        tortie_http::serve(listener, router.clone(), None, Counter::default()).await;
                    }
                    // Another replica on this host may use the port for as long as it runs.
                    Err(error) if !std::mem::replace(&mut said, true) => {
                        tracing::warn!(%error, what, wanted, "cannot listen for HTTP; trying again");
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(LISTEN_RETRY_DELAY).await;
            }
        };
        let changed = port.wait_for(|port| *port != wanted);
        let gone = tokio::select! {
            () = serving => false,
            changed = changed => changed.is_err(),
        };
        if gone {
            return;
        }
    }
}
