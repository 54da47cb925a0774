//! A node: the daemon in its namespace, and what commands on that host see.

use crate::cluster::Cluster;
use crate::cni;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::process::{Daemon, Started};
use std::path::PathBuf;
use std::process::Command;

pub fn daemon(place: &Place, node: &str) -> Daemon {
    Daemon::in_dir(&format!("the daemon of {node}"), &place.node_dir(node))
}

pub fn socket(place: &Place, node: &str) -> PathBuf {
    place.node_dir(node).join("run/cni.sock")
}

/// Starts the daemon; [`ready`] waits for it.
pub fn start(place: &Place, cluster: &Cluster, node: &str) -> Result<Started> {
    let dir = place.node_dir(node);
    for part in ["run", "state"] {
        let dir = dir.join(part);
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
    }
    let mut command = Command::new(place.bin().join("tortie"));
    command.arg("node").envs(store_variables(place, cluster)).envs(variables(place, node)).envs([
        ("IP", "autodetect"),
        ("IP6", "autodetect"),
        ("NO_DEFAULT_POOLS", "true"),
    ]);
    daemon(place, node).start(&place.node_netns(node), command)
}

/// Returns when the node takes containers.
pub async fn ready(place: &Place, cluster: &Cluster, node: &str, started: Started) -> Result<()> {
    started.ready(|| async { cni::status(place, cluster, node).await }).await
}

/// Starts the daemon of a node that was stopped, and returns when it takes containers again.
pub async fn resume(place: &Place, cluster: &Cluster, node: &str) -> Result<()> {
    if let Some(pid) = daemon(place, node).running() {
        return Err(Error::refused(format!("the daemon of {node} is running already (process {pid})")));
    }
    ready(place, cluster, node, start(place, cluster, node)?).await
}

/// How the tools reach the store.
pub fn store_variables(place: &Place, cluster: &Cluster) -> Vec<(&'static str, String)> {
    vec![
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
        ("ETCD_ENDPOINTS", cluster.endpoint.clone()),
        // Stronger than a file in /etc/calico that leads to another cluster.
        ("CALICOCTL_CONFIG", place.ctl_config().display().to_string()),
        ("ETCDCTL_API", "3".to_owned()),
        ("ETCDCTL_ENDPOINTS", cluster.endpoint.clone()),
    ]
}

/// What makes a process on a node one of that host.
pub fn variables(place: &Place, node: &str) -> Vec<(&'static str, String)> {
    let dir = place.node_dir(node);
    let path = |name: &str| dir.join(name).display().to_string();
    vec![
        ("NODENAME", node.to_owned()),
        ("TORTIE_CNI_SOCKET", socket(place, node).display().to_string()),
        ("TORTIE_RUN_DIR", path("run")),
        ("TORTIE_STATE_DIR", path("state")),
        ("CALICO_NODENAME_FILE", path("state/nodename")),
    ]
}
