//! `calicoctl cluster`: diagnostics of the whole cluster.

use crate::cli::{ConnectionArgs, GlobalArgs};
use crate::failure::CommandResult;
use crate::node::diags::DiagsBundle;
use crate::session;
use clap::{Args, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use tortie_model::Kind;
use tortie_store::StoreError;

#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Collect all resources of the cluster in one archive; secrets are left out
    ///
    /// To collect the diagnostics of a node, run calicoctl node diags on it.
    #[command(after_help = "Example:
  calicoctl cluster diags")]
    Diags(ClusterDiagsArgs),
}

#[derive(Debug, Args)]
struct ClusterDiagsArgs {
    /// Directory for the archive
    #[arg(long, value_name = "DIR", default_value = ".")]
    output_dir: PathBuf,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub async fn run(args: &ClusterArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let ClusterCommand::Diags(args) = &args.command;
    writeln!(out, "==== Begin collecting diagnostics. ====")?;
    let store = session::connect(&args.connection, global).await?;
    let mut bundle = DiagsBundle::new(&args.output_dir, "calico-diagnostics")?;
    for kind in Kind::ALL.iter().copied() {
        let text = match store.list_all(kind, None).await {
            Ok((list, unreadable)) => {
                for error in &unreadable {
                    bundle.record_missing(kind.plural(), &error.to_string());
                }
                let unreadable: String = unreadable.iter().map(|error| format!("{error}\n")).collect();
                format!("{:#}\n{unreadable}", list.to_value())
            }
            // Some datastores do not support every kind.
            Err(StoreError::NotSupported { .. }) => continue,
            Err(error) => {
                bundle.record_missing(kind.plural(), &error.to_string());
                format!("{error}\n")
            }
        };
        bundle.write(&format!("{}.json", kind.plural()), &text)?;
    }
    writeln!(out, "==== Producing a diagnostics bundle. ====")?;
    bundle.finish("Diagnostic bundle created at", out)
}
