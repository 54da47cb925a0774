//! `tortie node`: runs this host's node in the foreground.

use clap::Args;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tortie_node::{LivePods, Logs, NodeArgs, PolicyHandover};

/// How long the end of the daemon waits for requests that are being worked on.
const PATIENCE: Duration = Duration::from_secs(2);

/// For calico-node to start and to write its chains.
pub const FELIX_TIMEOUT_SECONDS: u64 = 120;

#[derive(Args, Debug)]
pub struct NodeCommand {
    #[command(flatten)]
    node: NodeArgs,
    /// Install the CNI plugins, their configuration and, where there is Kubernetes, a kubeconfig with a token that is kept
    /// fresh; into /opt/cni/bin (CNI_BIN_DIR) and /etc/cni/net.d (CNI_NET_DIR), or the same below /host where that is mounted
    #[arg(long, env = "TORTIE_INSTALL_CNI")]
    install_cni: bool,
    /// Give the host back to Calico and end: wait until the chains of Felix guard every endpoint that our policy guards, then
    /// remove what --install-cni has installed, policy, our rules in the chains of others and our files. Containers that
    /// still run keep their interfaces, addresses and routes. The daemon must not run
    #[arg(long, conflicts_with = "install_cni")]
    leave: bool,
    /// With --leave: how long to wait for Felix; without its chains nothing is removed
    #[arg(long, value_name = "SECONDS", default_value_t = FELIX_TIMEOUT_SECONDS, requires = "leave", conflicts_with = "now")]
    felix_timeout: u64,
    /// With --leave: remove policy at once. Containers that still run are without policy until another engine has theirs
    #[arg(long, requires = "leave")]
    now: bool,
    /// With --leave: remove interfaces, routes and tunnels too. Containers that still run lose their network
    #[arg(long, requires = "leave")]
    purge: bool,
}

pub fn run(command: NodeCommand, logs: Arc<dyn Logs>, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut args = command.node;
    args.install_cni = command.install_cni;
    // Also on a small machine: some of what they do waits for the kernel or the disk.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    if command.leave {
        let pods = if command.purge { LivePods::CutOff } else { LivePods::Kept };
        let handover = match command.now {
            true => PolicyHandover::Now,
            false => PolicyHandover::ToFelix(Duration::from_secs(command.felix_timeout)),
        };
        for line in runtime.block_on(tortie_node::leave(&args, pods, handover))? {
            writeln!(out, "{line}")?;
        }
        if pods == LivePods::Kept {
            writeln!(out, "kept interfaces, addresses and routes of containers, for whoever comes next")?;
        }
        writeln!(out, "this host is no node any more")?;
        return Ok(());
    }
    let outcome = runtime.block_on(tortie_node::run(args, tortie_ctl::release::API_LEVEL, logs));
    // What is still at work waits for a runtime that is gone; the next start undoes what it had begun.
    runtime.shutdown_timeout(PATIENCE);
    Ok(outcome?)
}
