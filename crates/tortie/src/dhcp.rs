//! `tortie dhcp`: the DHCP server of an OpenStack compute host, also called as `calico-dhcp-agent`.

use clap::{Args, Parser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tortie_dhcp::DhcpOptions;
use tortie_dhcp::table::LeaseSettings;
use tortie_store::StoreConfig;

/// Run the DHCP server of an OpenStack compute host
#[derive(Debug, Parser)]
#[command(name = "calico-dhcp-agent", version)]
pub struct DhcpAgentCli {
    #[command(flatten)]
    pub args: DhcpArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  ETCD_ENDPOINTS=http://10.0.0.5:2379 tortie dhcp             serve the virtual machines of this host
  tortie dhcp --region north --dns-server 9.9.9.9             a region, and name servers for subnets without any
  tortie dhcp --listen 127.0.0.1:9097                         with metrics, /liveness and /readiness")]
pub struct DhcpArgs {
    /// Name of this host in Neutron [default: the host name]
    #[arg(long, value_name = "NAME", env = "FELIX_FELIXHOSTNAME", hide_env_values = true)]
    host: Option<String>,
    /// Region of OpenStack, as openstack_region in neutron.conf
    #[arg(
        long,
        value_name = "NAME",
        env = "FELIX_OPENSTACKREGION",
        default_value = "",
        hide_default_value = true
    )]
    region: String,
    /// Prefix of the names of the machines' interfaces; more than one separated by commas
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', default_value = "tap")]
    interface_prefix: Vec<String>,
    /// Time for which machines may use their addresses without renewal
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    lease_time: u32,
    /// Domain of machines whose ports have no DNS name; an empty one is not sent
    #[arg(long, value_name = "DOMAIN", default_value = "openstacklocal")]
    domain: String,
    /// Name servers for subnets without any; more than one separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    dns_server: Vec<IpAddr>,
    /// Requests of one machine that are answered per second
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    max_requests: u32,
    /// Address for metrics, liveness and readiness, such as 127.0.0.1:9097 [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Configuration file for the datastore connection, as for calicoctl
    #[arg(long, value_name = "FILE", default_value = StoreConfig::DEFAULT_FILE)]
    config: PathBuf,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: DhcpArgs) -> Result<(), Box<dyn Error + Send + Sync>> {
    let host = match args.host {
        Some(host) => host,
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned(),
    };
    let options = DhcpOptions {
        leases: LeaseSettings {
            host,
            region: args.region,
            interface_prefixes: args.interface_prefix,
            lease_seconds: args.lease_time,
            domain: args.domain,
            dns_servers: args.dns_server,
        },
        requests_per_second: args.max_requests,
        listen: args.listen,
    };
    let config = StoreConfig::load(&args.config)?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(runtime.block_on(tortie_dhcp::run(options, config))?)
}

/// Raises the open-file limit to the hard limit: every machine needs two sockets, and the usual soft limit is 1024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_machines_may_be_served() {
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
