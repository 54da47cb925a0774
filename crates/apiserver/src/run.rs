//! The API server process: builds the server from its settings, runs it, and shuts it down gracefully.

use crate::access::AccessControl;
use crate::handler::ApiHandler;
use crate::listen::ListenArgs;
use crate::server::{CertificatePair, CertificateSource, HttpsServer};
use crate::storage::ObjectStorage;
use crate::trust::{
    AUTHENTICATION_CONFIG_MAP, AUTHENTICATION_NAMESPACE, CurrentTrust, OptionalCertificateVerifier,
    ProxyTrust, TrustError,
};
use crate::webhook::keeper::{CertifiedServer, ServingCertificateKeeper};
use crate::webhook::{WebhooksArgs, serve_webhooks};
use clap::Args;
use std::collections::BTreeMap;
use std::io;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{Backoff, StoreClient, StoreConfig, StoreLimits};
use tortie_tls::CertificateLifetimes;

/// Names in the self-signed certificate.
const SELF_SIGNED_NAMES: [&str; 4] =
    ["localhost", "calico-api", "calico-api.calico-apiserver", "calico-api.calico-apiserver.svc"];
/// Namespace of the Secret with the certificates of all replicas.
const CERTIFICATE_NAMESPACE: &str = "calico-apiserver";
/// How long the server waits for the first certificate to be issued and registered.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug)]
pub struct ApiServerArgs {
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 5443)]
    pub secure_port: u16,
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Configuration file with the location of the datastore, as for calicoctl
    #[arg(long, value_name = "FILE", default_value = StoreConfig::DEFAULT_FILE)]
    pub config: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ApiServerRunError {
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error(transparent)]
    Tls(#[from] tortie_tls::TlsError),
    #[error("the server's own certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("signals: {0}")]
    Signals(io::Error),
    #[error("cannot listen on port {port} of {host}: {error}")]
    Listen { host: String, port: u16, error: io::Error },
    #[error(
        "no Kubernetes is configured (KUBECONFIG, kubeconfig): it says who users are and what they may do"
    )]
    NoKubernetes,
    #[error(
        "objects are in projectcalico.org/v3 already: Kubernetes serves them itself, and this server would serve them a second time"
    )]
    ServedAlready,
    #[error(
        "objects are not in projectcalico.org/v3: webhooks are for clusters where they are custom resources of that group (CALICO_API_GROUP), all others have `tortie apiserver`"
    )]
    NotServed,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(config: StoreConfig, args: ApiServerArgs) -> Result<(), ApiServerRunError> {
    let end = tortie_http::shutdown_signal().map_err(ApiServerRunError::Signals)?;
    serve(config, args, end).await
}

/// Runs the webhooks until SIGTERM or SIGINT.
pub async fn run_webhooks(config: StoreConfig, args: WebhooksArgs) -> Result<(), ApiServerRunError> {
    let end = tortie_http::shutdown_signal().map_err(ApiServerRunError::Signals)?;
    serve_webhooks(config, args, CertificateLifetimes::default(), end).await
}

/// Connects to Kubernetes and to the datastore.
pub async fn connect(config: &StoreConfig) -> Result<(OrchestratorClient, StoreClient), ApiServerRunError> {
    let target = config.orchestrator().ok_or(ApiServerRunError::NoKubernetes)?;
    let orchestrator = OrchestratorClient::connect(&target, StoreLimits::default()).await?;
    let client = StoreClient::connect_waiting(config, |error| {
        tracing::warn!(%error, "waiting for the datastore; trying again");
    });
    Ok((orchestrator, client.await?))
}

