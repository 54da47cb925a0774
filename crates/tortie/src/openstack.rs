//! `tortie openstack`: runs the daemon of Neutron's driver in the foreground.

use clap::Args;
use std::error::Error;
use std::path::PathBuf;
use tortie_openstack::{DEFAULT_SOCKET, OpenStackOptions};
use tortie_store::StoreConfig;

const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  ETCD_ENDPOINTS=https://10.0.0.5:2379 tortie openstack
  tortie openstack --region east --config /etc/calico/calicoctl.cfg")]
pub struct OpenStackArgs {
    /// Unix socket for Neutron's driver; option `socket` of the group [tortie] in neutron.conf
    #[arg(long, value_name = "FILE", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Name of the region; option `openstack_region` of the group [calico] in neutron.conf
    #[arg(long, value_name = "NAME", default_value = "")]
    region: String,
    /// Name in the election of the daemon that reports states; default: the host name
    #[arg(long, value_name = "NAME")]
    elector_name: Option<String>,
    /// Configuration file for the datastore connection, as for calicoctl
    #[arg(long, value_name = "FILE", default_value = StoreConfig::DEFAULT_FILE)]
    config: PathBuf,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: OpenStackArgs) -> Result<(), Box<dyn Error + Send + Sync>> {
    let elector_name = match args.elector_name {
        Some(name) => name,
        None => std::fs::read_to_string(HOST_NAME_FILE)?.trim().to_owned(),
    };
    let socket = args.socket.display().to_string();
    let options = OpenStackOptions {
        socket: args.socket,
        region: args.region,
        elector_name,
        store: StoreConfig::load(&args.config)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // The line is for supervisors and tests that wait for the socket.
    let ready = move || println!("ready: {socket}");
    Ok(runtime.block_on(tortie_openstack::run(options, ready))?)
}
