//! `calicoctl node status`: prints the table of BGP sessions in Calico's format.

use super::request;
use crate::failure::{CommandError, CommandResult};
use crate::ipam::bordered_table::{self, ColumnAlign};
use serde_json::Value;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const STATUS_HEADERS: [&str; 5] = ["PEER ADDRESS", "PEER TYPE", "STATE", "SINCE", "INFO"];

pub fn print(run_dir: &Path, out: &mut dyn Write) -> CommandResult<()> {
    match UnixStream::connect(run_dir.join("node.sock")) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(CommandError::message("Need super user privileges: Operation not permitted"));
        }
        Err(_) => return Err(CommandError::message("Calico process is not running.")),
        Ok(_) => writeln!(out, "Calico process is running.")?,
    }
    let answer = match request(run_dir, "bgp peers") {
        Ok(answer) => answer,
        Err(error) => {
            writeln!(out, "\nThe BGP backend process is not running: {error}\n")?;
            return Ok(());
        }
    };
    let peers: Vec<&Value> = answer["peers"].as_array().into_iter().flatten().collect();
    for (family, is_v6) in [("IPv4", false), ("IPv6", true)] {
        let peers = peers.iter().filter(|peer| format_address(peer).contains(':') == is_v6);
        let rows: Vec<[String; 5]> = peers.filter_map(|peer| build_row(peer)).collect();
        writeln!(out, "\n{family} BGP status")?;
        if rows.is_empty() {
            writeln!(out, "No {family} peers found.")?;
        } else {
            bordered_table::print(out, STATUS_HEADERS, [ColumnAlign::Natural; 5], &rows)?;
        }
    }
    Ok(writeln!(out)?)
}

fn format_address(peer: &Value) -> &str {
    peer["address"].as_str().unwrap_or_default()
}

fn build_row(peer: &Value) -> Option<[String; 5]> {
    let name = peer["name"].as_str()?;
    let kind = match name.split_once('_')?.0 {
        "Mesh" => "node-to-node mesh",
        "Global" => "global",
        "Node" => "node specific",
        _ => return None,
    };
    let state = peer["state"].as_str().unwrap_or_default();
    let up = if state == "Established" { "up" } else { "start" };
    let info = match peer["error"].as_str() {
        Some(error) if state != "Established" => format!("{state} {error}"),
        _ => state.to_owned(),
    };
    Some([format_address(peer).to_owned(), kind.to_owned(), up.to_owned(), format_since(peer), info])
}

/// Returns the time of day if the event was today, otherwise the date.
fn format_since(peer: &Value) -> String {
    let then = peer["since"].as_i64().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let Some(then) = then else { return String::new() };
    let day = then.strftime("%Y-%m-%d").to_string();
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    if day == today { then.strftime("%H:%M:%S").to_string() } else { day }
}
