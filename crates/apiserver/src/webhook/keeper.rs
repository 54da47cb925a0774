//! Issues and renews the certificates of the API server and the webhooks: in a Secret that all replicas share, and as
//! the CA bundle in the object that registers the server with Kubernetes.

use crate::listen::ListenArgs;
use crate::run::ApiServerRunError;
use crate::server::{CertificatePair, CertificateSource};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
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

/// The certificate of a running server.
pub struct ServingCertificate {
    pub source: CertificateSource,
    /// Whether the certificate is served and, if a registration exists, its CA bundle is up to date.
    pub certified: watch::Receiver<bool>,
    /// Renews the certificate until it is dropped; empty if the certificate is configured.
    _keeper: JoinSet<()>,
}

struct ServingCertificateKeeper {
    server: CertifiedServer,
    orchestrator: OrchestratorClient,
    namespace: String,
    lifetimes: CertificateLifetimes,
    serving: watch::Sender<Option<Arc<CertificatePair>>>,
    certified: watch::Sender<bool>,
}

impl CertifiedServer {
    /// Returns the certificate that is configured. Without one, a task issues and renews it.
    pub fn obtain_certificate(
        self,
        listen: &ListenArgs,
        orchestrator: &OrchestratorClient,
        namespace: &str,
        lifetimes: CertificateLifetimes,
    ) -> Result<ServingCertificate, ApiServerRunError> {
        let mut tasks = JoinSet::new();
        if let Some(source) = listen.identity()? {
            let (_, certified) = watch::channel(true);
            return Ok(ServingCertificate { source, certified, _keeper: tasks });
        }
        let first = match self {
            // Serves clients that do not verify certificates until a signed one exists.
            CertifiedServer::ApiServer => {
                let mut names = self.dns_names(namespace);
                names.push("localhost".to_owned());
                Some(Arc::new(CertificatePair::generate(names)?))
            }
            CertifiedServer::Webhooks => None,
        };
        let (serving, served) = watch::channel(first);
        let (certified_sender, certified) = watch::channel(false);
        let keeper = ServingCertificateKeeper {
            server: self,
            orchestrator: orchestrator.clone(),
            namespace: namespace.to_owned(),
            lifetimes,
            serving,
            certified: certified_sender,
        };
        tasks.spawn(keeper.run());
        Ok(ServingCertificate { source: CertificateSource::Renewed(served), certified, _keeper: tasks })
    }

    /// Returns the DNS names under which kube-apiserver reaches the Service.
    fn dns_names(self, namespace: &str) -> Vec<String> {
        let service = self.service();
        vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}"), service.to_owned()]
    }

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
    fn ca_bundle(&self) -> String {
        match self {
            ServerRegistration::ApiService(registration) => registration.ca_bundle(),
            ServerRegistration::Webhooks(configuration) => configuration.ca_bundle(),
        }
    }

    async fn set_ca_bundle(&self, orchestrator: &OrchestratorClient, authorities: &str) -> StoreResult<()> {
        match self {
            ServerRegistration::ApiService(registration) => {
                orchestrator.set_registration_authorities(registration, authorities).await
            }
            ServerRegistration::Webhooks(configuration) => {
                orchestrator.set_ca_bundle(configuration, authorities).await
            }
        }
    }
}

impl ServingCertificateKeeper {
    async fn run(self) {
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
        let ca_bundle = registration.as_ref().map(ServerRegistration::ca_bundle);
        let kept = SelfIssuedCertificates::from_secret_data(&secret.data);
        let names = self.server.dns_names(&self.namespace);
        let now = jiff::Timestamp::now().as_second();
        let renewed =
            SelfIssuedCertificates::renewed(&kept, ca_bundle.as_deref(), &names, self.lifetimes, now)?;
        if let Some(renewed) = renewed {
            let secret = KubernetesSecret { data: renewed.into_secret_data(), version: secret.version };
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
            && ca_bundle.as_deref() != Some(kept.authorities.as_str())
        {
            let written = registration.set_ca_bundle(&self.orchestrator, &kept.authorities).await;
            return check_again(written);
        }
        self.certified.send_replace(true);
        Ok(if registration.is_none() {
            SHORT_CHECK_DELAY
        } else {
            CERTIFICATE_CHECK_DELAY.min(self.lifetimes.certificate / 12)
        })
    }
}

/// Returns the delay until the next check after a write. If another replica wrote the object first, it is read again.
fn check_again(written: StoreResult<()>) -> Result<Duration, RenewalError> {
    match written {
        Err(error) if !is_too_late(&error) => Err(error.into()),
        _ => Ok(SHORT_CHECK_DELAY),
    }
}
