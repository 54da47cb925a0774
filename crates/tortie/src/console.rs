//! `tortie console`: the web page, with the options of its listener and of the flow collector.

use crate::logging::DaemonLogging;
use clap::Args;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use tortie_compute::LogSeverity;
use tortie_console::{ConsoleListen, ConsoleOptions, run_console};
use tortie_ctl::CommandError;
use tortie_ctl::cli::ConnectionArgs;
use tortie_ctl::session::connect_quietly;
use tortie_flows::CollectorTarget;

/// Worker threads: requests wait for the datastore most of the time.
const WORKER_THREADS: usize = 2;
const GROUP_FILE: &str = "/etc/group";

#[derive(Args, Debug)]
pub struct ConsoleArgs {
    /// Address of the page. Port 0 means a free one. Addresses that other hosts reach need client certificates
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070", conflicts_with = "socket")]
    listen: SocketAddr,
    /// Serve on a Unix socket instead, for root and --socket-group; forward it with ssh -L
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Group whose members may connect to the socket: a name in /etc/group, or a number
    #[arg(long, value_name = "GROUP", requires = "socket")]
    socket_group: Option<String>,
    /// Certificate of the page, with --tls-key and --client-ca
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    tls_cert: Option<PathBuf>,
    /// Private key of this certificate
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    tls_key: Option<PathBuf>,
    /// CA that signs the certificates of users; every certificate that it has signed may use the page
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    client_ca: Option<PathBuf>,
    /// Collector of flow records (`tortie flows serve`, or Goldmane); without one the page shows no traffic
    #[arg(long, value_name = "HOST:PORT", env = "GOLDMANE_HOST")]
    collector: Option<String>,
    /// Name in the certificate of the collector [default: the host]
    #[arg(long, value_name = "NAME")]
    collector_name: Option<String>,
    /// Certificate for the collector
    #[arg(long, value_name = "FILE", env = "TLS_CERT_PATH")]
    collector_cert: Option<PathBuf>,
    /// Private key of this certificate
    #[arg(long, value_name = "FILE", env = "TLS_KEY_PATH")]
    collector_key: Option<PathBuf>,
    /// CA of the collector's certificate
    #[arg(long, value_name = "FILE", env = "CA_CERT_PATH")]
    collector_ca: Option<PathBuf>,
    /// Minimum severity of log lines
    #[arg(long, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "warning", value_parser = crate::flows::parse_log_level)]
    log_level: LogSeverity,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Serves the page until SIGTERM or SIGINT.
pub fn run(args: &ConsoleArgs) -> Result<(), CommandError> {
    DaemonLogging::start_at(args.log_level);
    // Mistakes in the options are reported before the datastore is contacted.
    let (listen, collector) = (args.choose_listener()?, args.choose_collector()?);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(WORKER_THREADS).enable_all().build()?;
    runtime.block_on(async {
        let store = connect_quietly(&args.connection).await?;
        run_console(ConsoleOptions { listen, store, collector }).await.map_err(CommandError::message)
    })
}

impl ConsoleArgs {
    fn choose_listener(&self) -> Result<ConsoleListen, CommandError> {
        if let Some(path) = &self.socket {
            let group = self.socket_group.as_deref().map(find_group).transpose()?;
            return Ok(ConsoleListen::Socket { path: path.clone(), group });
        }
        let files = [&self.tls_cert, &self.tls_key, &self.client_ca].map(Clone::clone);
        let [certificate, key, ca] = files;
        ConsoleListen::tcp(self.listen, certificate, key, ca).map_err(CommandError::message)
    }

    fn choose_collector(&self) -> Result<Option<CollectorTarget>, CommandError> {
        let Some(server) = self.collector.clone().filter(|server| !server.is_empty()) else {
            return Ok(None);
        };
        let file = |path: &Option<PathBuf>, option: &str, variable: &str| {
            path.clone().ok_or_else(|| {
                CommandError::message(format!(
                    "the collector {server} needs a client certificate: give {option} FILE or set {variable}"
                ))
            })
        };
        Ok(Some(CollectorTarget {
            certificate: file(&self.collector_cert, "--collector-cert", "TLS_CERT_PATH")?,
            key: file(&self.collector_key, "--collector-key", "TLS_KEY_PATH")?,
            authority: file(&self.collector_ca, "--collector-ca", "CA_CERT_PATH")?,
            server_name: self.collector_name.clone(),
            server,
        }))
    }
}

/// Returns the number of a group.
fn find_group(group: &str) -> Result<u32, CommandError> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let text = fs::read_to_string(GROUP_FILE)
        .map_err(|error| CommandError::context(format!("--socket-group: cannot read {GROUP_FILE}"), error))?;
    parse_group(&text, group).ok_or_else(|| {
        CommandError::message(format!("--socket-group {group:?}: {GROUP_FILE} has no such group"))
    })
}

fn parse_group(text: &str, group: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1))?.and_then(|number| number.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        console: ConsoleArgs,
    }

    fn parse(args: &[&str]) -> ConsoleArgs {
        TestCli::try_parse_from(["console"].iter().chain(args)).unwrap().console
    }

    #[test]
    fn groups_are_found_by_name() {
        let text = "root:x:0:\nadm:x:4:syslog,user\nadmin:x:117:\n";
        assert_eq!(parse_group(text, "adm"), Some(4));
        assert_eq!(parse_group(text, "admin"), Some(117));
        assert_eq!(parse_group(text, "x"), None);
        assert_eq!(find_group("42").unwrap(), 42);
    }

    #[test]
    fn collectors_need_certificates() {
        assert_eq!(parse(&[]).choose_collector().unwrap(), None);
        let error = parse(&["--collector", "a:1"]).choose_collector().unwrap_err().to_string();
        assert!(error.contains("--collector-cert FILE"), "{error}");
    }
}
