//! Health and metrics over HTTP, each where the settings say, as long as they say so.

use crate::bgp;
use crate::state::State;
use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use std::time::Duration;
use tortie_compute::Parameters;

/// After a failure to listen.
const RETRY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    host: String,
    port: u16,
}

/// Serves `/liveness` and `/readiness`.
pub async fn serve_health(state: Arc<State>) {
    let router = Router::new()
        .route("/liveness", get(liveness))
        .route("/readiness", get(readiness))
        .with_state(state.clone());
    follow(state, "health", router, |p| place(p.health_enabled, &p.health_host, p.health_port)).await;
}

/// Serves `/metrics`.
pub async fn serve_metrics(state: Arc<State>) {
    let router = Router::new().route("/metrics", get(metrics)).with_state(state.clone());
    follow(state, "metrics", router, |p| {
        place(p.prometheus_metrics_enabled, &p.prometheus_metrics_host, p.prometheus_metrics_port)
    })
    .await;
}

/// Listens where the settings say, and moves when they change.
async fn follow(
    state: Arc<State>,
    what: &'static str,
    router: Router,
    place: impl Fn(&Parameters) -> Option<Place>,
) {
    let mut parameters = state.parameters();
    loop {
        let wanted = place(&parameters.borrow_and_update());
        let serving = async {
            let Some(place) = &wanted else { return std::future::pending().await };
            loop {
                let outcome = match tokio::net::TcpListener::bind((place.host.as_str(), place.port)).await {
                    Ok(listener) => axum::serve(listener, router.clone()).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = outcome {
                    tracing::warn!(%error, what, ?place, "cannot serve; will be tried again");
                }
                tokio::time::sleep(RETRY).await;
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

fn place(enabled: bool, host: &str, port: u16) -> Option<Place> {
    let host = if host.is_empty() { "::" } else { host };
    enabled.then(|| Place { host: host.to_owned(), port })
}

async fn liveness(Shared(state): Shared<Arc<State>>) -> (StatusCode, String) {
    (StatusCode::OK, report(&state))
}

/// Not ready: nothing was heard of the store yet, the kernel does not take the plan, or BGP has no sessions. A store
/// that went away later does not make the node unready: it goes on with what it has.
async fn readiness(Shared(state): Shared<Arc<State>>) -> (StatusCode, String) {
    let broken = state.troubles().contains_key("dataplane");
    let bgp = bgp_readiness(&state).await;
    let ready = state.is_in_sync() && !broken && bgp.is_ok();
    let sessions = bgp.err().map(|missing| missing + "\n").unwrap_or_default();
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, report(&state) + &sessions)
}

/// A node that is not to speak BGP has nothing to wait for.
async fn bgp_readiness(state: &State) -> Result<(), String> {
    let mut troubles = state.troubles();
    if let Some(trouble) = troubles.remove(bgp::BIRD) {
        return Err(trouble);
    }
    match state.running_bgp() {
        Some(running) => bgp::ready(&running.backend.status().await?, None, bgp::PATIENCE),
        None => troubles.remove("bgp").map_or(Ok(()), Err),
    }
}

async fn metrics(Shared(state): Shared<Arc<State>>) -> ([(&'static str, &'static str); 1], String) {
    let sessions = match state.running_bgp() {
        Some(running) => running.backend.status().await.ok(),
        None => None,
    };
    let text = state.metrics.text() + &sessions.map(|status| bgp::metrics(&status)).unwrap_or_default();
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// Which part is late, in words.
fn report(state: &State) -> String {
    let mut lines = vec![format!("in sync: {}", if state.is_in_sync() { "yes" } else { "no" })];
    lines.extend(state.troubles().iter().map(|(part, trouble)| format!("{part}: {trouble}")));
    lines.extend(state.warnings().iter().map(|(part, warning)| format!("{part}: {warning}")));
    lines.extend(state.problems().iter().map(|(object, reason)| format!("{object} has no effect: {reason}")));
    let refused = state.refused();
    let closed = |(object, reason)| format!("{object} is closed, the kernel refuses it: {reason}");
    lines.extend(refused.iter().map(closed));
    lines.join("\n") + "\n"
}
