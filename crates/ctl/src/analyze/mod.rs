//! `tortie analyze`: finds likely mistakes in the configuration of a cluster.
//!
//! A check is a function of the whole cluster that returns findings; each is a file in `checks`. The checks
//! read only the store and use the reference evaluator of policies, so no node has to run. Nodes publish facts that
//! only they know, such as devices that their kernel lacks, in their Node objects.

mod checks;
mod finding;
#[cfg(test)]
mod tests;
mod warnings;

pub use finding::AnalysisFinding;
pub(crate) use warnings::warn;

use crate::cli::{ConnectionArgs, FileReadArgs, GlobalArgs, NamespaceArgs};
use crate::failure::CommandResult;
use crate::policy::{EnforcedPlan, PolicyCluster, ReportFormat, apply_changes, resolve_namespaces};
use crate::{input, session};
use checks::{CONSEQUENCES, INVALID_SELECTOR_CHECK, NODE_REPORTED_CHECKS};
use clap::Args;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use tortie_model::Kind;
use tortie_store::ResourceClient;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tortie analyze                 the cluster as it is
  tortie analyze -f new.yaml     the cluster with these resources applied
  tortie analyze -o json         for programs
  tortie analyze || exit 1       in a CI job")]
pub struct AnalyzeArgs {
    /// Analyse the cluster as if these resources were applied: a file, "-" for standard input, or a directory
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    #[command(flatten)]
    pub reading: FileReadArgs,
    /// Directory of the passwords of BGP peers; if it exists, missing passwords are reported
    #[arg(long, value_name = "DIR", env = "TORTIE_SECRETS_DIR", default_value = "/etc/calico/secrets")]
    pub secrets_dir: PathBuf,
    /// Output format
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "text")]
    pub output: ReportFormat,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// The input of the checks.
struct AnalyzedCluster {
    cluster: PolicyCluster,
    /// The plan of a hypothetical node that hosts every endpoint of the cluster.
    enforced: EnforcedPlan,
    secrets: Option<PathBuf>,
    /// Names and MTUs of this host's interfaces that are up.
    interfaces: Vec<(String, u32)>,
}

/// Prints the findings and returns whether there are any. `interfaces` are those of this host, with their
/// MTUs.
pub async fn analyze(
    args: &AnalyzeArgs,
    interfaces: Vec<(String, u32)>,
    out: &mut dyn Write,
) -> CommandResult<bool> {
    let store = session::connect(&args.connection, &args.global).await?;
    let mut cluster = load_cluster(&store).await?;
    if let Some(file) = &args.filename {
        let resources = input::resources(file, args.reading.recursive, args.reading.skip_empty)?;
        let resources = resolve_namespaces(resources, &args.namespace)?;
        cluster = apply_changes(&cluster, resources, false)?.0;
    }
    let secrets = Some(args.secrets_dir.clone()).filter(|dir| dir.is_dir());
    let mut findings = run_checks(cluster, secrets, interfaces);
    if args.filename.is_some() {
        findings.retain(|finding| !NODE_REPORTED_CHECKS.contains(&finding.check));
    }
    match args.output {
        ReportFormat::Text => out.write_all(finding::render(&findings).as_bytes())?,
        ReportFormat::Json => {
            writeln!(out, "{}", serde_json::to_string_pretty(&findings)?)?;
        }
    }
    out.flush()?;
    Ok(!findings.is_empty())
}

/// Loads all resources that the checks need.
pub async fn load_cluster(store: &ResourceClient) -> tortie_store::StoreResult<PolicyCluster> {
    let mut cluster = PolicyCluster::load(store).await?;
    for kind in [Kind::IPPool, Kind::BGPPeer, Kind::BGPFilter] {
        cluster.load_kind(store, kind).await?;
    }
    Ok(cluster)
}

/// Runs all checks that need only the datastore, and returns the findings, sorted by object.
pub fn find_mistakes(cluster: PolicyCluster) -> Vec<AnalysisFinding> {
    run_checks(cluster, None, Vec::new())
}

/// Runs all checks and returns the findings, sorted by object.
fn run_checks(
    cluster: PolicyCluster,
    secrets: Option<PathBuf>,
    interfaces: Vec<(String, u32)>,
) -> Vec<AnalysisFinding> {
    let enforced = cluster.enforced_everywhere();
    let subject = AnalyzedCluster { cluster, enforced, secrets, interfaces };
    let mut findings: Vec<AnalysisFinding> =
        checks::ALL_CHECKS.iter().flat_map(|check| check(&subject)).collect();
    drop_consequences(&mut findings);
    findings.sort();
    findings.dedup();
    findings
}

/// Drops findings about objects that match nothing if the reason is an invalid selector.
fn drop_consequences(findings: &mut Vec<AnalysisFinding>) {
    let invalid: BTreeSet<String> = findings
        .iter()
        .filter(|finding| finding.check == INVALID_SELECTOR_CHECK)
        .map(|finding| finding.object.clone())
        .collect();
    findings.retain(|finding| !invalid.contains(&finding.object) || !CONSEQUENCES.contains(&finding.check));
}
