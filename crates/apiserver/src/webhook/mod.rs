//! Admission webhooks for clusters whose objects are custom resources of projectcalico.org/v3: kube-apiserver calls
//! them before it stores a policy or ClusterInformation. They enforce the tier permissions for writes; reads are not
//! checked.

mod handler;
pub mod keeper;
mod review;

use crate::access::Access;
use crate::listen::ListenArgs;
use crate::run::RunError;
use crate::server::{Identity, Server};
use crate::trust::{Certificates, Current, verifier};
use clap::Args;
use handler::Handler;
use keeper::{CertifiedServer, Keeper};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tortie_store::orchestrator::Orchestrator;
use tortie_store::{Client, Config, Limits, Resources};
use tortie_tls::Lifetimes;

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
    #[arg(long, value_name = "FILE", default_value = Config::DEFAULT_FILE)]
    pub config: PathBuf,
}

/// Runs until `end`, then finishes open requests.
pub async fn serve_webhooks(
    config: Config,
    args: WebhooksArgs,
    lifetimes: Lifetimes,
    end: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let target = config.orchestrator().ok_or(RunError::NoKubernetes)?;
    let orchestrator = Orchestrator::connect(&target, Limits::default()).await?;
    let client = Client::connect_waiting(&config, |error| {
        tracing::warn!(%error, "waiting for the datastore; trying again");
    })
    .await?;
    if !client.stores_v3_as_written() {
        return Err(RunError::NotServed);
    }
    let clients = match &args.client_ca_file {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(file) => {
            let unusable = |reason: String| tortie_tls::TlsError::Ca { path: file.clone(), reason };
            let pem = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
            // The kubelet's probe has no certificate; the handler rejects all other requests without one.
            let verifier = verifier(Some(&pem), Certificates::Optional).map_err(unusable)?;
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
            let keeper = Keeper {
                server: CertifiedServer::Webhooks,
                orchestrator: orchestrator.clone(),
                namespace: args.namespace.clone(),
                lifetimes,
                serving,
                certified: certified_sender,
            };
            (Identity::Renewed(served), Some(tokio::spawn(keeper.run())))
        }
    };
    let (stop, stopping) = watch::channel(false);
    let access = Access::new(orchestrator, Arc::new(Current::default()));
    let handler = Handler::new(
        access,
        Resources::new(client),
        args.namespace.clone(),
        args.client_ca_file.is_some(),
        certified,
        stopping.clone(),
    );
    let (listener, address) = args.listen.listen(args.port).await?;
    let server = Server { identity, clients, answers: Arc::new(handler), stopping };
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
