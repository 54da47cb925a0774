//! The API server process: builds the server from its settings, runs it, and shuts it down gracefully.

use crate::access::AccessControl;
use crate::handler::ApiHandler;
use crate::listen::ListenArgs;
use crate::server::HttpsServer;
use crate::storage::ObjectStorage;
use crate::trust::{
    AUTHENTICATION_CONFIG_MAP, AUTHENTICATION_NAMESPACE, CurrentTrust, OptionalCertificateVerifier,
    ProxyTrust, TrustError,
};
use crate::webhook::keeper::CertifiedServer;
use crate::webhook::{WebhooksArgs, serve_webhooks};
use clap::Args;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{Backoff, StoreClient, StoreConfig, StoreLimits};
use tortie_tls::CertificateLifetimes;

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
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error("cannot listen on port {port} of {host}: {error}")]
    Listen { host: String, port: u16, error: io::Error },
    #[error(
        "no Kubernetes is configured, which authenticates and authorizes users: set KUBECONFIG, or kubeconfig in the configuration file"
    )]
    NoKubernetes,
    #[error(
        "the datastore is projectcalico.org/v3, which kube-apiserver serves itself: this server is for crd.projectcalico.org/v1 and etcd"
    )]
    ServedAlready,
    #[error(
        "the datastore is not projectcalico.org/v3 (CALICO_API_GROUP): run `tortie apiserver` instead, which checks writes itself"
    )]
    NotServed,
}

/// Runs the API server until SIGTERM or SIGINT.
pub async fn run(config: StoreConfig, args: ApiServerArgs) -> Result<(), ApiServerRunError> {
    let shutdown = tortie_http::shutdown_signal().map_err(ApiServerRunError::Signals)?;
    serve(config, args, shutdown).await
}

/// Runs the webhooks until SIGTERM or SIGINT.
pub async fn run_webhooks(config: StoreConfig, args: WebhooksArgs) -> Result<(), ApiServerRunError> {
    let shutdown = tortie_http::shutdown_signal().map_err(ApiServerRunError::Signals)?;
    serve_webhooks(config, args, CertificateLifetimes::default(), shutdown).await
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

/// Runs the API server until `shutdown`, then closes watches and finishes open requests.
pub async fn serve(
    config: StoreConfig,
    args: ApiServerArgs,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ApiServerRunError> {
    let (orchestrator, client) = connect(&config).await?;
    if client.stores_v3_as_written() {
        return Err(ApiServerRunError::ServedAlready);
    }
    let mut certificate = CertifiedServer::ApiServer.obtain_certificate(
        &args.listen,
        &orchestrator,
        CERTIFICATE_NAMESPACE,
        CertificateLifetimes::default(),
    )?;
    let trust = Arc::new(CurrentTrust::default());
    let (stop, stopping) = watch::channel(false);
    let access = AccessControl::new(orchestrator.clone(), trust.clone());
    let handler = Arc::new(ApiHandler::new(ObjectStorage::new(client), access, stopping.clone()));
    // kube-apiserver sends no requests before the CA is registered.
    let is_certified = certificate.certified.wait_for(|certified| *certified);
    if !matches!(tokio::time::timeout(CERTIFICATE_WAIT, is_certified).await, Ok(Ok(_))) {
        tracing::warn!(
            "serving a certificate that clients cannot verify: cannot write Secret {CERTIFICATE_NAMESPACE}/calico-apiserver-tls or the \
             APIService; apply deploy/apiserver again, or set --tls-cert-file"
        );
    }
    // The task ends when the set is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_trust(orchestrator, trust.clone()));
    let clients = Arc::new(OptionalCertificateVerifier::new(trust));
    let server = HttpsServer { identity: certificate.source, clients, handler, stopping };
    args.listen.serve_until(args.secure_port, "API server", server, stop, shutdown).await
}

/// Watches the cluster's settings for the front proxy and applies changes without a restart.
async fn follow_trust(orchestrator: OrchestratorClient, trust: Arc<CurrentTrust>) {
    let mut backoff = Backoff::default();
    let mut known: Option<BTreeMap<String, String>> = None;
    loop {
        match update_trust(&orchestrator, &trust, &mut known).await {
            Ok(()) => backoff.reset(),
            Err(error) => {
                // The previous settings stay in effect.
                tracing::warn!(
                    %error,
                    "cannot watch ConfigMap {AUTHENTICATION_NAMESPACE}/{AUTHENTICATION_CONFIG_MAP}; trying again"
                );
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

/// Applies the settings if they differ from `known`, and waits until they change.
async fn update_trust(
    orchestrator: &OrchestratorClient,
    trust: &CurrentTrust,
    known: &mut Option<BTreeMap<String, String>>,
) -> Result<(), TrustError> {
    let data = orchestrator.config_map(AUTHENTICATION_NAMESPACE, AUTHENTICATION_CONFIG_MAP).await?;
    if known.as_ref() != Some(&data) {
        trust.set(ProxyTrust::read(&data)?);
        tracing::info!(
            "read the authentication settings from ConfigMap {AUTHENTICATION_NAMESPACE}/{AUTHENTICATION_CONFIG_MAP}"
        );
        *known = Some(data.clone());
    }
    Ok(orchestrator.config_map_changed(AUTHENTICATION_NAMESPACE, AUTHENTICATION_CONFIG_MAP, &data).await?)
}
