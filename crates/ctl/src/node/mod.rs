//! `calicoctl node`: commands for this host's node. They query its daemon over a Unix socket.

mod checksystem;
pub(crate) mod diags;
mod run;
mod status;

use crate::failure::{CommandError, CommandResult};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::{self, Write};
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
        CtlNodeCommand::Diags(args) => diags::collect(args, out),
        CtlNodeCommand::Checksystem { kernel_config } => checksystem::check(kernel_config.as_deref(), out),
    }
}

/// Sends a named request to the node's daemon and returns the response.
pub fn request(run_dir: &Path, name: &str) -> CommandResult<Value> {
    send(run_dir, &json!({"ask": name}))
}

/// Sends a request with parameters to the node's daemon and returns the response.
pub fn send(run_dir: &Path, request: &Value) -> CommandResult<Value> {
    let path = run_dir.join("node.sock");
    let text = exchange(&path, request).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => CommandError::at(&path, &error),
        _ => CommandError::message(format!("{}: {error}; is the node running on this host?", path.display())),
    })?;
    let response: Value = serde_json::from_str(&text)
        .map_err(|error| CommandError::context(path.display().to_string(), error))?;
    match response["error"].as_str() {
        Some(error) => Err(CommandError::message(error)),
        None => Ok(response),
    }
}

fn exchange(socket: &Path, request: &Value) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(NODE_RESPONSE_TIMEOUT))?;
    stream.write_all(request.to_string().as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    io::read_to_string(stream)
}
