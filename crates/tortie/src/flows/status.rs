//! `tortie flows status`: counters, losses and memory of flow records.

use super::sources::{NodePlace, NodeSourceArgs};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::io::Write;
use tortie_ctl::node::request;
use tortie_ctl::{CommandError, layout};
use tortie_store::printable::escape_controls;

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    nodes: NodeSourceArgs,
    /// Output format; json prints one object per node
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: StatusOutputFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusOutputFormat {
    Table,
    Json,
}

/// The lines of the table: a title, and the place of the number in the response of the node.
const STATUS_LINES: [(&str, &str); 24] = [
    ("allowed connections", "/allowedConnections"),
    ("denied packets", "/deniedPackets"),
    ("allowed connections, counted only", "/countedOnly/allowedConnections"),
    ("denied packets, counted only", "/countedOnly/deniedPackets"),
    ("ended connections: established", "/endedConnections/established"),
    ("ended connections: refused", "/endedConnections/refused"),
    ("ended connections: unanswered", "/endedConnections/unanswered"),
    ("connections without a known opening", "/endedConnections/unknown"),
    ("kernel and plan agree", "/evaluation/agreements"),
    ("kernel and plan disagree", "/evaluation/disagreements"),
    ("rule not known", "/evaluation/unidentified"),
    ("lost openings", "/lost/openings"),
    ("lost endings", "/lost/endings"),
    ("lost by the recorder", "/lost/receiver"),
    ("incomplete reads of the kernel", "/lost/reads"),
    ("keys not remembered", "/lost/keys"),
    ("connections not followed", "/lost/connections"),
    ("flows in memory", "/memory/flows"),
    ("memory of flows in bytes", "/memory/flowBytes"),
    ("flows combined under `other`", "/memory/foldedFlows"),
    ("live connections", "/memory/connections"),
    ("memory of keys in bytes", "/memory/keyBytes"),
    ("flows sent to the collector", "/collector/sent"),
    ("flows confirmed by the collector", "/collector/confirmed"),
];

/// Prints the status of the nodes. It is an error if one does not respond.
pub fn run(args: &StatusArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut errors = Vec::new();
    for place in args.nodes.places()? {
        match request(&place.run_dir, "flows") {
            Ok(status) => print(args.output, &place, status, out)?,
            Err(error) if place.name.is_empty() => return Err(error),
            Err(error) => errors.push(format!("node {}: {error}", place.name)),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(CommandError::message(errors.join("\n"))) }
}

fn print(
    format: StatusOutputFormat,
    place: &NodePlace,
    mut status: Value,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    if format == StatusOutputFormat::Json {
        if !place.name.is_empty() {
            status["node"] = json!(place.name);
        }
        return Ok(writeln!(out, "{status}")?);
    }
    if !place.name.is_empty() {
        writeln!(out, "node {}", escape_controls(&place.name))?;
    }
    write!(out, "{}", layout(&table(&status)))?;
    for (title, path) in [("last disagreement", "/evaluation/last"), ("collector", "/collector/error")] {
        if let Some(text) = status.pointer(path).and_then(Value::as_str) {
            writeln!(out, "{title}: {}", escape_controls(text))?;
        }
    }
    Ok(())
}

/// Returns the lines of the table that the status has.
fn table(status: &Value) -> Vec<Vec<String>> {
    let lines = STATUS_LINES.iter();
    lines
        .filter_map(|(title, path)| {
            Some(vec![(*title).to_owned(), status.pointer(path)?.as_u64()?.to_string()])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_numbers_are_printed() {
        let status = json!({"allowedConnections": 5, "collector": null, "lost": {"openings": 2}});
        let expected = [["allowed connections", "5"], ["lost openings", "2"]];
        assert_eq!(table(&status), expected);
    }
}
