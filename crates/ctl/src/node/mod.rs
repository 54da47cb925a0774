//! `calicoctl node`: commands for this host's node. They query its daemon over a Unix socket.

mod checksystem;
pub(crate) mod diags;
mod run;
mod status;

use crate::failure::{CommandError, CommandResult};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NODE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct CtlNodeArgs {
    #[command(subcommand)]
    command: CtlNodeCommand,
}

#[derive(Debug, Subcommand)]
enum CtlNodeCommand {
    /// Show whether this host's node is running, and its BGP sessions
    Status {
        /// Directory with the node's sockets
        #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie")]
        run_dir: PathBuf,
    },
    Run(run::RunArgs),
    /// Collect diagnostics of this host's node in one archive; secrets are left out
    #[command(after_help = "Examples:
  calicoctl node diags
  calicoctl node diags --log-dir /var/log/calico")]
    Diags(diags::NodeDiagsArgs),
    /// Check that this host's kernel has the features that a node needs
    Checksystem {
        /// Kernel configuration file, if not in the default location
        #[arg(short = 'f', long, value_name = "FILE")]
        kernel_config: Option<PathBuf>,
    },
}

pub fn run(args: &CtlNodeArgs, out: &mut dyn Write) -> CommandResult<()> {
    match &args.command {
        CtlNodeCommand::Status { run_dir } => status::print(run_dir, out),
        CtlNodeCommand::Run(args) => run::run(args, out),
        CtlNodeCommand::Diags(args) => diags::of_node(args, out),
        CtlNodeCommand::Checksystem { kernel_config } => checksystem::check(kernel_config.as_deref(), out),
    }
}

/// Sends a named request to the node's daemon and returns the response.
pub fn ask(run_dir: &Path, question: &str) -> CommandResult<Value> {
    put(run_dir, &json!({"ask": question}))
}

/// Sends a request with parameters to the node's daemon and returns the response.
pub fn put(run_dir: &Path, question: &Value) -> CommandResult<Value> {
    let path = run_dir.join("node.sock");
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => CommandError::at(&path, &error),
        _ => CommandError::Message(format!("{}: {error}; is the node running on this host?", path.display())),
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(NODE_RESPONSE_TIMEOUT)).map_err(failed)?;
    stream.write_all(question.to_string().as_bytes()).map_err(failed)?;
    stream.shutdown(std::net::Shutdown::Write).map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    let answer: Value = serde_json::from_str(&text)
        .map_err(|error| CommandError::Message(format!("{}: {error}", path.display())))?;
    match answer["error"].as_str() {
        Some(error) => Err(CommandError::Message(error.to_owned())),
        None => Ok(answer),
    }
}
