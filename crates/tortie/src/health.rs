//! `tortie health`: reports the result of a node probe as its exit status. Also translates the command names used in
//! manifests, `calico component node health --felix-live ...` and `calico-node -felix-live ...`, including those of the
//! controllers, of Goldmane, of whisker-backend and of Dikastes.

use crate::up;
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tortie_ctl::CommandError;
use tortie_ctl::node::{request, send};
use tortie_node::{ComponentHealth, HealthLevel, NodeHealth};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  tortie health
  tortie health --felix-live --felix-ready --bird-ready      as a probe of Kubernetes")]
pub struct HealthArgs {
    /// Check that the node's daemon is alive
    #[arg(long)]
    felix_live: bool,
    /// Check that the node is in sync with the datastore, and BGP is ready
    #[arg(long)]
    felix_ready: bool,
    /// Check that the BGP speaker is alive
    #[arg(long)]
    bird_live: bool,
    /// The same as --bird-live: one speaker serves both families
    #[arg(long)]
    bird6_live: bool,
    /// Check the BGP sessions over IPv4
    #[arg(long)]
    bird_ready: bool,
    /// Check the BGP sessions over IPv6
    #[arg(long)]
    bird6_ready: bool,
    /// Time after the start during which all sessions must be established; after it, one is enough
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    threshold_time: Duration,
    /// Directory of the node's sockets
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie")]
    run_dir: PathBuf,
}

fn parse_duration(text: &str) -> Result<Duration, CommandError> {
    let parsed = text.parse::<tortie_model::scalar::GoDuration>().ok().and_then(|duration| duration.to_std());
    parsed.ok_or_else(|| CommandError::message(format!("{text:?} is not a duration like 30s")))
}

/// Translates the command lines of Calico's programs to those of `tortie`.
pub fn translate_command_line(args: Vec<OsString>) -> Vec<OsString> {
    let text: Vec<&str> = args.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let name = text.first().and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str());
    match (name, text.get(1..).unwrap_or_default()) {
        (Some("calico"), ["component", "node", "health", rest @ ..]) => health_command_line(rest),
        (Some("calico"), ["component", part @ ("typha" | "apiserver" | "webhooks"), ..]) => {
            let name = if *part == "typha" { "hub" } else { *part };
            let words = ["tortie", name].map(OsString::from);
            words.into_iter().chain(args.into_iter().skip(3)).collect()
        }
        (Some("calico"), ["component", "goldmane", ..]) => flows_command_line("serve", args),
        (Some("calico"), ["component", "whisker-backend", ..]) => flows_command_line("whisker-backend", args),
        (Some("calico"), ["component", "dikastes", ..]) => l7_command_line(args.into_iter().skip(3)),
        (Some("dikastes"), _) => l7_command_line(args.into_iter().skip(1)),
        (Some("healthz"), rest) => healthz_command_line(rest),
        (Some("calico-node"), rest) => health_command_line(rest),
        (Some("calico"), ["component", "kube-controllers", rest @ ..]) => controllers_command_line(rest),
        (Some("check-status"), rest) => controllers_command_line(rest),
        _ => args,
    }
}

fn health_command_line(flags: &[&str]) -> Vec<OsString> {
    let flags = flags.iter().map(|word| match word.strip_prefix('-') {
        Some(flag) if !flag.starts_with('-') => OsString::from(format!("--{flag}")),
        _ => OsString::from(*word),
    });
    ["tortie", "health"].map(OsString::from).into_iter().chain(flags).collect()
}

fn flows_command_line(command: &str, args: Vec<OsString>) -> Vec<OsString> {
    ["tortie", "flows", command].map(OsString::from).into_iter().chain(args.into_iter().skip(3)).collect()
}

fn l7_command_line(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    ["tortie", "l7"].map(OsString::from).into_iter().chain(args).collect()
}

/// Translates the arguments of the health probe of Dikastes, whose option has one dash.
fn healthz_command_line(flags: &[&str]) -> Vec<OsString> {
    let flags = flags.iter().map(|word| match word.strip_prefix("-dialPath") {
        Some(value) => format!("--dial-path{value}"),
        None => (*word).to_owned(),
    });
    ["tortie", "l7", "health"].map(OsString::from).into_iter().chain(flags.map(OsString::from)).collect()
}

fn controllers_command_line(flags: &[&str]) -> Vec<OsString> {
    let flags = flags.iter().map(|word| if *word == "-f" { "--status-file" } else { *word });
    ["tortie", "controllers"].into_iter().chain(flags).map(OsString::from).collect()
}

type HealthCheck<'a> = (&'static str, Box<dyn Fn() -> Result<(), CommandError> + Sync + Send + 'a>);

