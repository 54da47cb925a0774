//! Lists the nodes with their addresses, workloads, warnings and reported status.

use super::routing::statuses;
use super::{ApiResult, SharedState};
use crate::snapshot::ClusterSnapshot;
use axum::extract::State;
use serde::Serialize;
use std::collections::BTreeMap;
use tortie_model::kinds::{CalicoNodeStatus, NetworkWarning, Node};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeItem {
    name: String,
    addresses: Vec<String>,
    as_number: Option<String>,
    /// Workload endpoints on the node.
    workloads: usize,
    blocks: usize,
    encrypts: bool,
    labels: Vec<String>,
    warnings: Vec<NetworkWarning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<NodeReport>,
}

/// The status of a node in its CalicoNodeStatus object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeReport {
    updated: Option<String>,
    version: String,
    ready: Option<bool>,
    established: u32,
    not_established: u32,
}

pub async fn show(State(state): SharedState) -> ApiResult {
    state.render_cluster(describe).await
}

fn describe(snapshot: &ClusterSnapshot) -> Vec<NodeItem> {
    let mut workloads: BTreeMap<&str, usize> = BTreeMap::new();
    for endpoint in snapshot.cluster.workloads() {
        *workloads.entry(&endpoint.spec.node).or_default() += 1;
    }
    let mut blocks: BTreeMap<&str, usize> = BTreeMap::new();
    let pools = snapshot.addresses.pools.iter().flat_map(|pool| &pool.blocks);
    for owner in pools.chain(&snapshot.addresses.orphans).filter_map(|block| block.owner.as_deref()) {
        *blocks.entry(owner).or_default() += 1;
    }
    let count = |counts: &BTreeMap<&str, usize>, name: &str| counts.get(name).copied().unwrap_or_default();
    let nodes = snapshot.cluster.nodes().map(|node| {
        let name = &node.metadata.name;
        NodeItem {
            name: name.clone(),
            addresses: list_addresses(node),
            as_number: node.spec.bgp.as_ref().and_then(|bgp| bgp.as_number).map(|number| number.to_string()),
            workloads: count(&workloads, name),
            blocks: count(&blocks, name),
            encrypts: !node.status.wireguard_public_key.is_empty()
                || !node.status.wireguard_public_key_v6.is_empty(),
            labels: node.metadata.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            warnings: node.network_warnings(),
            report: statuses(snapshot).find(|status| status.spec.node == *name).map(NodeReport::new),
        }
    });
    nodes.collect()
}

fn list_addresses(node: &Node) -> Vec<String> {
    let bgp = node.spec.bgp.iter().flat_map(|bgp| [&bgp.ipv4_address, &bgp.ipv6_address]);
    let others = node.spec.addresses.iter().map(|address| &address.address);
    let mut addresses: Vec<String> = Vec::new();
    for address in bgp.chain(others).filter(|text| !text.is_empty()) {
        let bare = |text: &str| text.split('/').next().unwrap_or_default().to_owned();
        if !addresses.iter().any(|known| bare(known) == bare(address)) {
            addresses.push(address.clone());
        }
    }
    addresses
}

impl NodeReport {
    fn new(object: &CalicoNodeStatus) -> NodeReport {
        let status = &object.status;
        let daemons = status.agent.iter().flat_map(|agent| agent.bird_v4.iter().chain(&agent.bird_v6));
        let daemons: Vec<_> = daemons.collect();
        let bgp = status.bgp.as_ref();
        NodeReport {
            updated: status.last_updated.clone(),
            version: daemons.first().map(|daemon| daemon.version.clone()).unwrap_or_default(),
            ready: (!daemons.is_empty()).then(|| daemons.iter().all(|d| d.state.to_string() == "Ready")),
            established: bgp.map_or(0, |bgp| bgp.number_established_v4 + bgp.number_established_v6),
            not_established: bgp
                .map_or(0, |bgp| bgp.number_not_established_v4 + bgp.number_not_established_v6),
        }
    }
}
