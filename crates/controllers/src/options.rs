//! Command-line arguments of the controllers.

use clap::Args;
use std::path::PathBuf;
use tortie_store::StoreConfig;

#[derive(Args, Clone, Debug)]
pub struct ControllersArgs {
    /// CalicoAPIConfig file with the location of the datastore; without it, the environment
    #[arg(short, long, value_name = "FILE", env = "TORTIE_CONFIG", default_value = StoreConfig::DEFAULT_FILE)]
    pub config: PathBuf,
    /// File that readiness is written to, for probes
    #[arg(long, value_name = "FILE", default_value = "/status/status.json")]
    pub status_file: PathBuf,
    /// Serve /liveness and /readiness on this port; 0 for none
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub health_port: u16,
    /// Namespace of the Lease for leader election
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub lease_namespace: String,
    /// Name of the Lease
    #[arg(long, value_name = "NAME", default_value = "tortie-controllers")]
    pub lease_name: String,
    /// Identity of this replica in the Lease; by default host name and process id
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
    /// Use a datastore that another Kubernetes cluster has used, given by the UID of its namespace kube-system
    #[arg(long, value_name = "UID", env = "TORTIE_TAKE_OVER")]
    pub take_over: Option<String>,
}
