//! Routes from the control plane to pods: kube-apiserver connects to pods for `kubectl proxy`, for webhooks and for extension API servers.
//! A process in the fabric's namespace follows the blocks of the nodes. Only connections of the control plane itself use these
//! routes, because the fabric is also the router between racks, which learns routes to pods by BGP or not at all.

use super::dir;
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::process::LabDaemon;
use crate::topology::LabNode;
use crate::{netns, store};
use ipnet::IpNet;
use std::process::Command;
use tortie_model::key::AffinityType;
use tortie_model::{KeyRange, StoreKey};
use tortie_store::StoreEvent;

/// Routing table for packets that processes in the fabric's namespace send.
const CONTROL_PLANE_TABLE: &str = "210";

/// Starts the process that maintains the routes.
pub fn start(place: &LabPaths) -> LabResult<()> {
    use_table(place)?;
    let dir = dir(place).join("pod-routes");
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let mut command = Command::new(place.bin().join("tortie"));
    command.args(["lab", "--name", place.name(), "--dir"]).arg(place.dir()).arg("pod-routes");
    let daemon = LabDaemon::in_dir("the routes of the control plane", &dir);
    daemon.start(&place.fabric(), command).map(drop)
}

/// Makes processes in the fabric's namespace use the table.
pub fn use_table(place: &LabPaths) -> LabResult<()> {
    // Packets of other interfaces do not match: they are forwarded by the main table.
    ["-4", "-6"].into_iter().try_for_each(|family| {
        ip(place, &[family, "rule", "add", "iif", "lo", "lookup", CONTROL_PLANE_TABLE])
    })
}

/// Sets the route to a block or pod CIDR of a node.
pub fn set(place: &LabPaths, node: &LabNode, range: IpNet) -> LabResult<()> {
    let gateway = match range {
        IpNet::V4(_) => node.ipv4.addr().to_string(),
        IpNet::V6(_) => node.ipv6.addr().to_string(),
    };
    ip(place, &["route", "replace", &range.to_string(), "via", &gateway, "table", CONTROL_PLANE_TABLE])
}

/// Follows the blocks of the nodes until the process is killed with the lab.
pub async fn follow_blocks(place: &LabPaths) -> LabResult<()> {
    let resources = store::client(&LabCluster::load(place)?).await?;
    let range = KeyRange::BlockAffinities { affinity: AffinityType::Host, owner: None, ip_version: None };
    let mut watch = resources.client().watch(range, None);
    while let Some(event) = watch.next().await {
        let result = match event {
            StoreEvent::Put(entry) => block_of(&entry.key).map(|(owner, cidr)| put(place, owner, cidr)),
            StoreEvent::Delete { key, .. } => block_of(&key).map(|(_, cidr)| delete(place, cidr)),
            _ => None,
        };
        if let Some(Err(error)) = result {
            // The next change of the block tries again.
            eprintln!("route of the control plane: {error}");
        }
    }
    Ok(())
}

fn block_of(key: &StoreKey) -> Option<(&str, IpNet)> {
    match key {
        StoreKey::BlockAffinity { owner, cidr, .. } => Some((owner, *cidr)),
        _ => None,
    }
}

fn put(place: &LabPaths, owner: &str, cidr: IpNet) -> LabResult<()> {
    // Hosts outside the lab may share its datastore; their addresses are not in its description.
    match LabCluster::load(place)?.node(owner) {
        Ok(node) => set(place, node, cidr),
        Err(_) => Ok(()),
    }
}

fn delete(place: &LabPaths, cidr: IpNet) -> LabResult<()> {
    ip(place, &["route", "del", &cidr.to_string(), "table", CONTROL_PLANE_TABLE])
}

/// Runs `ip` in the fabric's namespace.
fn ip(place: &LabPaths, words: &[&str]) -> LabResult<()> {
    let mut command = Command::new("ip");
    command.args(words);
    let output = netns::output(&place.fabric(), command, b"")?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(LabError::refused(format!("ip {}: {reason}", words.join(" "))));
    }
    Ok(())
}
