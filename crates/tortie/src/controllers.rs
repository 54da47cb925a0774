//! `tortie controllers`: runs the controllers in the foreground, or checks their status.

use clap::Args;
use std::io::Write;
use std::process::ExitCode;
use tortie_controllers::{ControllersArgs, ProbeKind, check};
use tortie_ctl::CommandError;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  DATASTORE_TYPE=kubernetes KUBECONFIG=admin.conf tortie controllers
  ETCD_ENDPOINTS=https://10.0.0.5:2379 KUBECONFIG=admin.conf tortie controllers
  tortie controllers -r                                 as a probe of Kubernetes: are they ready?")]
pub struct ControllersCommand {
    #[command(flatten)]
    args: ControllersArgs,
    /// Only report whether the controllers that write the status file are ready
    #[arg(short = 'r', long = "readiness", conflicts_with = "liveness")]
    readiness: bool,
    /// Only report whether the controllers that write the status file are alive
    #[arg(short = 'l', long = "liveness")]
    liveness: bool,
}

impl ControllersCommand {
    /// Returns the requested probe, if any.
    pub fn probe(&self) -> Option<ProbeKind> {
        match (self.readiness, self.liveness) {
            (true, _) => Some(ProbeKind::Readiness),
            (_, true) => Some(ProbeKind::Liveness),
            _ => None,
        }
    }
}

pub fn answer(
    command: &ControllersCommand,
    probe: ProbeKind,
    out: &mut dyn Write,
) -> Result<ExitCode, CommandError> {
    match check(&command.args.status_file, probe) {
        Ok(()) => {
            writeln!(out, "Ready")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(reasons) => {
            writeln!(out, "{reasons}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

pub fn run(command: ControllersCommand) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(tortie_controllers::run(command.args)).map_err(CommandError::message)
}
