//! `tortie l7`: HTTP policy with Envoy. The same commands as `dikastes server`, `dikastes client` and `dikastes health`.

use crate::logging::DaemonLogging;
use clap::{Args, Subcommand, ValueEnum};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tortie_compute::LogSeverity;
use tortie_ctl::CommandError;
use tortie_l7::{
    AccessLogLevel, CheckSettings, DEFAULT_DIAL_PATH, DEFAULT_LISTEN_PATH, DEFAULT_MAX_CONNECTIONS,
    DEFAULT_MAX_POLICY_BYTES, DEFAULT_MAX_REQUEST_BYTES, HealthProbe, MAX_MESSAGE_BYTES, ProbeError,
    ServeOptions, TestRequest, UnsyncedVerdict, ask_health, send_check,
};
use tortie_plan::PolicyDirection;

/// Variables of Dikastes for the HTTP server whose `/terminate` stops the process.
const TERMINATE_PORT_VARIABLE: &str = "DIKASTES_HTTP_BIND_PORT";
const TERMINATE_ADDRESS_VARIABLE: &str = "DIKASTES_HTTP_BIND_ADDR";
/// Without an address only processes of the same pod can stop the server.
const DEFAULT_TERMINATE_ADDRESS: &str = "127.0.0.1";
/// Exit statuses of health probes, as those of Dikastes.
const EXIT_PROBE_FAILED: u8 = 2;
const EXIT_UNHEALTHY: u8 = 3;
/// Worker threads of the server. More only help a proxy with more than 100,000 requests per second.
const WORKER_THREADS: usize = 2;

#[derive(Args, Debug)]
pub struct L7Args {
    #[command(subcommand)]
    command: L7Command,
}

#[derive(Debug, Subcommand)]
enum L7Command {
    /// Answer authorization requests of Envoy with the policy that the node sends
    ///
    /// Run one server next to the Envoy of each workload. It listens on a Unix socket that Envoy's ext_authz filters
    /// use, and follows the policy-sync socket of the node. SIGTERM stops it gracefully; with DIKASTES_HTTP_BIND_PORT
    /// set, a request for /terminate on that port does too.
    #[command(
        visible_alias = "server",
        after_help = "Examples:
  tortie l7 serve                                             with the sockets of Calico's sidecar template
  tortie l7 serve -l /run/authz.sock -d /run/policy/socket    with other sockets
  tortie l7 serve --access-log all --denial-header x-denied-by while a policy is tested"
    )]
    Serve(Box<ServeArgs>),
    /// Send one authorization request to a server and print the verdict
    ///
    /// Exit status: 0 if the request is allowed, 1 if it is denied, 2 if the server does not answer.
    #[command(after_help = "Examples:
  tortie l7 client shop web                                   may the service account shop/web send GET / ?
  tortie l7 client shop web --method POST --path /orders --source 10.65.0.2:40000 --destination 10.65.0.3:80")]
    Client(ClientArgs),
    /// Check the health of a server
    ///
    /// Exit status: 0 if it is healthy, 1 for wrong arguments, 2 if the server does not answer, 3 if it is not healthy.
    Health(HealthArgs),
}

