//! `tortie health`: the answer a probe of the node waits for, as exit code. Also under the names that manifests use:
//! `calico component node health --felix-live ...` and `calico-node -felix-live ...`.

use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tortie_ctl::Failure;
use tortie_ctl::node::{ask, put};

/// Probes are given ten seconds.
const PATIENCE: Duration = Duration::from_secs(8);

/// Check this host's node; exits with 1 and says why if something is not as it should be
#[derive(Args, Debug)]
pub struct HealthArgs {
    /// The node's daemon lives
    #[arg(long)]
    felix_live: bool,
    /// The node does what the datastore says, and BGP is up
    #[arg(long)]
    felix_ready: bool,
    /// The node speaks BGP
    #[arg(long)]
    bird_live: bool,
    /// The node speaks BGP; one speaker does for both families
    #[arg(long)]
    bird6_live: bool,
    /// The sessions over IPv4 are up
    #[arg(long)]
    bird_ready: bool,
    /// The sessions over IPv6 are up
    #[arg(long)]
    bird6_ready: bool,
    /// How long after its start BGP waits for all peers; afterwards one session is enough
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    threshold_time: Duration,
    /// Where the node's sockets are
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie")]
    run_dir: PathBuf,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<tortie_model::scalar::Duration>().ok().and_then(|duration| duration.to_std());
    parsed.ok_or_else(|| format!("{text:?} is not a duration like 30s"))
}

/// The words of other programs for this.
pub fn in_our_words(args: Vec<OsString>) -> Vec<OsString> {
    let text: Vec<&str> = args.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let name = text.first().and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str());
    let ours = |rest: &[&str]| {
        let rest = rest.iter().map(|word| match word.strip_prefix('-') {
            Some(flag) if !flag.starts_with('-') => OsString::from(format!("--{flag}")),
            _ => OsString::from(*word),
        });
        ["tortie", "health"].map(OsString::from).into_iter().chain(rest).collect()
    };
    match (name, text.get(1..).unwrap_or_default()) {
        (Some("calico"), ["component", "node", "health", rest @ ..]) => ours(rest),
        (Some("calico-node"), rest) => ours(rest),
        _ => args,
    }
}

type Check<'a> = (&'static str, Box<dyn Fn() -> Result<(), String> + Sync + Send + 'a>);

pub fn run(args: &HealthArgs, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut checks: Vec<Check<'_>> = Vec::new();
    for (asked, what, page) in
        [(args.felix_live, "live: Felix", "liveness"), (args.felix_ready, "ready: Felix", "readiness")]
    {
        if asked {
            checks.push((what, Box::new(move || felix(page))));
        }
    }
    for (asked, what) in [(args.bird_live, "live: BIRD"), (args.bird6_live, "live: BIRD6")] {
        if asked {
            checks.push((what, Box::new(|| said(ask(&args.run_dir, "bgp peers")))));
        }
    }
    for (asked, what, v6) in
        [(args.bird_ready, "ready: BIRD", false), (args.bird6_ready, "ready: BIRD6", true)]
    {
        if asked {
            let question = json!({"ask": "bgp ready", "v6": v6, "patience": args.threshold_time.as_secs()});
            checks.push((what, Box::new(move || said(put(&args.run_dir, &question)))));
        }
    }
    if checks.is_empty() {
        writeln!(out, "calico/node check error: no check was asked for; see --help")?;
        return Ok(ExitCode::FAILURE);
    }
    // All at once: a probe has a time limit.
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let running: Vec<_> = checks.iter().map(|(_, check)| scope.spawn(check)).collect();
        let outcome = |thread: std::thread::ScopedJoinHandle<'_, Result<(), String>>| thread.join();
        running
            .into_iter()
            .map(|thread| outcome(thread).unwrap_or_else(|_| Err("failed".to_owned())))
            .collect()
    });
    let mut code = ExitCode::SUCCESS;
    for ((what, _), outcome) in checks.iter().zip(outcomes) {
        if let Err(reason) = outcome {
            // "ready: BIRD" in the sentence that people know from their events.
            let (quality, part) = what.split_once(": ").unwrap_or((what, ""));
            writeln!(out, "calico/node is not {quality}: {part} is not {quality}: {reason}")?;
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

fn said<T>(answer: Result<T, Failure>) -> Result<(), String> {
    answer.map(drop).map_err(|failure| failure.to_string())
}

/// Asks the page of that name where the node serves its health.
fn felix(page: &str) -> Result<(), String> {
    let variable = |name: &str, usual: &str| {
        std::env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| usual.to_owned())
    };
    let place = (variable("FELIX_HEALTHHOST", "localhost"), variable("FELIX_HEALTHPORT", "9099"));
    let place = format!("{}:{}", place.0, place.1);
    let answer = fetch(&place, page).map_err(|error| format!("{page} of {place}: {error}"))?;
    let code: Option<u16> = answer.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    let told = answer.split_once("\r\n\r\n").map(|(_, body)| body.trim().replace('\n', "; "));
    match code {
        Some(200..400) => Ok(()),
        Some(code) => Err(format!("{page} probe reporting {code}: {}", told.unwrap_or_default())),
        None => Err(format!("{page} of {place} is not HTTP")),
    }
}

fn fetch(place: &str, page: &str) -> std::io::Result<String> {
    let mut last = std::io::Error::other("it has no address");
    for address in place.to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = format!("GET /{page} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(1 << 20).read_to_end(&mut answer)?;
        return Ok(String::from_utf8_lossy(&answer).into_owned());
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_mean_the_same() {
        let words = |line: &str| -> String {
            let args = in_our_words(line.split(' ').map(OsString::from).collect());
            args.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let ours = "tortie health --felix-live --threshold-time 5s";
        assert_eq!(words("/bin/calico component node health --felix-live --threshold-time 5s"), ours);
        assert_eq!(words("calico-node -felix-live -threshold-time 5s"), ours);
        assert_eq!(words("calico-node --felix-live --threshold-time 5s"), ours);
        for unchanged in ["calico", "tortie health -x", "calicoctl get nodes"] {
            assert_eq!(words(unchanged), unchanged);
        }
    }
}
