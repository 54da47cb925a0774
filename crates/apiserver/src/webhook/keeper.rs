//! Issues and renews the certificates of the API server and the webhooks: in a Secret that all replicas share, and as
//! the CA bundle in the object that registers the server with Kubernetes.

use crate::server::CertificatePair;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tortie_store::orchestrator::{
    ApiRegistration, KubernetesSecret, OrchestratorClient, WebhookConfiguration, is_too_late,
};
use tortie_store::{Backoff, StoreError, StoreResult};
use tortie_tls::{CertificateIssueError, CertificateLifetimes, PemError, SelfIssuedCertificates};

/// Interval between checks. Applying the manifest again may reset the CA bundle.
const CERTIFICATE_CHECK_DELAY: Duration = Duration::from_secs(10);
/// Interval while there is no registration, and delay after a write.
const SHORT_CHECK_DELAY: Duration = Duration::from_secs(1);

/// A server that kube-apiserver sends requests to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertifiedServer {
    ApiServer,
    Webhooks,
}

/// The object that registers a server with Kubernetes.
enum ServerRegistration {
    ApiService(ApiRegistration),
    Webhooks(WebhookConfiguration),
}

/// Reason why the certificates cannot be renewed.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Issue(#[from] CertificateIssueError),
    #[error(transparent)]
    Pem(#[from] PemError),
}

pub struct ServingCertificateKeeper {
    pub server: CertifiedServer,
    pub orchestrator: OrchestratorClient,
    pub namespace: String,
    pub lifetimes: CertificateLifetimes,
    /// Certificate that connections are served with.
    pub serving: watch::Sender<Option<Arc<CertificatePair>>>,
    /// Whether the certificate is served and, if a registration exists, its CA bundle is up to date.
    pub certified: watch::Sender<bool>,
}

impl CertifiedServer {
    fn secret(self) -> &'static str {
        match self {
            CertifiedServer::ApiServer => "calico-apiserver-tls",
            CertifiedServer::Webhooks => "calico-webhooks-tls",
        }
    }

    /// Returns the Service in front of it.
    fn service(self) -> &'static str {
        match self {
            CertifiedServer::ApiServer => "calico-api",
            CertifiedServer::Webhooks => "calico-webhooks",
        }
    }

    async fn registration(
        self,
        orchestrator: &OrchestratorClient,
    ) -> StoreResult<Option<ServerRegistration>> {
        Ok(match self {
            CertifiedServer::ApiServer => {
                let found = orchestrator.api_registration("v3.projectcalico.org").await?;
                // If Kubernetes serves the group itself, the APIService needs no CA bundle.
                found.filter(ApiRegistration::is_served_by_others).map(ServerRegistration::ApiService)
            }
            CertifiedServer::Webhooks => {
                orchestrator.webhook_configuration("calico-webhooks").await?.map(ServerRegistration::Webhooks)
            }
        })
    }
}

impl ServerRegistration {
    fn believed(&self) -> String {
        match self {
            ServerRegistration::ApiService(registration) => registration.believed(),
            ServerRegistration::Webhooks(configuration) => configuration.believed(),
        }
    }

    async fn set_believed(&self, orchestrator: &OrchestratorClient, authorities: &str) -> StoreResult<()> {
        match self {
            ServerRegistration::ApiService(registration) => {
                orchestrator.set_registration_authorities(registration, authorities).await
            }
            ServerRegistration::Webhooks(configuration) => {
                orchestrator.set_believed(configuration, authorities).await
            }
        }
    }
}

impl ServingCertificateKeeper {
    pub async fn run(self) {
        let mut backoff = Backoff::default();
        loop {
            match self.renew().await {
                Ok(pause) => {
                    backoff.reset();
                    tokio::time::sleep(pause).await;
                }
                Err(error) => {
                    // Renewal starts with a third of the lifetime left, so the certificate in use is still valid.
                    tracing::warn!(%error, "cannot renew certificates; trying again");
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// Performs one renewal step (at most one object is written) and returns the delay until the next check.
    async fn renew(&self) -> Result<Duration, RenewalError> {
        let name = self.server.secret();
        let secret = self.orchestrator.secret(&self.namespace, name).await?;
        let registration = self.server.registration(&self.orchestrator).await?;
        let believed = registration.as_ref().map(ServerRegistration::believed);
        let kept = read_certificates(&secret);
        let names = self.names();
        let renewed =
            SelfIssuedCertificates::renewed(&kept, believed.as_deref(), &names, self.lifetimes, now())?;
        if let Some(renewed) = renewed {
            let secret = KubernetesSecret { data: secret_data(&renewed), version: secret.version };
            let stored = self.orchestrator.write_secret(&self.namespace, name, &secret).await;
            if stored.is_ok() {
                tracing::info!("{}/{name} has new certificates", self.namespace);
            }
            return check_again(stored);
        }
        // Serve the certificate before its CA becomes the only registered one, so that no requests fail in between.
        let pair = CertificatePair::from_pem(&kept.certificate, &kept.key)?;
        self.serving.send_if_modified(|current| {
            let differs = current.as_deref() != Some(&pair);
            if differs {
                *current = Some(Arc::new(pair));
            }
            differs
        });
        if let Some(registration) = &registration
            && believed.as_deref() != Some(kept.authorities.as_str())
        {
            let written = registration.set_believed(&self.orchestrator, &kept.authorities).await;
            return check_again(written);
        }
        self.certified.send_replace(true);
        Ok(if registration.is_none() {
            SHORT_CHECK_DELAY
        } else {
            CERTIFICATE_CHECK_DELAY.min(self.lifetimes.certificate / 12)
        })
    }

    /// Returns the DNS names under which kube-apiserver reaches the Service.
    fn names(&self) -> Vec<String> {
        let service = self.server.service();
        let namespace = &self.namespace;
        vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}"), service.to_owned()]
    }
}

/// Returns the delay until the next check after a write. If another replica wrote the object first, it is read again.
fn check_again(written: StoreResult<()>) -> Result<Duration, RenewalError> {
    match written {
        Err(error) if !is_too_late(&error) => Err(error.into()),
        _ => Ok(SHORT_CHECK_DELAY),
    }
}

fn read_certificates(secret: &KubernetesSecret) -> SelfIssuedCertificates {
    let [authorities, authority_key, certificate, key] = ["ca.crt", "ca.key", "tls.crt", "tls.key"]
        .map(|key| secret.data.get(key).cloned().unwrap_or_default());
    SelfIssuedCertificates { authorities, authority_key, certificate, key }
}

fn secret_data(kept: &SelfIssuedCertificates) -> std::collections::BTreeMap<String, String> {
    let pairs = [
        ("ca.crt", &kept.authorities),
        ("ca.key", &kept.authority_key),
        ("tls.crt", &kept.certificate),
        ("tls.key", &kept.key),
    ];
    pairs.into_iter().map(|(key, text)| (key.to_owned(), text.clone())).collect()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
