//! `tortie diff`: finds the pairs of endpoints whose verdict changes if resources are applied or deleted.
//!
//! Compares the verdicts of the policies and profiles of both ends on the first packet of a flow. Endpoints
//! that no rule distinguishes are evaluated once (`groups`), ports that no rule distinguishes are evaluated
//! once (`traffic_class`), and ends that the change does not affect are not evaluated at all (`touched`).

mod change;
mod compare;
mod groups;
mod subject;
mod summary;
#[cfg(test)]
mod tests;
mod touched;
mod traffic_class;

pub(crate) use change::{changed, placed};

use super::cluster::Cluster;
use super::explain::Format;
use crate::cli::{Connection, Global, Namespace, Reading};
use crate::failure::{Failure, Result};
use crate::{input, session};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tortie diff -f policy.yaml             what if this were applied?
  tortie diff -f policy.yaml --delete    what if it were deleted?
  tortie diff -f manifests/ -o json      for programs")]
pub struct Diff {
    /// A file, "-" for standard input, or a directory of .yaml, .yml and .json files
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: PathBuf,
    /// Compare with the resources deleted instead of applied
    #[arg(long)]
    pub delete: bool,
    #[command(flatten)]
    pub reading: Reading,
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
    #[command(flatten)]
    pub namespace: Namespace,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub global: Global,
}

/// Prints the changes and returns whether there are any.
pub async fn diff(args: &Diff, out: &mut dyn Write) -> Result<bool> {
    let resources = input::resources(&args.filename, args.reading.recursive, args.reading.skip_empty)?;
    let store = session::connect(&args.connection, &args.global).await?;
    let mut before = Cluster::load(&store).await?;
    let namespace = args.namespace.namespace.as_deref();
    let resources = placed(resources, namespace).map_err(Failure::Message)?;
    for resource in &resources {
        before.load_one(&store, resource).await?;
    }
    let (after, objects) = changed(&before, resources, args.delete).map_err(Failure::Message)?;
    let comparison = compare::compare(&before, &after, compare::PATIENCE);
    let summary = summary::summarise(objects, &comparison);
    match args.output {
        Format::Text => out.write_all(summary.text().as_bytes())?,
        Format::Json => {
            let json = serde_json::to_string_pretty(&summary)
                .map_err(|error| Failure::message(error.to_string()))?;
            writeln!(out, "{json}")?;
        }
    }
    out.flush()?;
    Ok(summary.changes())
}
