//! Warns when a written object is likely a mistake. The warnings are the findings of `tortie analyze` about
//! that object; the object is stored nevertheless.

use super::checks::NODE_REPORTED_CHECKS;
use super::finding::AnalysisFinding;
use super::{load_cluster, run_checks};
use crate::namespace::RequestedNamespace;
use crate::policy::PolicyCluster;
use crate::verbs;
use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tortie_model::{KeyRange, Kind, Resource};
use tortie_store::{PageRequest, ResourceClient};

/// Maximum number of endpoints. In larger clusters the check would delay the command noticeably; run `tortie
/// analyze` there.
const MAX_ENDPOINTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1999);
const WARNING_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_SECRETS_DIR: &str = "/etc/calico/secrets";

/// The kinds that users write.
const CHECKED_KINDS: [Kind; 9] = [
    Kind::NetworkPolicy,
    Kind::GlobalNetworkPolicy,
    Kind::Tier,
    Kind::IPPool,
    Kind::BGPPeer,
    Kind::BGPFilter,
    Kind::FelixConfiguration,
    Kind::HostEndpoint,
    Kind::Profile,
];

/// Findings about selectors that match nothing: reported only if the cluster has any endpoints or nodes.
const ENDPOINT_DEPENDENT_CHECKS: [&str; 2] = ["policy-selects-nothing", "rule-matches-nothing"];
const NODE_DEPENDENT_CHECKS: [&str; 2] = ["pool-without-nodes", "peer-without-node"];

/// Prints warnings on standard error. Findings that cannot be computed in time are not reported.
pub(crate) async fn warn(store: &ResourceClient, mut written: Vec<Resource>, asked: RequestedNamespace<'_>) {
    written.retain(|resource| CHECKED_KINDS.contains(&resource.kind()));
    written.retain_mut(|resource| verbs::set_namespace(resource, asked).is_ok());
    if written.is_empty() {
        return;
    }
    let looking = async {
        let endpoints = KeyRange::all(Kind::WorkloadEndpoint);
        let first = store.client().list_page(&endpoints, &PageRequest::first(MAX_ENDPOINTS)).await.ok()?;
        if first.next.is_some() {
            return None;
        }
        let secrets = Some(PathBuf::from(DEFAULT_SECRETS_DIR)).filter(|dir| Path::new(dir).is_dir());
        Some(render_warnings(load_cluster(store).await.ok()?, &written, secrets))
    };
    if let Ok(Some(text)) = tokio::time::timeout(WARNING_TIMEOUT, looking).await {
        // Ignore write errors: standard error may be closed.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

pub(super) fn render_warnings(
    cluster: PolicyCluster,
    written: &[Resource],
    secrets: Option<PathBuf>,
) -> String {
    let objects: BTreeSet<String> = written.iter().map(Resource::identify).collect();
    let settings = written.iter().any(|resource| resource.kind() == Kind::FelixConfiguration);
    let has_endpoints = cluster.workloads().next().is_some() || cluster.host_endpoints().next().is_some();
    let has_nodes = cluster.nodes().next().is_some();
    let mut text = String::new();
    for AnalysisFinding { object, check, reason, advice } in run_checks(cluster, secrets, Vec::new()) {
        let is_written = objects.contains(&object) || (settings && object == "FelixConfiguration");
        if is_written
            && !NODE_REPORTED_CHECKS.contains(&check)
            && (has_endpoints || !ENDPOINT_DEPENDENT_CHECKS.contains(&check))
            && (has_nodes || !NODE_DEPENDENT_CHECKS.contains(&check))
        {
            text += &format!("Warning: {object}: {reason}\n  {advice}\n");
        }
    }
    text
}
