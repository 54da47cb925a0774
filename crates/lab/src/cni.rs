//! Calls the real CNI plugin as a container runtime on the node does.

use crate::cluster::LabCluster;
use crate::error::{CniError, LabError, LabResult};
use crate::netns;
use crate::node;
use crate::place::{LabPaths, netns_path};
use crate::pod::LabPod;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::process::Command;

/// `cniVersion` of the list: current container runtimes do not support a newer one.
const LIST_VERSION: &str = "1.0.0";
/// `cniVersion` of plugin calls: 1.1.0 adds STATUS.
const PLUGIN_CNI_VERSION: &str = "1.1.0";
pub const NETWORK_NAME: &str = "lab";
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
    let result = call_for_pod(place, cluster, pod, "ADD").await?;
    let addresses = result["ips"].as_array().into_iter().flatten();
    Ok(addresses.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect())
}

pub async fn delete(place: &LabPaths, cluster: &LabCluster, pod: &LabPod) -> LabResult<()> {
    call_for_pod(place, cluster, pod, "DEL").await.map(drop)
}

/// Calls CNI STATUS: whether the node can attach a pod now, or the reason why not.
pub async fn status(place: &LabPaths, cluster: &LabCluster, node: &str) -> LabResult<()> {
    let config = plugin_config(place, cluster, node);
    call(place, node, plugin(place, "STATUS"), &config).await?.map(drop).map_err(LabError::NotReady)
}

async fn call_for_pod(
    place: &LabPaths,
    cluster: &LabCluster,
    pod: &LabPod,
    cni_command: &'static str,
) -> LabResult<Value> {
    let mut config = plugin_config(place, cluster, &pod.node);
    config["tortie_labels"] = json!(pod.labels);
    // The endpoint gets the profile of its namespace. The list on disk has no policy type: containers of other
    // runtimes have no namespace, and share the profile of the network.
    config["policy"] = json!({"type": "k8s"});
    let mut command = plugin(place, cni_command);
    command
        .env("CNI_CONTAINERID", &pod.container_id)
        .env("CNI_NETNS", netns_path(&place.pod_netns(&pod.name)))
        .env("CNI_IFNAME", POD_INTERFACE)
        .env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.namespace, pod.name),
        );
    call(place, &pod.node, command, &config).await?.map_err(|source| LabError::Cni {
        command: cni_command,
        pod: pod.name.clone(),
        source,
    })
}

/// Builds the configuration that a runtime derives from the list for its only plugin.
fn plugin_config(place: &LabPaths, cluster: &LabCluster, node: &str) -> Value {
    let list = conflist(place, cluster, node);
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = json!(PLUGIN_CNI_VERSION);
    config
}

fn plugin(place: &LabPaths, cni_command: &str) -> Command {
    let mut command = Command::new(place.bin().join(PLUGIN_NAME));
    command.env("CNI_COMMAND", cni_command).env("CNI_PATH", place.bin());
    command
}

/// Runs the plugin in the node's namespace and returns its result. An error without a message contains the plugin's
/// standard error.
async fn call(
    place: &LabPaths,
    node: &str,
    command: Command,
    config: &Value,
) -> LabResult<Result<Value, CniError>> {
    let output =
        netns::output_async(&place.node_netns(node), command, config.to_string().into_bytes()).await?;
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() {
        return Ok(Ok(result));
    }
    let parts = ["msg", "details"].map(|key| result[key].as_str().unwrap_or_default());
    let mut message = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    if message.is_empty() {
        message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    }
    Ok(Err(CniError { code: result["code"].as_u64().unwrap_or_default(), message }))
}
