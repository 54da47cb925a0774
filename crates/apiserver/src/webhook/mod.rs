//! The webhooks of a cluster whose objects are custom resources of projectcalico.org/v3: Kubernetes asks them before it stores a policy
//! or what is known about the cluster. So the rules of tiers hold there too, for those who write.

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
    /// Port to serve on
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub port: u16,
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Authority, in PEM, that signs the certificate of Kubernetes' API server: only its questions are answered
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Namespace of the webhooks, and of the accounts that may write ClusterInformation
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub namespace: String,
    /// Configuration file that says where the datastore is, as for calicoctl
    #[arg(long, value_name = "FILE", default_value = Config::DEFAULT_FILE)]
    pub config: PathBuf,
}

/// Runs until `end`; then what is being answered is finished.
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
            // The kubelet shows no certificate: the handler refuses everything else without one.
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
    // Without a reader of standard output the daemon serves all the same.
    let _ = writeln!(std::io::stdout(), "ready: webhooks on {address}");
    tracing::info!(%address, "answering Kubernetes' questions about policies");
    end.await;
    let _ = stop.send(true);
    let _ = serving.await;
    if let Some(keeper) = keeper {
        keeper.abort();
    }
    Ok(())
}