pub fn run(args: &HealthArgs, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    let checks = select_checks(args);
    if checks.is_empty() {
        return print_all(args, out);
    }
    // Run the checks in parallel: a probe has a time limit.
    let outcomes: Vec<Result<(), CommandError>> = std::thread::scope(|scope| {
        let running: Vec<_> = checks.iter().map(|(_, check)| scope.spawn(check)).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.map(|outcome| outcome.unwrap_or_else(|_| Err(CommandError::message("failed")))).collect()
    });
    let mut code = ExitCode::SUCCESS;
    for ((what, _), outcome) in checks.iter().zip(outcomes) {
        if let Err(reason) = outcome {
            // Turns "ready: BIRD" into the sentence that Calico's probe prints, which users know from events.
            let (quality, part) = what.split_once(": ").unwrap_or((what, ""));
            writeln!(out, "calico/node is not {quality}: {part} is not {quality}: {reason}")?;
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Returns the checks that the flags select.
fn select_checks(args: &HealthArgs) -> Vec<HealthCheck<'_>> {
    let mut checks: Vec<HealthCheck<'_>> = Vec::new();
    for (asked, what, bad) in [
        (args.felix_live, "live: Felix", HealthLevel::NotLive),
        (args.felix_ready, "ready: Felix", HealthLevel::NotReady),
    ] {
        if asked {
            checks.push((what, Box::new(move || check_felix(&args.run_dir, bad))));
        }
    }
    for (asked, what) in [(args.bird_live, "live: BIRD"), (args.bird6_live, "live: BIRD6")] {
        if asked {
            checks.push((what, Box::new(|| request(&args.run_dir, "bgp peers").map(drop))));
        }
    }
    for (asked, what, v6) in
        [(args.bird_ready, "ready: BIRD", false), (args.bird6_ready, "ready: BIRD6", true)]
    {
        if asked {
            let query = json!({"ask": "bgp ready", "v6": v6, "patience": args.threshold_time.as_secs()});
            checks.push((what, Box::new(move || send(&args.run_dir, &query).map(drop))));
        }
    }
    checks
}

/// Prints a line for each part. The exit status is that of the worst part.
fn print_all(args: &HealthArgs, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    let health = match load_health(&args.run_dir) {
        Ok(health) => health,
        Err(reason) => {
            writeln!(out, "{:<9}  node: {reason}", "NOT LIVE")?;
            return Ok(ExitCode::from(2));
        }
    };
    for ComponentHealth { name, level, message } in &health.parts {
        let word = match level {
            HealthLevel::Ok => "ok",
            HealthLevel::Warning => "warning",
            HealthLevel::NotReady => "NOT READY",
            HealthLevel::NotLive => "NOT LIVE",
        };
        writeln!(out, "{word:<9}  {name}: {message}")?;
    }
    for daemon in ["node", "datastore"] {
        let lost = up::dropped_lines(&args.run_dir.join(format!("{daemon}.log")));
        if lost > 0 {
            let word = "warning";
            writeln!(
                out,
                "{word:<9}  log: {lost} lines of the {daemon} were dropped; make room in {}",
                args.run_dir.display()
            )?;
        }
    }
    Ok(ExitCode::from(match health.worst() {
        HealthLevel::Ok | HealthLevel::Warning => 0,
        HealthLevel::NotReady => 1,
        HealthLevel::NotLive => 2,
    }))
}

/// Queries the node over its own socket, which is always enabled, unlike the health port.
fn load_health(run_dir: &Path) -> Result<NodeHealth, CommandError> {
    serde_json::from_value(request(run_dir, "health")?)
        .map_err(|error| CommandError::context("the node's answer cannot be read", error))
}

fn check_felix(run_dir: &Path, bad: HealthLevel) -> Result<(), CommandError> {
    let health = load_health(run_dir)?;
    let reasons: Vec<String> = health
        .parts
        .iter()
        .filter(|part| part.level >= bad)
        .map(|part| format!("{}: {}", part.name, part.message))
        .collect();
    if reasons.is_empty() { Ok(()) } else { Err(CommandError::message(reasons.join("; "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_mean_the_same() {
        let words = |line: &str| -> String {
            let args = translate_command_line(line.split(' ').map(OsString::from).collect());
            args.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let ours = "tortie health --felix-live --threshold-time 5s";
        assert_eq!(words("/bin/calico component node health --felix-live --threshold-time 5s"), ours);
        assert_eq!(words("calico-node -felix-live -threshold-time 5s"), ours);
        assert_eq!(words("calico-node --felix-live --threshold-time 5s"), ours);
        assert_eq!(
            words("calico component kube-controllers --health-port 9440"),
            "tortie controllers --health-port 9440"
        );
        assert_eq!(words("/dikastes server -l /a --debug"), "tortie l7 server -l /a --debug");
        assert_eq!(words("calico component dikastes client a b"), "tortie l7 client a b");
        assert_eq!(words("/healthz liveness"), "tortie l7 health liveness");
        let ours = "tortie l7 health --dial-path /a readiness";
        assert_eq!(words("healthz -dialPath /a readiness"), ours);
        assert_eq!(words("/usr/bin/check-status -r -f x"), "tortie controllers -r --status-file x");
        assert_eq!(words("calico component typha -c x.cfg"), "tortie hub -c x.cfg");
        assert_eq!(words("calico component goldmane --port 7443"), "tortie flows serve --port 7443");
        assert_eq!(words("/usr/bin/calico component whisker-backend"), "tortie flows whisker-backend");
        for unchanged in ["calico", "tortie health -x", "calicoctl get nodes"] {
            assert_eq!(words(unchanged), unchanged);
        }
    }
}
