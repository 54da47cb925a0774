//! `tortie diff`: finds the pairs of endpoints whose verdict changes if resources are applied or deleted.
//!
//! Compares the verdicts of the policies and profiles of both ends on the first packet of a flow. Endpoints
//! that no rule distinguishes are evaluated once (`groups`), ports that no rule distinguishes are evaluated
//! once (`traffic_class`), and ends that the change does not affect are not evaluated at all (`differences`).

mod change;
mod compare;
mod differences;
mod groups;
mod subject;
mod summary;
#[cfg(test)]
mod tests;
mod traffic_class;

pub use change::ChangeError;
pub(crate) use change::{apply_changes, resolve_namespaces};

pub use summary::DiffSummary;

use super::cluster::PolicyCluster;
use super::explain::ReportFormat;
use crate::cli::{ConnectionArgs, FileReadArgs, GlobalArgs, NamespaceArgs};
use crate::failure::CommandResult;
use crate::{input, session};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use tortie_model::Resource;
use tortie_store::ResourceClient;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tortie diff -f policy.yaml             what if this were applied?
  tortie diff -f policy.yaml --delete    what if it were deleted?
  tortie diff -f manifests/ -o json      for programs")]
pub struct DiffArgs {
    /// A file, "-" for standard input, or a directory of .yaml, .yml and .json files
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: PathBuf,
    /// Compare with the resources deleted instead of applied
    #[arg(long)]
    pub delete: bool,
    #[command(flatten)]
    pub reading: FileReadArgs,
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "text")]
    pub output: ReportFormat,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// Prints the changes and returns whether there are any.
pub async fn diff(args: &DiffArgs, out: &mut dyn Write) -> CommandResult<bool> {
    let resources = input::resources(&args.filename, args.reading.recursive, args.reading.skip_empty)?;
    let store = session::connect(&args.connection, &args.global).await?;
    let mut before = PolicyCluster::load(&store).await?;
    let resources = load_for_change(&store, &mut before, resources, &args.namespace).await?;
    let summary = summarize_change(&before, resources, args.delete)?;
    match args.output {
        ReportFormat::Text => out.write_all(summary.text().as_bytes())?,
        ReportFormat::Json => {
            writeln!(out, "{}", serde_json::to_string_pretty(&summary)?)?;
        }
    }
    out.flush()?;
    Ok(summary.changes())
}

/// Resolves the namespaces of the resources, and loads those that exist in the store and are of kinds that policy does not
/// depend on.
pub async fn load_for_change(
    store: &ResourceClient,
    cluster: &mut PolicyCluster,
    resources: Vec<Resource>,
    namespace: &NamespaceArgs,
) -> CommandResult<Vec<Resource>> {
    let resources = resolve_namespaces(resources, namespace)?;
    for resource in &resources {
        cluster.load_one(store, resource).await?;
    }
    Ok(resources)
}

/// Computes the effect of applying or deleting the resources. Takes a processor for seconds in large clusters.
pub fn summarize_change(
    before: &PolicyCluster,
    resources: Vec<Resource>,
    delete: bool,
) -> Result<DiffSummary, ChangeError> {
    let (after, objects) = apply_changes(before, resources, delete)?;
    let comparison = compare::compare(before, &after, compare::MAX_VERDICTS);
    Ok(summary::summarise(objects, &comparison))
}
