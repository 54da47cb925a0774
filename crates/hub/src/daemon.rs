//! The hub process: builds a hub from its settings, runs it with its HTTP endpoints, and drains it on termination.

use crate::balance::ConnectionBalancer;
use crate::certificates::{CertificateKeeper, CertificateState};
use crate::server::HubServer;
use crate::settings::{HubListenAddress, HubSettings};
use crate::tls::ServerTls;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus_client::metrics::counter::Counter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tortie_model::KeyRange;
use tortie_store::config::KubernetesTarget;
use tortie_store::printable::escape_controls;
use tortie_store::{StoreClient, StoreConfig};

#[derive(Debug, thiserror::Error)]
pub enum HubRunError {
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error(transparent)]
    Tls(#[from] tortie_tls::TlsError),
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error("cannot listen on {}:{}: {source}", address.host, address.port)]
    Listen { address: HubListenAddress, source: io::Error },
    #[error(
        "ConnectionRebalancingMode is kubernetes, but no Kubernetes is configured: set KUBECONFIG, or run the hub in a pod"
    )]
    NoKubernetes,
    #[error(
        "CertificateSecret is a Secret of Kubernetes, but no Kubernetes is configured: set KUBECONFIG, or run the hub in a pod"
    )]
    NoKubernetesForSecret,
    #[error("the datastore feed ended; restart the hub (nodes keep their current state)")]
    Feed,
}

/// Runs until SIGTERM or SIGINT, then asks the clients to leave. `ranges` are the key ranges that nodes need.
pub async fn run(
    config: StoreConfig,
    settings: HubSettings,
    mut ranges: Vec<KeyRange>,
) -> Result<(), HubRunError> {
    let signalled = tortie_http::shutdown_signal().map_err(HubRunError::Signals)?;
    raise_descriptor_limit();
    let config = settings.datastore.apply(config);
    let balance = match &settings.balance {
        Some(balance) => Some((balance, config.orchestrator().ok_or(HubRunError::NoKubernetes)?)),
        None => None,
    };
    if config.capabilities()?.includes_kubernetes {
        ranges.extend([KeyRange::EndpointSlices, KeyRange::Services]);
    }
    let hub = HubServer::new(&ranges, settings.options.clone());
    let listener = listen(&settings.server).await?;
    let address = listener
        .local_addr()
        .map_err(|source| HubRunError::Listen { address: settings.server.clone(), source })?;
    let HubTlsSetup { tls, keeper, certificate } = set_up_tls(&settings, &config)?;
    if tls.is_none() {
        tracing::warn!(
            "client connections are neither encrypted nor authenticated; set CertificateSecret, or ServerKeyFile, ServerCertFile, CAFile and \
             ClientCN, unless the network is trusted"
        );
    }
    let wait_cause = Arc::new(Mutex::new(None));
    let announced_certificate = certificate.clone();
    let readiness = HubReadiness { hub: hub.clone(), wait_cause: wait_cause.clone(), certificate };
    let observers = serve_observers(&hub, &settings, readiness).await?;
    let work = async {
        tokio::select! {
            outcome = follow_store(&hub, &config, ranges, &wait_cause) => outcome,
            () = hub.serve(listener, tls) => Ok(()),
            () = observers => Ok(()),
            () = announce_readiness(&hub, address, announced_certificate) => Ok(()),
            () = keep_balance(&hub, balance) => Ok(()),
            () = keep_certificates(keeper) => Ok(()),
        }
    };
    let end = async {
        signalled.await;
        hub.drain(settings.shutdown, settings.shutdown_interval).await;
    };
    tokio::select! {
        outcome = work => outcome,
        () = end => {
            tracing::info!("stopping; nodes keep their current state");
            Ok(())
        }
    }
}

/// TLS configuration of the server, and the keeper that issues its certificates if the hub uses its own.
struct HubTlsSetup {
    tls: Option<ServerTls>,
    keeper: Option<CertificateKeeper>,
    certificate: Option<CertificateState>,
}

fn set_up_tls(settings: &HubSettings, config: &StoreConfig) -> Result<HubTlsSetup, HubRunError> {
    let Some(secret) = settings.certificates.clone() else {
        let tls = settings.tls.clone().map(ServerTls::new).transpose()?;
        return Ok(HubTlsSetup { tls, keeper: None, certificate: None });
    };
    let kubernetes = config.orchestrator().ok_or(HubRunError::NoKubernetesForSecret)?;
    let (keeper, certificate) = CertificateKeeper::new(secret, kubernetes);
    let tls = ServerTls::with_issued_certificate(certificate.serving.clone());
    Ok(HubTlsSetup { tls: Some(tls), keeper: Some(keeper), certificate: Some(certificate) })
}

async fn keep_certificates(keeper: Option<CertificateKeeper>) {
    match keeper {
        Some(keeper) => keeper.run().await,
        None => std::future::pending().await,
    }
}

/// Error that keeps the hub from reading the datastore; `None` once it is connected.
type WaitCause = Arc<Mutex<Option<String>>>;

/// Connects to the datastore, retrying without limit, and feeds its events to the hub.
async fn follow_store(
    hub: &HubServer,
    config: &StoreConfig,
    ranges: Vec<KeyRange>,
    wait_cause: &WaitCause,
) -> Result<(), HubRunError> {
    let client = StoreClient::connect_waiting(config, |error| {
        tracing::warn!(%error, "waiting for the datastore; nodes keep their current state; trying again");
        *wait_cause.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    })
    .await?;
    *wait_cause.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let watches = hub.liveness().part("datastore-watch");
    let feed = tortie_sync::follow_with_progress(&client, ranges, move || watches.beat());
    hub.follow(feed).await;
    Err(HubRunError::Feed)
}

