//! `tortie apiserver`: serves projectcalico.org/v3 in the foreground. Manifests call it `calico component apiserver`.

use clap::Args;
use std::error::Error;
use tortie_apiserver::ApiServerArgs;
use tortie_store::StoreConfig;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  DATASTORE_TYPE=kubernetes tortie apiserver                     in a pod, objects in Kubernetes
  ETCD_ENDPOINTS=https://10.0.0.5:2379 tortie apiserver          in a pod, objects in etcd
  tortie apiserver --secure-port 6444 --tls-cert-file server.pem --tls-private-key-file server.key")]
pub struct ApiserverCommand {
    #[command(flatten)]
    args: ApiServerArgs,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(command: ApiserverCommand) -> Result<(), Box<dyn Error + Send + Sync>> {
    let config = StoreConfig::load(&command.args.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)))
        .enable_all()
        .build()?;
    Ok(runtime.block_on(tortie_apiserver::run(config, command.args))?)
}
