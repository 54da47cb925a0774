//! The arguments of the controllers.

use clap::Args;
use std::path::PathBuf;
use tortie_store::Config;

#[derive(Args, Clone, Debug)]
pub struct ControllersArgs {
    /// Where the datastore is: a CalicoAPIConfig file; without it, the environment
    #[arg(short, long, value_name = "FILE", env = "TORTIE_CONFIG", default_value = Config::DEFAULT_FILE)]
    pub config: PathBuf,
    /// Where readiness is written, for probes
    #[arg(long, value_name = "FILE", default_value = "/status/status.json")]
    pub status_file: PathBuf,
    /// Serve /liveness and /readiness on this port; 0 for none
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub health_port: u16,
    /// The namespace of the Lease by which replicas agree on who leads
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub lease_namespace: String,
    /// The name of the Lease
    #[arg(long, value_name = "NAME", default_value = "tortie-controllers")]
    pub lease_name: String,
    /// What this replica is called in the Lease; without it, the host's name and the process id
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
}