async fn keep_balance(hub: &HubServer, balance: Option<(&ConnectionBalancer, KubernetesTarget)>) {
    match balance {
        Some((balance, kubernetes)) => balance.balance(hub, &kubernetes).await,
        None => std::future::pending().await,
    }
}

/// Reports once that clients can be served: the datastore is read and, if the hub issues its own certificate, that
/// one exists.
async fn announce_readiness(
    hub: &HubServer,
    address: std::net::SocketAddr,
    certificate: Option<CertificateState>,
) {
    tracing::info!(%address, "reading the datastore");
    hub.in_sync().await;
    if let Some(certificate) = certificate {
        certificate.wait_until_issued().await;
    }
    // The hub also serves clients when standard output is closed.
    let _ = writeln!(io::stdout(), "ready: hub on {address}");
    tracing::info!(%address, "ready");
    std::future::pending().await
}

async fn listen(address: &HubListenAddress) -> Result<TcpListener, HubRunError> {
    let listener = tortie_http::listen(&address.host, address.port).await;
    listener.map_err(|source| HubRunError::Listen { address: address.clone(), source })
}

/// Serves the health and metrics endpoints.
async fn serve_observers(
    hub: &HubServer,
    settings: &HubSettings,
    readiness: HubReadiness,
) -> Result<impl Future<Output = ()> + use<>, HubRunError> {
    let health = {
        let live = hub.clone();
        // The liveness page takes no lock that a stuck component may hold.
        Router::new()
            .route("/liveness", get(move || async move { live.liveness().page() }))
            .route("/readiness", get(move || async move { readiness.page() }))
    };
    let metrics = {
        let hub = hub.clone();
        let head = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];
        Router::new().route("/metrics", get(move || async move { (head, hub.metrics().text()) }))
    };
    let mut listeners = Vec::new();
    for (address, router) in [(&settings.health, health), (&settings.metrics, metrics)] {
        if let Some(address) = address {
            listeners.push((listen(address).await?, router));
        }
    }
    Ok(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for (listener, router) in listeners {
            tasks.spawn(tortie_http::serve(listener, router, None, Counter::default()));
        }
        // None of these tasks ends.
        while tasks.join_next().await.is_some() {}
        std::future::pending().await
    })
}

/// Inputs of the readiness probe.
#[derive(Clone)]
struct HubReadiness {
    hub: HubServer,
    wait_cause: WaitCause,
    certificate: Option<CertificateState>,
}

impl HubReadiness {
    /// Renders the readiness page. A hub that cannot accept clients reports not ready, so nodes use another.
    fn page(&self) -> (StatusCode, String) {
        let unready_reason = self.certificate.as_ref().and_then(CertificateState::unready_reason);
        let is_ready = self.hub.is_in_sync() && unready_reason.is_none();
        let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut text = describe_health(&self.hub, &self.wait_cause);
        if let Some(unready_reason) = unready_reason {
            text += &format!("certificate: not available yet: {}\n", escape_controls(&unready_reason));
        }
        (code, text)
    }
}

fn describe_health(hub: &HubServer, wait_cause: &WaitCause) -> String {
    let waits = wait_cause.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let cache = match (hub.is_in_sync(), waits.or_else(|| hub.trouble())) {
        (false, None) => "the datastore is not read completely yet".to_owned(),
        (false, Some(trouble)) => {
            format!("the datastore is not read completely yet: {}", escape_controls(&trouble))
        }
        (true, None) => "in sync".to_owned(),
        // Clients are still served from the cached entries.
        (true, Some(trouble)) => format!("the datastore is unreachable: {}", escape_controls(&trouble)),
    };
    format!("felix-cache: {cache}\nSyncServer: {} clients\n", hub.clients())
}

/// Raises the open-file limit to the hard limit: every client needs a file descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::CertificateSecret;
    use crate::server::HubServerOptions;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    #[tokio::test]
    async fn a_hub_without_a_certificate_is_unready() {
        let hub = HubServer::new(&[], HubServerOptions::default());
        let (sender, feed) = tokio::sync::mpsc::channel(1);
        sender.send(tortie_sync::FeedMessage::Event(tortie_model::FeedEvent::InSync)).await.unwrap();
        let following = hub.clone();
        let following = tokio::spawn(async move { following.follow(feed).await });
        hub.in_sync().await;
        let mut readiness = HubReadiness { hub, wait_cause: WaitCause::default(), certificate: None };
        assert_eq!(readiness.page().0, StatusCode::OK);
        // The listener is dropped right away, so connections to this address are refused.
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let config = StoreConfig {
            datastore_type: "kubernetes".to_owned(),
            k8s_api_endpoint: format!("http://{address}"),
            ..StoreConfig::default()
        };
        let secret = CertificateSecret { namespace: "kube-system".to_owned(), name: "hub".to_owned() };
        let (keeper, certificate) = CertificateKeeper::new(secret, config.orchestrator().unwrap());
        readiness.certificate = Some(certificate);
        let (code, text) = readiness.page();
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("certificate: not available yet: it is being issued"), "{text}");
        let keeping = tokio::spawn(keeper.run());
        let look = async {
            while readiness.page().1.contains("it is being issued") {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), look).await.expect("readiness reports the error of the last check");
        assert_eq!(readiness.page().0, StatusCode::SERVICE_UNAVAILABLE);
        keeping.abort();
        following.abort();
    }
}
