//! Connects pods without Calico networking: host-local assigns addresses from the node's pod CIDR, ptp connects the
//! pods, and every node has a route to every other node's CIDR, like flannel's host-gw. Tortie's plugin is chained
//! behind them.

use super::{KUBERNETES_READY_TIMEOUT, containerd, control, pod_routes};
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::netns;
use crate::place::LabPaths;
use crate::topology::LabNode;
use ipnet::IpNet;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const CIDR_POLL_INTERVAL: Duration = Duration::from_millis(500);
const CONFLIST_FILE: &str = "10-ptp.conflist";
const NETWORK_NAME: &str = "lab-pod-network";

/// Writes the network configuration and the routes of every node.
pub async fn connect(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    let mut ranges = Vec::new();
    for node in &cluster.nodes {
        ranges.push((node, ranges_of(place, cluster, node).await?));
    }
    pod_routes::use_table(place)?;
    for (node, own) in &ranges {
        for range in own {
            pod_routes::set(place, node, *range)?;
        }
        for (other, theirs) in ranges.iter().filter(|(other, _)| other.name != node.name) {
            for range in theirs {
                let gateway = match range {
                    IpNet::V4(_) => other.ipv4.addr().to_string(),
                    IpNet::V6(_) => other.ipv6.addr().to_string(),
                };
                run_on_node(place, node, "ip", &["route", "replace", &range.to_string(), "via", &gateway])?;
            }
        }
        run_on_node(place, node, "nft", &[&masquerade_rules(&cluster.pools)])?;
        // The node sees this directory as /etc/cni/net.d.
        let dir = place.node_dir(&node.name).join("own").join(
            containerd::networks()
                .strip_prefix("/")
                .map_err(|_| LabError::refused("no directory of networks"))?,
        );
        fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
        let file = dir.join(CONFLIST_FILE);
        fs::write(&file, conflist(own).to_string()).map_err(LabError::file(&file))?;
    }
    Ok(())
}

/// Waits until kube-controller-manager has assigned pod CIDRs to the node and returns them.
async fn ranges_of(place: &LabPaths, cluster: &LabCluster, node: &LabNode) -> LabResult<Vec<IpNet>> {
    let deadline = Instant::now() + KUBERNETES_READY_TIMEOUT;
    loop {
        let words = ["get", "node", &node.name, "-o", "jsonpath={.spec.podCIDRs[*]}"];
        let listed = control::kubectl(place, cluster, &words).await;
        let ranges: Vec<IpNet> = listed
            .iter()
            .flat_map(|text| text.split_whitespace())
            .filter_map(|word| word.parse().ok())
            .collect();
        if !ranges.is_empty() {
            return Ok(ranges);
        }
        if Instant::now() > deadline {
            return Err(LabError::refused(format!(
                "Kubernetes gives {} no range of addresses: {listed:?}",
                node.name
            )));
        }
        tokio::time::sleep(CIDR_POLL_INTERVAL).await;
    }
}

fn conflist(ranges: &[IpNet]) -> Value {
    let ranges: Vec<Value> = ranges.iter().map(|range| json!([{"subnet": range.to_string()}])).collect();
    json!({
        "cniVersion": "1.0.0",
        "name": NETWORK_NAME,
        "plugins": [
            {"type": "ptp", "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
            {"type": "calico", "policy": {"type": "k8s"}},
            {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        ],
    })
}

/// Renders nft rules that masquerade traffic leaving the pod network, since other hosts have no routes to pods.
fn masquerade_rules(pools: &[IpNet]) -> String {
    let mut rules = "add table inet lab\nflush table inet lab\n\
        add chain inet lab postrouting { type nat hook postrouting priority srcnat; }\n"
        .to_owned();
    for pool in pools {
        let family = if matches!(pool, IpNet::V4(_)) { "ip" } else { "ip6" };
        rules += &format!(
            "add rule inet lab postrouting {family} saddr {pool} {family} daddr != {pool} masquerade\n"
        );
    }
    rules
}

/// Runs a command in the network namespace of a node.
fn run_on_node(place: &LabPaths, node: &LabNode, program: &str, arguments: &[&str]) -> LabResult<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = netns::output(&place.node_netns(&node.name), command, b"")?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let line = arguments.join(" ");
        return Err(LabError::refused(format!("{}: {program} {line}: {reason}", node.name)));
    }
    Ok(())
}
