//! Certificates that hubs issue for themselves and for the nodes. They are stored in two Kubernetes Secrets: one that
//! only hubs read, with the CA key, and one that nodes read, with one client certificate for all nodes.
//! `deploy/40-hub.yaml` creates both Secrets empty.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::{KubernetesSecret, OrchestratorClient, is_too_late};
use tortie_store::{Backoff, StoreLimits};
use tortie_tls::{CertificateLifetimes, ClientCertificate, PemError, SelfIssuedCertificates, TlsPem};

/// Common names of the certificates.
pub const HUB_NAME: &str = "tortie-hub";
pub const NODE_NAME: &str = "tortie-node";
/// Interval between checks of the certificates.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Timeout for a node to read its certificate before it falls back to the last one read. Shorter than the connect
/// timeout.
const SECRET_READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay until the next check after a Secret was written.
const SECRET_WRITE_DELAY: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error("Secret {0} does not exist; apply deploy/40-hub.yaml again")]
    NoSecret(String),
    #[error("Secret {0} has no certificate yet: no hub has issued one")]
    NotIssued(String),
    #[error("kube-apiserver did not respond in {} s", SECRET_READ_TIMEOUT.as_secs())]
    Timeout,
    #[error("cannot issue certificates: {0}")]
    Signing(#[from] tortie_tls::CertificateIssueError),
    #[error(transparent)]
    Pem(#[from] PemError),
}

/// The Secrets that hold the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSecret {
    pub namespace: String,
    /// Name of the hubs' Secret.
    pub name: String,
}

impl CertificateSecret {
    /// Returns the name of the Secret that nodes read.
    fn client_name(&self) -> String {
        format!("{}-client", self.name)
    }
}

/// Issues and renews the certificates while the hub runs.
pub struct CertificateKeeper {
    secret: CertificateSecret,
    kubernetes: KubernetesTarget,
    serving: watch::Sender<Option<Arc<ServerConfig>>>,
    last_error: watch::Sender<Option<String>>,
}

/// State that the keeper publishes.
#[derive(Clone, Debug)]
pub struct CertificateState {
    /// TLS configuration of the server; `None` until certificates exist.
    pub serving: watch::Receiver<Option<Arc<ServerConfig>>>,
    /// Error of the last check; `None` if it succeeded.
    last_error: watch::Receiver<Option<String>>,
}

impl CertificateState {
    /// Waits until certificates exist.
    pub async fn wait_until_issued(&self) {
        let mut serving = self.serving.clone();
        if serving.wait_for(Option::is_some).await.is_err() {
            // The keeper task has ended, which also ends the hub.
            std::future::pending::<()>().await;
        }
    }

    /// Returns why the hub cannot accept clients. Returns `None` once certificates exist, even if a later renewal
    /// fails.
    pub fn unready_reason(&self) -> Option<String> {
        if self.serving.borrow().is_some() {
            return None;
        }
        Some(self.last_error.borrow().clone().unwrap_or_else(|| "it is being issued".to_owned()))
    }
}

impl CertificateKeeper {
    pub fn new(
        secret: CertificateSecret,
        kubernetes: KubernetesTarget,
    ) -> (CertificateKeeper, CertificateState) {
        let serving = watch::Sender::new(None);
        let last_error = watch::Sender::new(None);
        let state = CertificateState { serving: serving.subscribe(), last_error: last_error.subscribe() };
        (CertificateKeeper { secret, kubernetes, serving, last_error }, state)
    }

