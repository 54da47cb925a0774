//! `tortie flows serve` and `tortie flows whisker-backend`: the daemons, with the variables of Calico's.

use super::{CollectorArgs, parse_duration, parse_log_level};
use crate::logging::DaemonLogging;
use clap::{ArgAction, Args};
use std::path::PathBuf;
use std::time::Duration;
use tortie_compute::LogSeverity;
use tortie_ctl::CommandError;
use tortie_flows::ring::RingOptions;
use tortie_flows::{
    CollectorOptions, DEFAULT_MAX_STREAMS, FlowListenAddress, WhiskerOptions, run_collector,
    run_whisker_backend,
};
use tortie_tls::TlsFiles;

/// The collector of Calico's manifests.
const DEFAULT_COLLECTOR: &str = "goldmane.calico-system.svc:7443";
/// Worker threads of a daemon.
const WORKER_THREADS: usize = 2;
const MAX_WINDOW: Duration = Duration::from_secs(3600);
/// Variables of Goldmane for functions that do not exist here, with the consequence.
const IGNORED_VARIABLES: [(&str, &str); 2] =
    [("PUSH_URL", "flows are not pushed"), ("PROFILE_PORT", "there are no profiles")];

#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Address to listen on [default: all]
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    host: String,
    /// Port for nodes and readers
    #[arg(long, env = "PORT", default_value_t = 443)]
    port: u16,
    /// Certificate of the server
    #[arg(long, value_name = "FILE", env = "SERVER_CERT_PATH")]
    cert: PathBuf,
    /// Private key of this certificate
    #[arg(long, value_name = "FILE", env = "SERVER_KEY_PATH")]
    key: PathBuf,
    /// CA that signs the certificates of nodes and readers
    #[arg(long, value_name = "FILE", env = "CA_CERT_PATH")]
    ca: PathBuf,
    /// Width of a bucket; 240 complete ones are kept
    #[arg(long, value_name = "DURATION", env = "AGGREGATION_WINDOW", default_value = "15s", value_parser = parse_window)]
    aggregation_window: Duration,
    /// Memory limit of the flows in MiB; beyond it, the least active flows are combined under the name `other`
    #[arg(long, value_name = "MIB", env = "TORTIE_FLOWS_MAX_MEMORY", default_value_t = 256,
        value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    max_memory: u64,
    /// Maximum number of streams of readers
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_MAX_STREAMS as u64,
        value_parser = clap::value_parser!(u64).range(1..=10_000))]
    max_streams: u64,
    /// Minimum severity of log lines
    #[arg(long, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "info", value_parser = parse_log_level)]
    log_level: LogSeverity,
    /// Whether to serve /liveness and /readiness
    #[arg(long, value_name = "BOOL", env = "HEALTH_ENABLED", default_value_t = true, action = ArgAction::Set)]
    health_enabled: bool,
    /// Address of these pages [default: all]
    #[arg(long, value_name = "ADDRESS", env = "HEALTH_HOST", default_value = "", hide_default_value = true)]
    health_host: String,
    /// Port of these pages
    #[arg(long, value_name = "PORT", env = "HEALTH_PORT", default_value_t = 8080)]
    health_port: u16,
    /// Port for Prometheus metrics; 0 for none
    #[arg(long, value_name = "PORT", env = "PROMETHEUS_PORT", default_value_t = 0)]
    metrics_port: u16,
}

#[derive(Args, Debug)]
pub struct WhiskerArgs {
    /// Address to listen on [default: all]
    #[arg(long, value_name = "ADDRESS", env = "HOST", default_value = "", hide_default_value = true)]
    host: String,
    /// Port of the endpoints
    #[arg(long, env = "PORT", default_value_t = 8080)]
    port: u16,
    /// Certificate of the HTTPS server
    #[arg(long, value_name = "FILE", env = "SERVER_TLS_CERT_PATH")]
    tls_cert: PathBuf,
    /// Private key of this certificate
    #[arg(long, value_name = "FILE", env = "SERVER_TLS_KEY_PATH")]
    tls_key: PathBuf,
    #[command(flatten)]
    collector: CollectorArgs,
    /// Minimum severity of log lines
    #[arg(long, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "info", value_parser = parse_log_level)]
    log_level: LogSeverity,
}

/// Runs the collector until SIGTERM or SIGINT.
pub fn collector(args: ServeArgs) -> Result<(), CommandError> {
    DaemonLogging::start_at(args.log_level);
    for (variable, consequence) in IGNORED_VARIABLES {
        if std::env::var(variable).is_ok_and(|value| !value.is_empty() && value != "0") {
            tracing::warn!("{variable} is not supported: {consequence}");
        }
    }
    let health = FlowListenAddress { host: args.health_host, port: args.health_port };
    let metrics = FlowListenAddress { host: String::new(), port: args.metrics_port };
    let options = CollectorOptions {
        listen: FlowListenAddress { host: args.host, port: args.port },
        tls: TlsFiles { certificate: args.cert, key: args.key, ca: Some(args.ca) },
        ring: RingOptions {
            window: u32::try_from(args.aggregation_window.as_secs()).unwrap_or(u32::MAX),
            max_bytes: usize::try_from(args.max_memory << 20).unwrap_or(usize::MAX),
        },
        max_streams: usize::try_from(args.max_streams).unwrap_or(usize::MAX),
        health: args.health_enabled.then_some(health),
        metrics: (args.metrics_port > 0).then_some(metrics),
    };
    run_daemon(run_collector(options))
}

/// Runs the endpoints until SIGTERM or SIGINT.
pub fn whisker_backend(args: WhiskerArgs) -> Result<(), CommandError> {
    DaemonLogging::start_at(args.log_level);
    let collector = args.collector.target(Some(DEFAULT_COLLECTOR))?;
    run_daemon(run_whisker_backend(WhiskerOptions {
        listen: FlowListenAddress { host: args.host, port: args.port },
        certificate: args.tls_cert,
        key: args.tls_key,
        collector,
    }))
}

fn run_daemon(
    daemon: impl Future<Output = Result<(), tortie_flows::ServeError>>,
) -> Result<(), CommandError> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(WORKER_THREADS).enable_all().build()?;
    runtime.block_on(daemon).map_err(CommandError::message)
}

/// Parses the width of a bucket: whole seconds.
fn parse_window(text: &str) -> Result<Duration, String> {
    let window = parse_duration(text)?;
    let is_usable = window.subsec_nanos() == 0 && !window.is_zero() && window <= MAX_WINDOW;
    is_usable.then_some(window).ok_or_else(|| format!("{text:?} is not from 1s to 1h in whole seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_seconds() {
        assert_eq!(parse_window("15s"), Ok(Duration::from_secs(15)));
        for bad in ["0s", "1500ms", "2h", "x"] {
            assert!(parse_window(bad).is_err(), "{bad}");
        }
    }
}
