//! HTTP servers for health, metrics and debug pages, at the addresses and ports in the settings.

mod debug;
mod denials;
mod tls;

pub use denials::DenialMetrics;
#[cfg(test)]
pub use denials::render_counters;

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
    serve_at(state, "health", router, |p| {
        listen_address(p.health_enabled, &p.health_host, p.health_port, None)
    })
    .await;
}

/// Serves `/metrics`.
pub async fn serve_metrics(state: Arc<NodeState>) {
    let router = Router::new().route("/metrics", get(metrics)).with_state(state.clone());
    serve_at(state, "metrics", router, |p| {
        let tls = tls::read_tls_files(p);
        listen_address(
            p.prometheus_metrics_enabled,
            &p.prometheus_metrics_host,
            p.prometheus_metrics_port,
            tls,
        )
    })
    .await;
}

/// Serves `/debug`, which describes the process. `runtime` is the one that runs the tasks of the node.
pub async fn serve_debug(state: Arc<NodeState>, runtime: Handle) {
    let router = debug::build_debug_router(runtime, state.clone());
    serve_at(state, "debug", router, |p| {
        p.debug_port.and_then(|port| listen_address(true, &p.debug_host, port, None))
    })
    .await;
}

/// Serves a router at the configured address, and opens a new listener when the address changes.
async fn serve_at(
    state: Arc<NodeState>,
    listener: &'static str,
    router: Router,
    select_address: impl Fn(&NodeParameters) -> Option<HttpListenAddress>,
) {
    let mut parameters = state.parameters();
    loop {
        let wanted = select_address(&parameters.borrow_and_update());
        let serving = async {
            let Some(address) = &wanted else { return std::future::pending().await };
            loop {
                match tortie_http::listen(&address.host, address.port).await {
                    Ok(socket) => {
                        let closed = state
                            .metrics
                            .closed_connections
                            .get_or_create(&[("listener", listener.into())])
                            .clone();
                        tortie_http::serve(socket, router.clone(), address.tls.clone(), closed).await;
                    }
                    Err(error) => {
                        let address = format!("{}:{}", address.host, address.port);
                        tracing::warn!(%error, listener, address, "cannot listen for HTTP; retrying");
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
                if select_address(&parameters.borrow_and_update()) != wanted {
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

/// Returns the address of a listener; `None` if it is disabled.
fn listen_address(
    enabled: bool,
    host: &str,
    port: u16,
    tls: Option<ListenerTlsFiles>,
) -> Option<HttpListenAddress> {
    enabled.then(|| HttpListenAddress { host: host.to_owned(), port, tls })
}

async fn liveness(Shared(state): Shared<Arc<NodeState>>) -> (StatusCode, String) {
    render_health(&state, HealthLevel::NotLive).await
}

async fn readiness(Shared(state): Shared<Arc<NodeState>>) -> (StatusCode, String) {
    render_health(&state, HealthLevel::NotReady).await
}

/// Renders the health of every component, with an error status if one is at the level `bad` or worse.
async fn render_health(state: &NodeState, bad: HealthLevel) -> (StatusCode, String) {
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
        text += &tortie_http::process::render_metrics();
    }
    if parameters.prometheus_wireguard_metrics_enabled {
        text += &wireguard::render_devices(&state.host, &parameters, METRICS_SOURCE_TIMEOUT).await;
    }
    if let Some(status) = sessions {
        text += &bgp::render_metrics(&status);
    }
    text += &state.denials.render(METRICS_SOURCE_TIMEOUT).await;
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], text)
}
