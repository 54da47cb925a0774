//! Runs a node's daemon in its namespace and defines the environment of commands on that node.

use crate::bgp::{self, BgpMode};
use crate::cluster::{LabCluster, LabDatastore};
use crate::cni;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::process::{LabDaemon, StartedDaemon};
use crate::topology::{self, LabNode, MAX_NODES};
use crate::{bird, fabric, files, hub, netns, store, up};
use std::path::PathBuf;
use std::process::Command;
use tortie_store::ResourceClient;

pub fn daemon(place: &LabPaths, node: &str) -> LabDaemon {
    LabDaemon::in_dir(&format!("the daemon of {node}"), &place.node_dir(node))
}

pub fn socket(place: &LabPaths, node: &str) -> PathBuf {
    place.node_dir(node).join("run/cni.sock")
}

/// Creates the Node resource if it needs fields that the node does not detect itself.
pub async fn announce(resources: &ResourceClient, cluster: &LabCluster, node: &LabNode) -> LabResult<()> {
    match bgp::node_resource(cluster, node) {
        Some(object) => store::create(resources, object).await,
        None => Ok(()),
    }
}

/// Starts the daemon; [`ready`] waits for it.
pub fn start(place: &LabPaths, cluster: &LabCluster, node: &str) -> LabResult<StartedDaemon> {
    let dir = place.node_dir(node);
    for part in ["run", "state"] {
        let dir = dir.join(part);
        std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    }
    let mut command = Command::new(place.bin().join("tortie"));
    command.arg("node").envs(store_variables(place, cluster)).envs(variables(place, node));
    command.envs(daemon_variables(cluster, node)).envs(bird::variables(place, node));
    command.envs(hub::variables(cluster));
    if cluster.record {
        command.env("TORTIE_RECORD", dir.join("recording"));
    }
    daemon(place, node).start(&place.node_netns(node), command)
}

/// Waits until the node accepts containers.
pub async fn ready(
    place: &LabPaths,
    cluster: &LabCluster,
    node: &str,
    started: StartedDaemon,
) -> LabResult<()> {
    if cluster.has_bird(node) {
        bird::start(place, node).await?;
    }
    started.ready(async || cni::status(place, cluster, node).await).await
}

/// Starts the daemon of a stopped node and waits until it accepts containers.
pub async fn resume(place: &LabPaths, cluster: &LabCluster, node: &str) -> LabResult<()> {
    cluster.check_plain("the node starts its daemons itself")?;
    if let Some(pid) = daemon(place, node).running() {
        return Err(LabError::refused(format!("the daemon of {node} is running already (process {pid})")));
    }
    ready(place, cluster, node, start(place, cluster, node)?).await
}

/// Adds a node to a running lab, waits until it accepts containers, and returns its name.
pub async fn add(place: &LabPaths, mut cluster: LabCluster) -> LabResult<String> {
    cluster.check_plain("nodes cannot be added to it yet")?;
    let count = u8::try_from(cluster.nodes.len()).unwrap_or(MAX_NODES);
    if count >= MAX_NODES {
        return Err(LabError::refused(format!("a lab has at most {MAX_NODES} nodes")));
    }
    let nodes = cluster.topology.nodes(count + 1);
    let Some(node) = nodes.last().cloned() else { return Err(LabError::refused("there is no such node")) };
    if topology::racks(&nodes).len() > topology::racks(&cluster.nodes).len() || cluster.bgp == BgpMode::Tor {
        return Err(LabError::refused(
            "a node that needs a rack or a router of its own cannot be added later",
        ));
    }
    cluster.nodes.push(node.clone());
    files::replace(&place.cluster_file(), &cluster)?;
    netns::create(&place.node_netns(&node.name)).await?;
    fabric::extend(place, &node).await?;
    up::write_node_files(place, &cluster, &node)?;
    announce(&store::client(&cluster).await?, &cluster, &node).await?;
    ready(place, &cluster, &node.name, start(place, &cluster, &node.name)?).await?;
    Ok(node.name)
}

/// Returns the settings of a node's daemon.
pub fn daemon_variables(cluster: &LabCluster, node: &str) -> Vec<(String, String)> {
    let mut variables = vec![
        ("IP", "autodetect"),
        ("IP6", "autodetect"),
        ("NO_DEFAULT_POOLS", "true"),
        ("CALICO_NETWORKING_BACKEND", cluster.bgp.backend()),
    ];
    // Without BGP, nodes program the routes to each other's blocks themselves.
    variables.extend((cluster.bgp == BgpMode::None).then_some(("FELIX_PROGRAMCLUSTERROUTES", "Enabled")));
    variables.extend(cluster.has_bird(node).then_some(("TORTIE_BIRD", "true")));
    variables.extend(cluster.flows.then_some(("FELIX_FLOWLOGSLOCALREPORTER", "Enabled")));
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the environment variables that point tools to the datastore.
pub fn store_variables(place: &LabPaths, cluster: &LabCluster) -> Vec<(&'static str, String)> {
    // Overrides a config file in /etc/calico that may refer to another cluster.
    let file = ("CALICOCTL_CONFIG", place.ctl_config().display().to_string());
    if cluster.datastore == LabDatastore::Kubernetes {
        return vec![
            ("DATASTORE_TYPE", "kubernetes".to_owned()),
            ("KUBECONFIG", cluster.endpoint.clone()),
            file,
        ];
    }
    vec![
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
        ("ETCD_ENDPOINTS", cluster.endpoint.clone()),
        file,
        ("ETCDCTL_API", "3".to_owned()),
        ("ETCDCTL_ENDPOINTS", cluster.endpoint.clone()),
    ]
}

/// Returns the environment variables that give a process on a node the node's name and paths.
pub fn variables(place: &LabPaths, node: &str) -> Vec<(&'static str, String)> {
    let dir = place.node_dir(node).display().to_string();
    vec![
        ("NODENAME", node.to_owned()),
        ("TORTIE_CNI_SOCKET", socket(place, node).display().to_string()),
        ("TORTIE_RUN_DIR", format!("{dir}/run")),
        ("TORTIE_STATE_DIR", format!("{dir}/state")),
        ("CALICO_NODENAME_FILE", format!("{dir}/state/nodename")),
    ]
}
