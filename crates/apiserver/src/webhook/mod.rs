//! Admission webhooks for clusters whose objects are custom resources of projectcalico.org/v3: kube-apiserver calls
//! them before it stores a policy or ClusterInformation. They enforce the tier permissions for writes; reads are not
//! checked.

mod handler;
pub mod keeper;
mod review;

use crate::access::AccessControl;
use crate::listen::ListenArgs;
use crate::run::ApiServerRunError;
use crate::server::{CertificateSource, HttpsServer};
use crate::trust::{ClientCertificateMode, CurrentTrust, verifier};
use clap::Args;
use handler::WebhookHandler;
use keeper::{CertifiedServer, ServingCertificateKeeper};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{ResourceClient, StoreClient, StoreConfig, StoreLimits};
use tortie_tls::CertificateLifetimes;

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

/// Runs until `end`, then finishes open requests.
pub async fn serve_webhooks(
    config: StoreConfig,
    args: WebhooksArgs,
    lifetimes: CertificateLifetimes,
    end: impl Future<Output = ()>,
) -> Result<(), ApiServerRunError> {
    let target = config.orchestrator().ok_or(ApiServerRunError::NoKubernetes)?;
    let orchestrator = OrchestratorClient::connect(&target, StoreLimits::default()).await?;
    let client = StoreClient::connect_waiting(&config, |error| {
        tracing::warn!(%error, "waiting for the datastore; trying again");
    })
    .await?;
    if !client.stores_v3_as_written() {
        return Err(ApiServerRunError::NotServed);
    }
    let clients = match &args.client_ca_file {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(file) => {
            let unusable = |reason: String| tortie_tls::TlsError::Ca { path: file.clone(), reason };
            let pem = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
            // The kubelet's probe has no certificate; the handler rejects all other requests without one.
            let verifier = verifier(Some(&pem), ClientCertificateMode::Optional).map_err(unusable)?;
            verifier.ok_or_else(|| unusable("it has no certificate".to_owned()))?
        }
    };
    let (certified_sender, certified) = watch::channel(false);
    let (identity, keeper) = match args.listen.identity()? {
        Some(given) => {
            certified_sender.send_replace(true);
            (given, None)
        }
        None => {
            let (serving, served) = watch::channel(None);
            let keeper = ServingCertificateKeeper {
                server: CertifiedServer::Webhooks,
                orchestrator: orchestrator.clone(),
                namespace: args.namespace.clone(),
                lifetimes,
                serving,
                certified: certified_sender,
            };
            (CertificateSource::Renewed(served), Some(tokio::spawn(keeper.run())))
        }
    };
    let (stop, stopping) = watch::channel(false);
    let access = AccessControl::new(orchestrator, Arc::new(CurrentTrust::default()));
    let handler = WebhookHandler::new(
        access,
        ResourceClient::new(client),
        args.namespace.clone(),
        args.client_ca_file.is_some(),
        certified,
        stopping.clone(),
    );
    let (listener, address) = args.listen.listen(args.port).await?;
    let server = HttpsServer { identity, clients, answers: Arc::new(handler), stopping };
    let serving = tokio::spawn(server.serve(listener));
    // The daemon also runs when standard output is closed.
    let _ = writeln!(std::io::stdout(), "ready: webhooks on {address}");
    tracing::info!(%address, "serving admission webhooks");
    end.await;
    let _ = stop.send(true);
    let _ = serving.await;
    if let Some(keeper) = keeper {
        keeper.abort();
    }
    Ok(())
}
