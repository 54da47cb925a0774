//! `tortie flows`: runs the flow collector or the endpoints of Whisker, and reads flows from a collector or from nodes.

mod read;
mod serve;
mod sources;
mod status;

use clap::{Args, Subcommand};
use read::ReadArgs;
use serve::{ServeArgs, WhiskerArgs};
use status::StatusArgs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tortie_compute::LogSeverity;
use tortie_ctl::CommandError;
use tortie_flows::CollectorTarget;
use tortie_model::scalar::GoDuration;

#[derive(Args, Debug)]
pub struct FlowsArgs {
    #[command(subcommand)]
    command: FlowsCommand,
}

#[derive(Debug, Subcommand)]
enum FlowsCommand {
    /// Run a collector of flow records (Calico's Goldmane)
    ///
    /// Calico's Felix sends flows to it, and Whisker, `tortie flows list` or any client of Goldmane reads them. Keeps one
    /// hour in memory. All clients need a certificate that the CA signed. Settings have the names of Goldmane's variables.
    #[command(after_help = "Examples:
  SERVER_CERT_PATH=tls.crt SERVER_KEY_PATH=tls.key CA_CERT_PATH=ca.crt tortie flows serve
  tortie flows serve --port 7443 --cert tls.crt --key tls.key --ca ca.crt --metrics-port 9081")]
    Serve(Box<ServeArgs>),
    /// Run the HTTPS endpoints that Calico's console Whisker reads (Calico's whisker-backend)
    #[command(after_help = "Example:
  GOLDMANE_HOST=collector:7443 tortie flows whisker-backend --tls-cert web.crt --tls-key web.key \\
    --cert client.crt --key client.key --ca ca.crt")]
    WhiskerBackend(Box<WhiskerArgs>),
    /// List the flows of the last hour, the newest first
    ///
    /// Reads from the collector if one is given, else from the node of this host.
    #[command(after_help = "Examples:
  tortie flows list --since 10m --to shop/db --verdict denied
  tortie flows list --namespace shop --verdict would-deny -o wide
  tortie flows list --lab lab --top 10")]
    List(Box<ReadArgs>),
    /// Print flows as they are recorded, until interrupted
    ///
    /// The flows of each 15 seconds are printed another 15 seconds later, when nodes have reported them.
    #[command(after_help = "Example:
  tortie flows follow --verdict denied")]
    Follow(Box<ReadArgs>),
    /// Show counters, losses and memory of the flow records of this host's node
    #[command(after_help = "Example:
  tortie flows status")]
    Status(Box<StatusArgs>),
}

/// A collector and the certificates for it.
#[derive(Args, Debug)]
pub struct CollectorArgs {
    /// Address of the collector
    #[arg(long, value_name = "HOST:PORT", env = "GOLDMANE_HOST")]
    server: Option<String>,
    /// Name in the certificate of the collector [default: the host]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Certificate for the collector
    #[arg(long, value_name = "FILE", env = "TLS_CERT_PATH")]
    cert: Option<PathBuf>,
    /// Private key of this certificate
    #[arg(long, value_name = "FILE", env = "TLS_KEY_PATH")]
    key: Option<PathBuf>,
    /// CA of the collector's certificate
    #[arg(long, value_name = "FILE", env = "CA_CERT_PATH")]
    ca: Option<PathBuf>,
}

impl CollectorArgs {
    /// Returns whether a collector is named.
    fn is_given(&self) -> bool {
        self.server.as_ref().is_some_and(|server| !server.is_empty())
    }

    /// Returns the collector, or the default one if there is a default.
    fn target(&self, default: Option<&str>) -> Result<CollectorTarget, CommandError> {
        let server = self.server.as_deref().filter(|server| !server.is_empty()).or(default);
        let server = server.ok_or_else(|| {
            CommandError::message(
                "no flow collector is configured: give --server HOST:PORT or set GOLDMANE_HOST. \
                 `tortie flows serve` runs a collector; Calico's is goldmane.calico-system.svc:7443",
            )
        })?;
        let file = |path: &Option<PathBuf>, option: &str, variable: &str| {
            path.clone().ok_or_else(|| {
                CommandError::message(format!(
                    "the collector {server} needs a client certificate: give {option} FILE or set {variable}"
                ))
            })
        };
        Ok(CollectorTarget {
            server: server.to_owned(),
            server_name: self.server_name.clone(),
            certificate: file(&self.cert, "--cert", "TLS_CERT_PATH")?,
            key: file(&self.key, "--key", "TLS_KEY_PATH")?,
            authority: file(&self.ca, "--ca", "CA_CERT_PATH")?,
        })
    }
}

pub fn run(args: FlowsArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    match args.command {
        FlowsCommand::Serve(args) => serve::collector(*args),
        FlowsCommand::WhiskerBackend(args) => serve::whisker_backend(*args),
        FlowsCommand::List(args) => block_on(read::list(&args, out)),
        FlowsCommand::Follow(args) => block_on(read::follow(&args, out)),
        FlowsCommand::Status(args) => status::run(&args, out),
    }
}

fn block_on<T>(command: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<GoDuration>().ok().and_then(|duration| duration.to_std());
    parsed.ok_or_else(|| format!("{text:?} is not a duration like 15s or 10m"))
}

/// Parses a level of Goldmane's LOG_LEVEL.
pub fn parse_log_level(text: &str) -> Result<LogSeverity, String> {
    match text.to_lowercase().as_str() {
        "trace" => Ok(LogSeverity::Trace),
        "debug" => Ok(LogSeverity::Debug),
        "" | "info" => Ok(LogSeverity::Info),
        "warn" | "warning" => Ok(LogSeverity::Warning),
        "error" => Ok(LogSeverity::Error),
        "fatal" | "panic" => Ok(LogSeverity::Fatal),
        _ => Err(format!("{text:?} is not trace, debug, info, warning, error or fatal")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        flows: FlowsArgs,
    }

    #[test]
    fn reading_needs_a_collector_and_certificates() {
        let read = |args: &[&str]| {
            let line = ["flows", "list"].iter().chain(args);
            let FlowsCommand::List(args) = TestCli::try_parse_from(line).unwrap().flows.command else {
                panic!("another command");
            };
            args.collector.target(None).map_err(|error| error.to_string())
        };
        let error = read(&[]).unwrap_err();
        assert!(error.starts_with("no flow collector is configured: give --server HOST:PORT"), "{error}");
        let error = read(&["--server", "a:1", "--cert", "c"]).unwrap_err();
        assert!(error.contains("give --key FILE or set TLS_KEY_PATH"), "{error}");
        let target = read(&["--server", "a:1", "--cert", "c", "--key", "k", "--ca", "a"]).unwrap();
        assert_eq!((target.server.as_str(), target.server_name), ("a:1", None));
    }

    #[test]
    fn values_of_goldmane_are_understood() {
        assert_eq!(parse_duration("15s"), Ok(Duration::from_secs(15)));
        assert!(parse_duration("15").is_err());
        assert_eq!(parse_log_level("WARN"), Ok(LogSeverity::Warning));
        assert!(parse_log_level("loud").is_err());
    }
}
