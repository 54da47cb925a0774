//! Admission webhooks for clusters whose objects are custom resources of projectcalico.org/v3: kube-apiserver calls
//! them before it stores a policy or ClusterInformation. They enforce the tier permissions for writes; reads are not
//! checked.

mod handler;
pub mod keeper;
mod review;

use crate::access::AccessControl;
use crate::body::BodyReader;
use crate::listen::ListenArgs;
use crate::metrics::ApiServerMetrics;
use crate::run::{ApiServerRunError, connect};
use crate::server::HttpsServer;
use crate::trust::CurrentTrust;
use clap::Args;
use handler::{MAX_CONCURRENT_REVIEWS, WebhookHandler};
use keeper::CertifiedServer;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tortie_store::{ResourceClient, StoreConfig};
use tortie_tls::{CertificateLifetimes, ClientCertificateMode, TlsError, client_verifier};

#[derive(Args, Clone, Debug)]
pub struct WebhooksArgs {
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub port: u16,
    #[command(flatten)]
    pub listen: ListenArgs,
    /// CA in PEM format that signs kube-apiserver's client certificate: other clients are rejected
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Namespace of the webhooks and of the service accounts that may write ClusterInformation
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub namespace: String,
    /// Configuration file with the location of the datastore, as for calicoctl
    #[arg(long, value_name = "FILE", default_value = StoreConfig::DEFAULT_FILE)]
    pub config: PathBuf,
}

/// Runs the webhooks until `end`, then finishes open requests.
pub async fn serve_webhooks(
    config: StoreConfig,
    args: WebhooksArgs,
    lifetimes: CertificateLifetimes,
    end: impl Future<Output = ()>,
) -> Result<(), ApiServerRunError> {
    let (orchestrator, client) = connect(&config).await?;
    if !client.stores_v3_as_written() {
        return Err(ApiServerRunError::NotServed);
    }
    let clients = match &args.client_ca_file {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(file) => read_client_verifier(file)?,
    };
    let certificate = CertifiedServer::Webhooks.obtain_certificate(
        &args.listen,
        &orchestrator,
        &args.namespace,
        lifetimes,
    )?;
    let (stop, stopping) = watch::channel(false);
    let access = AccessControl::new(orchestrator, Arc::new(CurrentTrust::default()));
    let handler = WebhookHandler {
        access,
        resources: ResourceClient::new(client),
        namespace: args.namespace,
        metrics: ApiServerMetrics::new(),
        bodies: BodyReader::default(),
        requests: Semaphore::new(MAX_CONCURRENT_REVIEWS),
        needs_certificate: args.client_ca_file.is_some(),
        certified: certificate.certified,
        stopping: stopping.clone(),
    };
    let server = HttpsServer { identity: certificate.source, clients, handler: Arc::new(handler), stopping };
    args.listen.serve_until(args.port, "webhooks", server, stop, end).await
}

/// Returns a verifier of kube-apiserver's certificate. The kubelet's probe has no certificate; the handler rejects all
/// other requests without one.
fn read_client_verifier(ca: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let verifier = match std::fs::read(ca) {
        Ok(pem) => client_verifier(&pem, ClientCertificateMode::Optional).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    verifier.map_err(|reason| TlsError::Ca { path: ca.to_owned(), reason })
}