#[derive(Args, Debug)]
struct ServeArgs {
    /// Unix socket for Envoy; a stale one is replaced
    #[arg(short, long, value_name = "PATH", default_value = DEFAULT_LISTEN_PATH)]
    listen: PathBuf,
    /// Permissions of the socket for Envoy
    #[arg(long, value_name = "OCTAL", default_value = "777", value_parser = parse_mode)]
    listen_mode: u32,
    /// Policy-sync socket of the node
    #[arg(short, long, value_name = "PATH", default_value = DEFAULT_DIAL_PATH)]
    dial: PathBuf,
    /// Log more
    #[arg(long)]
    debug: bool,
    /// The policies to evaluate: those for traffic to the workload, or from it
    #[arg(long, value_enum, default_value = "ingress")]
    direction: DirectionArg,
    /// Verdict until the node has sent the policy of the workload, and when the policy is stale
    #[arg(long, value_enum, default_value = "deny")]
    not_synced: UnsyncedArg,
    /// How long the last policy is used after the connection to the node is lost, in seconds [default: for ever]
    #[arg(long, value_name = "SECONDS")]
    stale_after: Option<u64>,
    /// Let rules with HTTP conditions match connections without HTTP attributes, as Dikastes does
    #[arg(long)]
    http_rules_on_connections: bool,
    /// Decisions that are logged, at most 100 per second
    #[arg(long, value_enum, default_value = "denied")]
    access_log: AccessLogArg,
    /// Response header that names the rule to a client whose request is denied [default: none]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    denial_header: String,
    /// Address for Prometheus metrics, such as 127.0.0.1:9099 [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// Maximum number of connections of Envoy
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_MAX_CONNECTIONS as u64,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    max_connections: u64,
    /// Maximum size of an authorization request; raise it if Envoy sends bodies
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_REQUEST_BYTES as u64,
        value_parser = clap::value_parser!(u64).range(64 << 10..=MAX_MESSAGE_BYTES as u64))]
    max_request_bytes: u64,
    /// Memory limit of the policy of the workload
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_POLICY_BYTES as u64,
        value_parser = clap::value_parser!(u64).range(1 << 20..))]
    max_policy_bytes: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DirectionArg {
    Ingress,
    Egress,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UnsyncedArg {
    Deny,
    Allow,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AccessLogArg {
    Off,
    Denied,
    All,
}

#[derive(Args, Debug)]
struct ClientArgs {
    /// Namespace of the service account that sends the request
    namespace: String,
    /// Name of the service account
    account: String,
    /// HTTP method
    #[arg(long, default_value = "GET")]
    method: String,
    /// HTTP path
    #[arg(long, default_value = "/")]
    path: String,
    /// Ask about a connection without HTTP attributes
    #[arg(long, conflicts_with_all = ["method", "path"])]
    connection: bool,
    /// Address and port of the sender
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1024", value_parser = parse_address)]
    source: SocketAddr,
    /// Address and port of the workload
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:80", value_parser = parse_address)]
    destination: SocketAddr,
    /// Trust domain of the certificate
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    trust_domain: String,
    /// Unix socket of the server
    #[arg(short, long, value_name = "PATH", default_value = DEFAULT_LISTEN_PATH)]
    dial: PathBuf,
}

#[derive(Args, Debug)]
struct HealthArgs {
    /// Alive: the server answers. Ready: the policy of the workload is in sync
    #[arg(value_enum)]
    probe: ProbeArg,
    /// Unix socket of the server
    #[arg(long, short = 'd', value_name = "PATH", default_value = DEFAULT_LISTEN_PATH)]
    dial_path: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProbeArg {
    Liveness,
    Readiness,
}

pub fn run(args: L7Args, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    match args.command {
        L7Command::Serve(args) => serve(*args).map(|()| ExitCode::SUCCESS),
        L7Command::Client(args) => ask(&args, out),
        L7Command::Health(args) => probe(&args, out),
    }
}

/// Serves until SIGTERM, SIGINT or `/terminate`.
fn serve(args: ServeArgs) -> Result<(), CommandError> {
    // Malloc arenas are as many as workers, so that the memory of a sidecar stays small.
    tortie_process::share_heaps();
    DaemonLogging::start_at(if args.debug { LogSeverity::Debug } else { LogSeverity::Info });
    let options = args.into_options()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build()?;
    runtime.block_on(tortie_l7::run(options)).map_err(CommandError::message)
}

impl ServeArgs {
    fn into_options(self) -> Result<ServeOptions, CommandError> {
        let not_synced = match self.not_synced {
            UnsyncedArg::Deny => UnsyncedVerdict::Deny,
            UnsyncedArg::Allow => UnsyncedVerdict::Allow,
        };
        let direction = match self.direction {
            DirectionArg::Ingress => PolicyDirection::Ingress,
            DirectionArg::Egress => PolicyDirection::Egress,
        };
        let access_log = match self.access_log {
            AccessLogArg::Off => AccessLogLevel::Off,
            AccessLogArg::Denied => AccessLogLevel::Denied,
            AccessLogArg::All => AccessLogLevel::All,
        };
        Ok(ServeOptions {
            listen: self.listen,
            listen_mode: self.listen_mode,
            dial: self.dial,
            check: CheckSettings {
                direction,
                not_synced,
                http_rules_on_connections: self.http_rules_on_connections,
                denial_header: self.denial_header,
            },
            stale_after: self.stale_after.map(Duration::from_secs),
            access_log,
            max_connections: usize::try_from(self.max_connections).unwrap_or(usize::MAX),
            max_request_bytes: usize::try_from(self.max_request_bytes).unwrap_or(usize::MAX),
            max_policy_bytes: usize::try_from(self.max_policy_bytes).unwrap_or(usize::MAX),
            metrics: self.metrics_listen,
            terminate: read_terminate_address()?,
        })
    }
}

/// Returns the address of the HTTP server for `/terminate`, if the environment requests one.
fn read_terminate_address() -> Result<Option<(String, u16)>, CommandError> {
    let Some(port) = std::env::var(TERMINATE_PORT_VARIABLE).ok().filter(|port| !port.is_empty()) else {
        return Ok(None);
    };
    let number = port.parse::<u16>().ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| {
        CommandError::message(format!("{TERMINATE_PORT_VARIABLE}: {port:?} is not a port from 1 to 65535"))
    })?;
    let address = std::env::var(TERMINATE_ADDRESS_VARIABLE).ok().filter(|address| !address.is_empty());
    Ok(Some((address.unwrap_or_else(|| DEFAULT_TERMINATE_ADDRESS.to_owned()), number)))
}

fn ask(args: &ClientArgs, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    let http = (!args.connection).then(|| (args.method.clone(), args.path.clone()));
    let ClientArgs { namespace, account, trust_domain, source, destination, .. } = args;
    let request = TestRequest {
        principal: format!("spiffe://{trust_domain}/ns/{namespace}/sa/{account}"),
        source: *source,
        destination: *destination,
        http,
    };
    let response = match wait_for(send_check(&args.dial, &request))? {
        Ok(response) => response,
        Err(error) => return Ok(report_failure(&error)),
    };
    let code = response.status.unwrap_or_default().code;
    let name = match code {
        0 => "OK",
        3 => "INVALID_ARGUMENT",
        7 => "PERMISSION_DENIED",
        13 => "INTERNAL",
        _ => "an unknown status",
    };
    writeln!(out, "{name} ({code})")?;
    for header in response.denied_response.into_iter().flat_map(|denied| denied.headers) {
        let header = header.header.unwrap_or_default();
        writeln!(out, "{}: {}", header.key, header.value)?;
    }
    Ok(ExitCode::from(u8::from(code != 0)))
}

fn probe(args: &HealthArgs, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    let (probe, healthy) = match args.probe {
        ProbeArg::Liveness => (HealthProbe::Liveness, "alive"),
        ProbeArg::Readiness => (HealthProbe::Readiness, "ready"),
    };
    match wait_for(ask_health(&args.dial_path, probe))? {
        Ok(true) => {
            writeln!(out, "{healthy}")?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(false) => {
            writeln!(out, "not {healthy}: the policy of the workload is not in sync")?;
            Ok(ExitCode::from(EXIT_UNHEALTHY))
        }
        Err(error) => Ok(report_failure(&error)),
    }
}

fn report_failure(error: &ProbeError) -> ExitCode {
    // Ignore write errors: the exit status still reports the failure.
    let _ = writeln!(io::stderr(), "{error}");
    ExitCode::from(EXIT_PROBE_FAILED)
}

fn wait_for<T>(asked: impl Future<Output = T>) -> io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(asked))
}

/// An argument that has the wrong form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ArgumentFormatError {
    #[error("{0:?} is not an octal mode from 0 to 777")]
    Mode(String),
    #[error("{0:?} is not an address with or without a port")]
    Address(String),
}

fn parse_mode(text: &str) -> Result<u32, ArgumentFormatError> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| ArgumentFormatError::Mode(text.to_owned()))
}

/// Parses an address with an optional port.
fn parse_address(text: &str) -> Result<SocketAddr, ArgumentFormatError> {
    match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(address), _) => Ok(address),
        (_, Ok(address)) => Ok(SocketAddr::new(address, 0)),
        _ => Err(ArgumentFormatError::Address(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        _args: L7Args,
    }

    #[test]
    fn arguments_of_dikastes_are_understood() {
        for args in [
            &["l7", "server", "-l", "/a", "-d", "/b", "--debug"][..],
            &["l7", "server", "--listen", "/a", "--dial=/b"],
            &["l7", "client", "ns", "account", "--method", "POST", "-d", "/a"],
            &["l7", "health", "liveness"],
            &["l7", "health", "readiness", "--dial-path", "/a"],
        ] {
            assert!(TestCli::try_parse_from(args).is_ok(), "{args:?}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("777"), Ok(0o777));
        assert_eq!(parse_mode("0600"), Ok(0o600));
        assert!(parse_mode("888").is_err() && parse_mode("1777").is_err());
    }
}
