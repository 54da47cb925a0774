//! Calls the real CNI plugin as a container runtime on the node does.

use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::netns;
use crate::node;
use crate::place::{LabPaths, netns_path};
use crate::pod::LabPod;
use serde_json::{Value, json};
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};

/// `cniVersion` of the list: current container runtimes do not support a newer one.
const LIST_VERSION: &str = "1.0.0";
/// `cniVersion` of plugin calls: 1.1.0 adds STATUS.
const PLUGIN_CNI_VERSION: &str = "1.1.0";
const NETWORK_NAME: &str = "lab";
const PLUGIN_NAME: &str = "calico";
const POD_INTERFACE: &str = "eth0";

/// Returns the plugin list as it is written to a node's /etc/cni/net.d.
pub fn conflist(place: &LabPaths, cluster: &LabCluster, node: &str) -> Value {
    json!({
        "name": NETWORK_NAME,
        "cniVersion": LIST_VERSION,
        "plugins": [{
            "type": PLUGIN_NAME,
            "nodename": node,
            "datastore_type": "etcdv3",
            "etcd_endpoints": cluster.endpoint,
            "tortie_socket": node::socket(place, node),
            "ipam": {
                "type": "calico-ipam",
                "assign_ipv4": cluster.has_family(false).to_string(),
                "assign_ipv6": cluster.has_family(true).to_string(),
            },
        }],
    })
}

/// Calls CNI ADD for a pod and returns its addresses.
pub async fn add(place: &LabPaths, cluster: &LabCluster, pod: &LabPod) -> LabResult<Vec<IpAddr>> {
    let result = for_pod(place, cluster, pod, "ADD").await?;
    let listed = result.get("ips").and_then(Value::as_array).cloned().unwrap_or_default();
    let address = |ip: &Value| ip.get("address")?.as_str()?.split('/').next()?.parse().ok();
    Ok(listed.iter().filter_map(address).collect())
}

pub async fn delete(place: &LabPaths, cluster: &LabCluster, pod: &LabPod) -> LabResult<()> {
    for_pod(place, cluster, pod, "DEL").await.map(drop)
}

/// Calls CNI STATUS: whether the node can attach a pod now, or the reason why not.
pub async fn status(place: &LabPaths, cluster: &LabCluster, node: &str) -> std::result::Result<(), String> {
    let mut command = plugin(place, "STATUS");
    let config = plugin_config(place, cluster, node);
    let output = run(place, node, &mut command, config).await.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failure(&output).1),
    }
}

async fn for_pod(
    place: &LabPaths,
    cluster: &LabCluster,
    pod: &LabPod,
    what: &'static str,
) -> LabResult<Value> {
    let mut config = plugin_config(place, cluster, &pod.node);
    config["tortie_labels"] = json!(pod.labels);
    let mut command = plugin(place, what);
    command
        .env("CNI_CONTAINERID", &pod.container_id)
        .env("CNI_NETNS", netns_path(&place.pod_netns(&pod.name)))
        .env("CNI_IFNAME", POD_INTERFACE)
        .env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.namespace, pod.name),
        );
    let output = run(place, &pod.node, &mut command, config).await?;
    if !output.status.success() {
        let (code, message) = failure(&output);
        return Err(LabError::Cni { command: what, pod: pod.name.clone(), code, message });
    }
    Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
}

/// Builds the configuration that a runtime derives from the list for its only plugin.
fn plugin_config(place: &LabPaths, cluster: &LabCluster, node: &str) -> Value {
    let list = conflist(place, cluster, node);
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = json!(PLUGIN_CNI_VERSION);
    config
}

fn plugin(place: &LabPaths, what: &str) -> Command {
    let mut command = Command::new(place.bin().join(PLUGIN_NAME));
    command.env("CNI_COMMAND", what).env("CNI_PATH", place.bin());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the plugin in the node's namespace.
async fn run(place: &LabPaths, node: &str, command: &mut Command, config: Value) -> LabResult<Output> {
    let command = std::mem::replace(command, Command::new(PLUGIN_NAME));
    let netns = netns::open(&place.node_netns(node))?;
    let failed = |source| LabError::Io { what: format!("CNI plugin on {node}"), source };
    let running = tokio::task::spawn_blocking(move || {
        let spawned = netns.command(command).and_then(|command| command.spawn());
        let mut child = spawned.map_err(std::io::Error::other)?;
        if let Some(mut input) = child.stdin.take() {
            // A plugin may respond without reading its whole input.
            let _ = input.write_all(config.to_string().as_bytes());
        }
        child.wait_with_output()
    });
    running.await.map_err(|error| failed(error.into()))?.map_err(failed)
}

/// Returns code and message of the plugin's error, or its standard error if it printed no message.
fn failure(output: &Output) -> (u64, String) {
    let error: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let code = error.get("code").and_then(Value::as_u64).unwrap_or_default();
    let parts = [text("msg"), text("details")];
    let message = parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(": ");
    match message.is_empty() {
        false => (code, message),
        true => (code, String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
