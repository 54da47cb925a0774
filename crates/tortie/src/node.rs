//! `tortie node`: runs this host's node in the foreground.

use clap::Args;
use std::error::Error;
use std::io::Write;
use std::time::Duration;
use tortie_compute::LogSeverity;
use tortie_node::{NodeArgs, install};

/// How long the end of the daemon waits for requests that are being worked on.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub struct NodeCommand {
    #[command(flatten)]
    node: NodeArgs,
    /// Install the CNI plugins, their configuration and, where there is Kubernetes, a kubeconfig with a token that is kept
    /// fresh; into /opt/cni/bin (CNI_BIN_DIR) and /etc/cni/net.d (CNI_NET_DIR), or the same below /host where that is mounted
    #[arg(long, env = "TORTIE_INSTALL_CNI")]
    install_cni: bool,
    /// Remove what --install-cni has installed, and end
    #[arg(long, conflicts_with = "install_cni")]
    uninstall_cni: bool,
    /// Give the host back and end: remove policy, rules and files of ours; pods keep their interfaces, addresses and routes
    #[arg(long, conflicts_with_all = ["install_cni", "uninstall_cni"])]
    leave: bool,
}

pub fn run(
    command: NodeCommand,
    log: impl Fn(LogSeverity) + Send + Sync + 'static,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let mut args = command.node;
    if command.uninstall_cni {
        for file in install::remove(&args.state_dir)? {
            writeln!(out, "removed {}", file.display())?;
        }
        return Ok(());
    }
    if command.leave {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for what in runtime.block_on(tortie_node::leave(&args))? {
            writeln!(out, "removed {what}")?;
        }
        writeln!(out, "kept interfaces, addresses and routes of pods, for whoever comes next")?;
        return Ok(());
    }
    args.install_cni = command.install_cni;
    // Also on a small machine: some of what they do waits for the kernel or the disk.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    let outcome = runtime.block_on(tortie_node::run(args, tortie_ctl::release::API_LEVEL, log));
    // What is still at work waits for a runtime that is gone; the next start undoes what it had begun.
    runtime.shutdown_timeout(PATIENCE);
    Ok(outcome?)
}
