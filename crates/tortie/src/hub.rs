//! `tortie hub`: runs a hub in the foreground. Manifests call it `calico component typha`.

use clap::Args;
use std::error::Error;
use std::path::PathBuf;
use tortie_compute::cluster_interests;
use tortie_hub::{DEFAULT_TYPHA_CONFIG_FILE, HubSettings};
use tortie_store::StoreConfig;
use tortie_store::config::settings_file;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  tortie hub                                                   with the datastore that calicoctl.cfg or variables name
  ETCD_ENDPOINTS=https://10.0.0.5:2379 tortie hub              with etcd
  TYPHA_SERVERPORT=5474 TYPHA_HEALTHENABLED=true tortie hub    on another port, with probes on port 9098")]
pub struct HubArgs {
    /// File with the hub's settings: NAME = VALUE lines
    #[arg(short = 'c', long, value_name = "FILE", default_value = DEFAULT_TYPHA_CONFIG_FILE)]
    config_file: PathBuf,
    /// Configuration file for the datastore connection, as for calicoctl
    #[arg(long, value_name = "FILE", default_value = StoreConfig::DEFAULT_FILE)]
    config: PathBuf,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &HubArgs) -> Result<(), Box<dyn Error + Send + Sync>> {
    let file = settings_file::read(&args.config_file)
        .map_err(|error| format!("{}: {error}", args.config_file.display()))?;
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let settings = HubSettings::read(variables, file)?;
    let config = StoreConfig::load(&args.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)))
        .enable_all()
        .build()?;
    Ok(runtime.block_on(tortie_hub::run(config, settings, cluster_interests()))?)
}
