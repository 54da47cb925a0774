//! Health and metrics over HTTP: never more connections than there is room for, and none for longer than an answer takes.

use crate::state::State;
use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

const AT_MOST: usize = 32;
const LIFETIME: Duration = Duration::from_secs(10);
/// After a failure to listen or to accept.
const RETRY: Duration = Duration::from_secs(2);

pub fn health(state: Arc<State>) -> Router {
    Router::new()
        .route("/liveness", get(|| async { "alive\n" }))
        .route("/readiness", get(readiness))
        .with_state(state)
}

pub fn metrics(state: Arc<State>) -> Router {
    Router::new().route("/metrics", get(page)).with_state(state)
}

async fn readiness(Shared(state): Shared<Arc<State>>) -> (StatusCode, String) {
    match state.trouble() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reasons) => (StatusCode::SERVICE_UNAVAILABLE, reasons + "\n"),
    }
}

async fn page(Shared(state): Shared<Arc<State>>) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], state.metrics())
}

/// Serves on a port for as long as it stays the one that is wanted; 0 is none.
pub async fn follow(mut port: watch::Receiver<u16>, what: &'static str, router: Router) {
    loop {
        let wanted = *port.borrow_and_update();
        let serving = async {
            if wanted == 0 {
                return std::future::pending().await;
            }
            let mut said = false;
            loop {
                match TcpListener::bind((Ipv6Addr::UNSPECIFIED, wanted)).await {
                    Ok(listener) => {
                        said = false;
                        serve(listener, router.clone()).await;
                    }
                    // Another replica on this host may have it for as long as it lives.
                    Err(error) if !std::mem::replace(&mut said, true) => {
                        tracing::warn!(%error, what, wanted, "cannot listen for HTTP; trying again");
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(RETRY).await;
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

async fn serve(listener: TcpListener, router: Router) {
    let room = Arc::new(Semaphore::new(AT_MOST));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).keep_alive(false);
            let connection = http.serve_connection(TokioIo::new(stream), service);
            // Whoever asked went away, or took too long.
            let _ = tokio::time::timeout(LIFETIME, connection).await;
            drop(place);
        });
    }
}
