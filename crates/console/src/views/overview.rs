//! Problems of the cluster, and its size.

use super::policies::is_policy;
use super::routing::{PoolItem, SessionItem, list_pools, list_sessions};
use super::{ApiResult, SharedState};
use crate::snapshot::ClusterSnapshot;
use axum::extract::State;
use serde::Serialize;
use std::collections::BTreeSet;
use tortie_ctl::analyze::AnalysisFinding;
use tortie_model::{Kind, Resource};

/// Share of addresses in use from which a pool counts as nearly full.
const NEARLY_FULL_SHARE: f64 = 0.85;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OverviewData {
    findings: Vec<AnalysisFinding>,
    /// Entries of the datastore that cannot be decoded.
    unreadable: Vec<String>,
    warnings: Vec<WarningItem>,
    nearly_full: Vec<PoolItem>,
    /// BGP sessions that nodes report as not established.
    sessions_down: Vec<SessionItem>,
    /// Number of sessions that nodes report; none without CalicoNodeStatus objects.
    sessions: usize,
    size: ClusterSize,
}

/// A mode of the network that is not in force, as the node reports it.
#[derive(Serialize)]
struct WarningItem {
    node: String,
    object: String,
    reason: String,
    advice: String,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterSize {
    nodes: usize,
    workloads: usize,
    host_endpoints: usize,
    namespaces: usize,
    policies: usize,
    staged_policies: usize,
    tiers: usize,
    network_sets: usize,
    pools: usize,
    blocks: usize,
    addresses_in_use: f64,
}

pub async fn show(State(state): SharedState) -> ApiResult {
    state.render_cluster(describe).await
}

fn describe(snapshot: &ClusterSnapshot) -> OverviewData {
    let cluster = &snapshot.cluster;
    let warnings = cluster.nodes().flat_map(|node| {
        let name = &node.metadata.name;
        node.network_warnings().into_iter().map(|warning| WarningItem {
            node: name.clone(),
            object: warning.object,
            reason: warning.reason,
            advice: warning.advice,
        })
    });
    let pools = list_pools(snapshot);
    let sessions = list_sessions(snapshot);
    OverviewData {
        findings: snapshot.findings.clone(),
        unreadable: cluster.unreadable().to_vec(),
        warnings: warnings.collect(),
        size: measure(snapshot),
        nearly_full: pools.into_iter().filter(|pool| pool.usage.share() >= NEARLY_FULL_SHARE).collect(),
        sessions: sessions.len(),
        sessions_down: sessions.into_iter().filter(|session| session.state != "Established").collect(),
    }
}

fn measure(snapshot: &ClusterSnapshot) -> ClusterSize {
    let mut size = ClusterSize::default();
    let mut namespaces = BTreeSet::new();
    for resource in snapshot.cluster.resources() {
        match resource.kind() {
            Kind::Node => size.nodes += 1,
            Kind::WorkloadEndpoint => size.workloads += 1,
            Kind::HostEndpoint => size.host_endpoints += 1,
            Kind::Tier => size.tiers += 1,
            Kind::NetworkSet | Kind::GlobalNetworkSet => size.network_sets += 1,
            kind if is_policy(kind) && is_staged(resource) => size.staged_policies += 1,
            kind if is_policy(kind) => size.policies += 1,
            _ => {}
        }
        let namespace = &resource.metadata().namespace;
        if !namespace.is_empty() {
            namespaces.insert(namespace);
        }
    }
    size.namespaces = namespaces.len();
    size.pools = snapshot.addresses.pools.len();
    let blocks = || snapshot.addresses.pools.iter().flat_map(|pool| &pool.blocks);
    size.blocks = blocks().count() + snapshot.addresses.orphans.len();
    size.addresses_in_use =
        blocks().chain(&snapshot.addresses.orphans).map(|block| block.usage.in_use as f64).sum();
    size
}

fn is_staged(resource: &Resource) -> bool {
    matches!(
        resource.kind(),
        Kind::StagedNetworkPolicy | Kind::StagedGlobalNetworkPolicy | Kind::StagedKubernetesNetworkPolicy
    )
}