    /// Checks and renews the certificates. Never returns.
    pub async fn run(self) {
        let mut backoff = Backoff::default();
        let mut served = None;
        loop {
            match self.renew(&mut served).await {
                Ok(delay) => {
                    backoff.reset();
                    self.last_error.send_replace(None);
                    tokio::time::sleep(delay).await;
                }
                Err(error) => {
                    // Renewal starts with a third of the lifetime left, so the certificate in use is still valid.
                    tracing::warn!(%error, "cannot renew the certificates of hubs and nodes; retrying");
                    self.last_error.send_replace(Some(error.to_string()));
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// Performs one renewal step (at most one Secret is written) and returns the delay until the next check.
    async fn renew(&self, served: &mut Option<TlsPem>) -> Result<Duration, CertificateError> {
        let kubernetes = OrchestratorClient::connect(&self.kubernetes, StoreLimits::default()).await?;
        let namespace = &self.secret.namespace;
        let client_name = self.secret.client_name();
        let own = kubernetes.secret(namespace, &self.secret.name).await?;
        let node = kubernetes.secret(namespace, &client_name).await?;
        for (secret, name) in [(&own, &self.secret.name), (&node, &client_name)] {
            if secret.version.is_empty() {
                return Err(CertificateError::NoSecret(format!("{namespace}/{name}")));
            }
        }
        let stored = SelfIssuedCertificates::from_secret_data(&own.data);
        let trusted = node.data.get("ca.crt").map(String::as_str);
        let lifetimes = CertificateLifetimes::default();
        let now = read_unix_time();
        let names = [HUB_NAME.to_owned()];
        if let Some(renewed) = SelfIssuedCertificates::renewed(&stored, trusted, &names, lifetimes, now)? {
            let data = renewed.into_secret_data();
            return write_secret(&kubernetes, namespace, &self.secret.name, own.version, data).await;
        }
        let [certificate, key] =
            ["tls.crt", "tls.key"].map(|key| node.data.get(key).cloned().unwrap_or_default());
        let current = ClientCertificate { certificate, key };
        let client = stored.renewed_client(&current, NODE_NAME, lifetimes, now)?;
        if client.is_some() || trusted != Some(stored.authorities.as_str()) {
            let client = client.unwrap_or(current);
            let data =
                [("ca.crt", stored.authorities), ("tls.crt", client.certificate), ("tls.key", client.key)];
            let data = data.map(|(key, value)| (key.to_owned(), value)).into();
            return write_secret(&kubernetes, namespace, &client_name, node.version, data).await;
        }
        let pem = TlsPem {
            certificate: stored.certificate.into(),
            key: stored.key.into(),
            ca: Some(stored.authorities.into()),
        };
        if served.as_ref() != Some(&pem) {
            self.serving.send_replace(Some(Arc::new(pem.server()?)));
            tracing::info!(
                "clients are accepted with the certificate of Secret {namespace}/{}",
                self.secret.name
            );
            *served = Some(pem);
        }
        Ok(CERTIFICATE_CHECK_INTERVAL)
    }
}

async fn write_secret(
    kubernetes: &OrchestratorClient,
    namespace: &str,
    name: &str,
    version: String,
    data: BTreeMap<String, String>,
) -> Result<Duration, CertificateError> {
    match kubernetes.fill_secret(namespace, name, &KubernetesSecret { data, version }).await {
        Ok(()) => tracing::info!("Secret {namespace}/{name} has new certificates"),
        // Another hub wrote the Secret first: the next check reads its content.
        Err(error) if is_too_late(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(SECRET_WRITE_DELAY)
}

fn read_unix_time() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX)
}

/// The certificate of nodes. It is read from its Secret once, and again after a connection that no hub accepted:
/// thousands of nodes that lose their hub at the same moment must not all send requests to kube-apiserver, and a
/// renewed certificate is needed only when the old one is rejected. In TLS 1.3 the client completes its handshake
/// before the server checks the certificate, so only a message of the hub proves that it was accepted.
#[derive(Debug)]
pub struct NodeCertificates {
    kubernetes: KubernetesTarget,
    namespace: String,
    name: String,
    cached: Mutex<Option<CachedCertificate>>,
}

#[derive(Debug)]
struct CachedCertificate {
    pem: TlsPem,
    config: Arc<ClientConfig>,
    /// Whether a hub has accepted the certificate since the last call of [`NodeCertificates::config`].
    is_accepted: bool,
}

impl NodeCertificates {
    pub fn new(kubernetes: KubernetesTarget, namespace: &str, name: &str) -> NodeCertificates {
        NodeCertificates {
            kubernetes,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            cached: Mutex::default(),
        }
    }

    /// Returns the TLS configuration for the next connection.
    pub async fn config(&self) -> Result<Arc<ClientConfig>, CertificateError> {
        let mut cached = self.cached.lock().await;
        if let Some(certificate) = cached.as_mut()
            && std::mem::take(&mut certificate.is_accepted)
        {
            return Ok(certificate.config.clone());
        }
        let read = timeout(SECRET_READ_TIMEOUT, self.read()).await.unwrap_or(Err(CertificateError::Timeout));
        match (read, &*cached) {
            (Err(error), Some(certificate)) => {
                tracing::debug!(%error, "cannot read the certificate of nodes; connecting to a hub with the previous one");
                Ok(certificate.config.clone())
            }
            (Err(error), None) => Err(error),
            (Ok(pem), Some(certificate)) if certificate.pem == pem => Ok(certificate.config.clone()),
            (Ok(pem), _) => {
                let config = Arc::new(pem.client()?);
                *cached = Some(CachedCertificate { pem, config: config.clone(), is_accepted: false });
                Ok(config)
            }
        }
    }

    /// Records that a hub has accepted the certificate: the next connection uses it without reading the Secret.
    pub async fn set_accepted(&self) {
        if let Some(certificate) = &mut *self.cached.lock().await {
            certificate.is_accepted = true;
        }
    }

    async fn read(&self) -> Result<TlsPem, CertificateError> {
        let kubernetes = OrchestratorClient::connect(&self.kubernetes, StoreLimits::default()).await?;
        let secret = kubernetes.secret(&self.namespace, &self.name).await?;
        let name = format!("{}/{}", self.namespace, self.name);
        if secret.version.is_empty() {
            return Err(CertificateError::NoSecret(name));
        }
        let parts = ["tls.crt", "tls.key", "ca.crt"].map(|key| secret.data.get(key).cloned());
        let [Some(certificate), Some(key), Some(ca)] = parts else {
            return Err(CertificateError::NotIssued(name));
        };
        Ok(TlsPem { certificate: certificate.into(), key: key.into(), ca: Some(ca.into()) })
    }
}
