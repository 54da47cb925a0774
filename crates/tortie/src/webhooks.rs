//! `tortie webhooks`: serves admission webhooks in the foreground. Manifests call it `calico component webhooks`.

use clap::Args;
use std::error::Error;
use tortie_apiserver::WebhooksArgs;
use tortie_store::StoreConfig;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  DATASTORE_TYPE=kubernetes tortie webhooks                      in a pod (deploy/webhooks)
  tortie webhooks --port 9443 --tls-cert-file server.pem --tls-private-key-file server.key")]
pub struct WebhooksCommand {
    #[command(flatten)]
    args: WebhooksArgs,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(command: WebhooksCommand) -> Result<(), Box<dyn Error + Send + Sync>> {
    let config = StoreConfig::load(&command.args.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(runtime.block_on(tortie_apiserver::run_webhooks(config, command.args))?)
}