/// Runs until `end`, then closes watches and finishes open requests.
pub async fn serve(
    config: StoreConfig,
    args: ApiServerArgs,
    end: impl Future<Output = ()>,
) -> Result<(), ApiServerRunError> {
    let (orchestrator, client) = connect(&config).await?;
    if client.stores_v3_as_written() {
        return Err(ApiServerRunError::ServedAlready);
    }
    let (certified_sender, mut certified) = watch::channel(false);
    let (identity, keeper) = match args.listen.identity()? {
        Some(given) => (given, None),
        None => {
            // A self-signed certificate that clients cannot verify. It serves clients that do not verify until a
            // signed one exists.
            let own = CertificatePair::generate(SELF_SIGNED_NAMES.map(str::to_owned).to_vec())?;
            let (serving, served) = watch::channel(Some(Arc::new(own)));
            let keeper = ServingCertificateKeeper {
                server: CertifiedServer::ApiServer,
                orchestrator: orchestrator.clone(),
                namespace: CERTIFICATE_NAMESPACE.to_owned(),
                lifetimes: CertificateLifetimes::default(),
                serving,
                certified: certified_sender,
            };
            (CertificateSource::Renewed(served), Some(tokio::spawn(keeper.run())))
        }
    };
    let trust = Arc::new(CurrentTrust::default());
    let (stop, stopping) = watch::channel(false);
    let access = AccessControl::new(orchestrator.clone(), trust.clone());
    let handler = Arc::new(ApiHandler::new(ObjectStorage::new(client), access, stopping.clone()));
    if keeper.is_some() {
        // kube-apiserver sends no requests before the CA is registered.
        let waited = tokio::time::timeout(CERTIFICATE_WAIT, certified.wait_for(|certified| *certified)).await;
        if !matches!(waited, Ok(Ok(_))) {
            tracing::warn!(
                "serving a certificate that clients cannot verify: Secret {CERTIFICATE_NAMESPACE}/calico-apiserver-tls or the \
                 APIService cannot be written; apply deploy/apiserver again, or give --tls-cert-file"
            );
        }
    }
    let (listener, address) = args.listen.listen(args.secure_port).await?;
    let follower = tokio::spawn(follow_trust(orchestrator, trust.clone()));
    let clients = Arc::new(OptionalCertificateVerifier::new(trust));
    let server = HttpsServer { identity, clients, answers: handler, stopping };
    let serving = tokio::spawn(server.serve(listener));
    // The daemon also runs when standard output is closed.
    let _ = writeln!(std::io::stdout(), "ready: API server on {address}");
    tracing::info!(%address, "serving projectcalico.org/v3");
    end.await;
    tracing::info!("stopping: closing watches and finishing open requests");
    let _ = stop.send(true);
    let _ = serving.await;
    follower.abort();
    if let Some(keeper) = keeper {
        keeper.abort();
    }
    Ok(())
}

/// Watches the cluster's settings for the front proxy and applies changes without a restart.
async fn follow_trust(orchestrator: OrchestratorClient, trust: Arc<CurrentTrust>) {
    let mut backoff = Backoff::default();
    let mut known: Option<BTreeMap<String, String>> = None;
    loop {
        match follow_once(&orchestrator, &trust, &mut known).await {
            Ok(()) => backoff.reset(),
            Err(error) => {
                // The previous settings stay in effect.
                tracing::warn!(
                    %error,
                    "{AUTHENTICATION_NAMESPACE}/{AUTHENTICATION_CONFIG_MAP} cannot be watched; trying again"
                );
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

async fn follow_once(
    orchestrator: &OrchestratorClient,
    trust: &CurrentTrust,
    known: &mut Option<BTreeMap<String, String>>,
) -> Result<(), TrustError> {
    let data = orchestrator.config_map(AUTHENTICATION_NAMESPACE, AUTHENTICATION_CONFIG_MAP).await?;
    if known.as_ref() != Some(&data) {
        trust.set(ProxyTrust::read(&data)?);
        tracing::info!(
            "read the authentication settings from {AUTHENTICATION_NAMESPACE}/{AUTHENTICATION_CONFIG_MAP}"
        );
        *known = Some(data.clone());
    }
    Ok(orchestrator.config_map_changed(AUTHENTICATION_NAMESPACE, AUTHENTICATION_CONFIG_MAP, &data).await?)
}
