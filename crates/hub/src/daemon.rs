//! From settings to a hub that serves, and to its orderly end.

use crate::balance::Balance;
use crate::server::Hub;
use crate::settings::{Place, Settings};
use crate::tls::ServerTls;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus_client::metrics::counter::Counter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tortie_model::KeyRange;
use tortie_store::config::KubernetesTarget;
use tortie_store::{Client, Config};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Store(#[from] tortie_store::Error),
    #[error(transparent)]
    Tls(#[from] tortie_tls::TlsError),
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("ConnectionRebalancingMode is kubernetes, and no Kubernetes is configured")]
    NoKubernetes,
    #[error("the feed of the datastore has ended; start the hub again, nodes keep what they have meanwhile")]
    Feed,
}

/// Runs until SIGTERM or SIGINT; then the clients are asked to leave. `ranges` is what nodes need.
pub async fn run(config: Config, settings: Settings, mut ranges: Vec<KeyRange>) -> Result<(), RunError> {
    let signals = |error| RunError::Io { what: "signals".to_owned(), error };
    let mut terminate = signal(SignalKind::terminate()).map_err(signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(signals)?;
    raise_descriptor_limit();
    let config = settings.datastore.apply(config);
    let client = Client::connect(&config).await?;
    let balance = match &settings.balance {
        Some(balance) => Some((balance, config.orchestrator().ok_or(RunError::NoKubernetes)?)),
        None => None,
    };
    if client.is_kubernetes() {
        ranges.extend([KeyRange::EndpointSlices, KeyRange::Services]);
    }
    let hub = Hub::new(&ranges, settings.options.clone());
    let listener = listen(&settings.server).await?;
    let address = listener.local_addr().map_err(|error| failed(&settings.server, error))?;
    let tls = settings.tls.clone().map(ServerTls::new).transpose()?;
    if tls.is_none() {
        tracing::warn!(
            "clients are neither encrypted nor checked; set ServerKeyFile, ServerCertFile, CAFile and ClientCN unless the \
             network is trusted"
        );
    }
    let observers = observe(&hub, &settings).await?;
    let watches = hub.liveness().part("datastore-watch");
    let feed = tortie_sync::follow_with_progress(&client, ranges, move || watches.beat());
    let work = async {
        tokio::select! {
            () = hub.follow(feed) => Err(RunError::Feed),
            () = hub.serve(listener, tls) => Ok(()),
            () = observers => Ok(()),
            () = announce(&hub, address) => Ok(()),
            () = keep_balance(&hub, balance) => Ok(()),
        }
    };
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        hub.drain(settings.shutdown, settings.shutdown_pause).await;
    };
    tokio::select! {
        outcome = work => outcome,
        () = end => {
            tracing::info!("stopping; nodes keep what they have");
            Ok(())
        }
    }
}

async fn keep_balance(hub: &Hub, balance: Option<(&Balance, KubernetesTarget)>) {
    match balance {
        Some((balance, kubernetes)) => balance.keep(hub, &kubernetes).await,
        None => std::future::pending().await,
    }
}

async fn announce(hub: &Hub, address: std::net::SocketAddr) {
    tracing::info!(%address, "reading the datastore");
    hub.in_sync().await;
    println!("ready: hub on {address}");
    tracing::info!(%address, "ready");
    std::future::pending().await
}

fn failed(place: &Place, error: io::Error) -> RunError {
    RunError::Io { what: format!("cannot listen on {}:{}", place.host, place.port), error }
}

async fn listen(place: &Place) -> Result<TcpListener, RunError> {
    tortie_http::listen(&place.host, place.port).await.map_err(|error| failed(place, error))
}

/// Answers probes and scrapers.
async fn observe(hub: &Hub, settings: &Settings) -> Result<impl Future<Output = ()> + use<>, RunError> {
    let health = {
        let (live, ready) = (hub.clone(), hub.clone());
        // Asks nothing that a part which is stuck may hold.
        Router::new().route("/liveness", get(move || async move { live.liveness().page() })).route(
            "/readiness",
            get(move || async move {
                let code = match ready.is_in_sync() {
                    true => StatusCode::OK,
                    false => StatusCode::SERVICE_UNAVAILABLE,
                };
                (code, health(&ready))
            }),
        )
    };
    let metrics = {
        let hub = hub.clone();
        let head = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];
        Router::new().route("/metrics", get(move || async move { (head, hub.metrics().text()) }))
    };
    let mut listeners = Vec::new();
    for (place, router) in [(&settings.health, health), (&settings.metrics, metrics)] {
        if let Some(place) = place {
            listeners.push((listen(place).await?, router));
        }
    }
    Ok(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for (listener, router) in listeners {
            tasks.spawn(tortie_http::serve(listener, router, None, Counter::default()));
        }
        // None of them ends.
        while tasks.join_next().await.is_some() {}
        std::future::pending().await
    })
}

fn health(hub: &Hub) -> String {
    let cache = match (hub.is_in_sync(), hub.trouble()) {
        (false, None) => "the datastore is not read completely yet".to_owned(),
        (false, Some(trouble)) => format!("the datastore is not read completely yet: {trouble}"),
        (true, None) => "in sync".to_owned(),
        // Clients are served with what there is.
        (true, Some(trouble)) => format!("the datastore is out of reach: {trouble}"),
    };
    format!("felix-cache: {cache}\nSyncServer: {} clients\n", hub.clients())
}

/// A client is a descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
