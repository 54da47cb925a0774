//! `tortie bgp`: shows the state of the node's BGP speaker, for troubleshooting.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tortie_ctl::CommandError;
use tortie_ctl::node::request;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  tortie bgp peers
  tortie bgp routes
  tortie bgp watch
  tortie lab exec node1 -- tortie bgp peers")]
pub struct BgpArgs {
    /// Directory of the node's sockets
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie", global = true)]
    run_dir: PathBuf,
    #[command(subcommand)]
    command: BgpCommand,
}

#[derive(Debug, Subcommand)]
enum BgpCommand {
    /// Show the sessions: state, number of routes, last error
    Peers {
        /// Output format
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "text")]
        output: BgpOutputFormat,
    },
    /// Show every path to every prefix
    ///
    /// * is the best path, = shares its traffic (multipath), ! has a next hop that cannot be reached.
    Routes {
        /// Output format
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "text")]
        output: BgpOutputFormat,
    },
    /// Print a line whenever a session changes its state, until interrupted
    Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BgpOutputFormat {
    Text,
    Json,
}

pub fn run(args: &BgpArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    match &args.command {
        BgpCommand::Peers { output } => {
            let answer = request(&args.run_dir, "bgp peers")?;
            show(out, *output, &answer, "peers", &PEER_COLUMNS, peer)
        }
        BgpCommand::Routes { output } => {
            let answer = request(&args.run_dir, "bgp routes")?;
            show(out, *output, &answer, "routes", &ROUTE_COLUMNS, route)
        }
        BgpCommand::Watch => watch(&args.run_dir, out),
    }
}

const PEER_COLUMNS: [&str; 8] = ["NAME", "ADDRESS", "ASN", "STATE", "FOR", "RECEIVED", "SENT", "LAST ERROR"];
const ROUTE_COLUMNS: [&str; 7] = ["", "PREFIX", "NEXT HOP", "FROM", "PREFERENCE", "PATH", "COMMUNITIES"];

fn show<const N: usize>(
    out: &mut dyn Write,
    format: BgpOutputFormat,
    answer: &Value,
    part: &str,
    headers: &[&str; N],
    row: fn(&Value) -> [String; N],
) -> Result<(), CommandError> {
    if format == BgpOutputFormat::Json {
        return Ok(writeln!(out, "{answer:#}")?);
    }
    let mut lines = vec![headers.map(str::to_owned)];
    lines.extend(answer[part].as_array().into_iter().flatten().map(row));
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

fn format_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn peer(peer: &Value) -> [String; 8] {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let age = now.as_secs().saturating_sub(peer["since"].as_u64().unwrap_or_default());
    [
        format_value(&peer["name"]),
        format_value(&peer["address"]),
        format_value(&peer["asn"]),
        format_value(&peer["state"]),
        format!("{age}s"),
        format_value(&peer["received"]),
        format_value(&peer["sent"]),
        format_value(&peer["error"]),
    ]
}

fn route(route: &Value) -> [String; 7] {
    let mark = if route["best"] == true {
        "*"
    } else if route["used"] == true {
        "="
    } else if route["reachable"] == false {
        "!"
    } else {
        ""
    };
    let [path, communities] = ["asPath", "communities"].map(|key| {
        let items: Vec<String> = route[key].as_array().into_iter().flatten().map(format_value).collect();
        items.join(" ")
    });
    let from = if route["peer"].is_null() { "this node".to_owned() } else { format_value(&route["peer"]) };
    [
        mark.to_owned(),
        format_value(&route["prefix"]),
        format_value(&route["nextHop"]),
        from,
        format_value(&route["localPref"]),
        path,
        communities,
    ]
}

fn watch(run_dir: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut known = std::collections::BTreeMap::new();
    loop {
        let answer = request(run_dir, "bgp peers")?;
        let mut current = std::collections::BTreeMap::new();
        for peer in answer["peers"].as_array().into_iter().flatten() {
            let name = format_value(&peer["name"]);
            let state = format_value(&peer["state"]);
            if known.get(&name) != Some(&state) {
                writeln!(
                    out,
                    "{name}  {}  {state}  {}",
                    format_value(&peer["address"]),
                    format_value(&peer["error"])
                )?;
            }
            current.insert(name, state);
        }
        for name in known.keys().filter(|name| !current.contains_key(*name)) {
            writeln!(out, "{name}  gone")?;
        }
        out.flush()?;
        known = current;
        std::thread::sleep(POLL_INTERVAL);
    }
}
