//! `tortie node`: runs this host's node in the foreground.

use clap::Args;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tortie_node::{LivePodHandling, LogControl, NodeArgs, PolicyHandover};

/// Time that a stopping daemon waits for requests in progress.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Default time limit for calico-node to start and to program its chains.
pub const FELIX_TIMEOUT_SECONDS: u64 = 120;

#[derive(Args, Debug)]
pub struct NodeCommand {
    #[command(flatten)]
    node: NodeArgs,
    /// Install the CNI plugins, their configuration and, with Kubernetes, a kubeconfig whose token is renewed; into
    /// /opt/cni/bin (CNI_BIN_DIR) and /etc/cni/net.d (CNI_NET_DIR), or the same paths below /host if that is mounted
    #[arg(long, env = "TORTIE_INSTALL_CNI")]
    install_cni: bool,
    /// Return the host to Calico and exit: wait until Felix's chains protect every endpoint that Tortie's policy
    /// protects, then remove what --install-cni has installed, the policy table, Tortie's rules in other chains and
    /// Tortie's files. Running containers keep their interfaces, addresses and routes. The daemon must not be running
    #[arg(long, conflicts_with = "install_cni")]
    leave: bool,
    /// With --leave: how long to wait for Felix; if its chains do not appear, nothing is removed
    #[arg(long, value_name = "SECONDS", default_value_t = FELIX_TIMEOUT_SECONDS, requires = "leave", conflicts_with = "now")]
    felix_timeout: u64,
    /// With --leave: remove policy immediately. Running containers have no policy until another engine applies its own
    #[arg(long, requires = "leave")]
    now: bool,
    /// With --leave: also remove interfaces, routes and tunnels. Running containers lose their network
    #[arg(long, requires = "leave")]
    purge: bool,
}

pub fn run(
    command: NodeCommand,
    logs: Arc<dyn LogControl>,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = command.node;
    args.install_cni = command.install_cni;
    // Several threads also on a small machine, since some tasks block on the kernel or the disk.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    if command.leave {
        let pods = if command.purge { LivePodHandling::CutOff } else { LivePodHandling::Kept };
        let mut handover = PolicyHandover::ToFelix(Duration::from_secs(command.felix_timeout));
        if command.now {
            handover = PolicyHandover::Now;
        }
        for line in runtime.block_on(tortie_node::leave(&args, pods, handover))? {
            writeln!(out, "{line}")?;
        }
        if pods == LivePodHandling::Kept {
            writeln!(out, "kept: interfaces, addresses and routes of containers")?;
        }
        writeln!(out, "this host is no node any more")?;
        return Ok(());
    }
    let outcome = runtime.block_on(tortie_node::run(args, tortie_ctl::release::API_LEVEL, logs));
    // Tasks that are still running are abandoned; the next start reverts unfinished operations.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    Ok(outcome?)
}
