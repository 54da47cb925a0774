//! Pods of the lab: one network namespace each, connected by the CNI plugin of its node.

use crate::cluster::LabCluster;
use crate::cni;
use crate::error::{LabError, LabResult};
use crate::files;
use crate::kube;
use crate::names::suggest_name;
use crate::netns;
use crate::place::LabPaths;
use crate::routes;
use crate::sidecar::PodSidecar;
use crate::store;
use crate::topology::LabTopology;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tortie_model::API_VERSION;
use tortie_store::StoreError;
use uuid::Uuid;

/// Time limit for the other nodes to program a route to a new pod.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(10);
const ROUTE_POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabPod {
    pub name: String,
    pub node: String,
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    /// Container id as a runtime would generate it.
    pub container_id: String,
    /// Empty until CNI ADD has succeeded.
    pub addresses: Vec<IpAddr>,
    /// Program of the Envoy that runs as its sidecar.
    #[serde(default)]
    pub envoy: Option<PathBuf>,
}

impl LabPod {
    pub fn new(
        name: &str,
        node: &str,
        namespace: &str,
        labels: BTreeMap<String, String>,
    ) -> LabResult<LabPod> {
        for (what, name) in [("pod", name), ("namespace", namespace)] {
            if !is_label(name) {
                return Err(LabError::refused(format!(
                    "{name:?} is not a valid name for a {what}: use up to 63 lower-case letters, digits and dashes"
                )));
            }
        }
        Ok(LabPod {
            name: name.to_owned(),
            node: node.to_owned(),
            namespace: namespace.to_owned(),
            labels,
            container_id: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
            addresses: Vec::new(),
            envoy: None,
        })
    }

    pub fn load(place: &LabPaths, name: &str) -> LabResult<LabPod> {
        let found = if is_label(name) { files::read(&place.pod_file(name))? } else { None };
        found.ok_or_else(|| {
            let hint = suggest_name(name, all(place).unwrap_or_default().into_iter().map(|pod| pod.name));
            LabError::refused(format!("there is no pod {name}{hint}"))
        })
    }
}

/// Returns the pods of the lab: those that the lab has connected, or those of Kubernetes.
pub async fn list(place: &LabPaths, cluster: &LabCluster) -> LabResult<Vec<LabPod>> {
    match cluster.kubernetes {
        Some(_) => kube::pods::list(cluster).await,
        None => all(place),
    }
}

pub fn all(place: &LabPaths) -> LabResult<Vec<LabPod>> {
    let dir = place.pods();
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LabError::file(&dir)(error)),
    };
    let mut pods = Vec::new();
    for entry in entries {
        let path = entry.map_err(LabError::file(&dir))?.path();
        if path.extension().is_some_and(|extension| extension == "json")
            && let Some(pod) = files::read(&path)?
        {
            pods.push(pod);
        }
    }
    pods.sort_by(|a: &LabPod, b: &LabPod| a.name.cmp(&b.name));
    Ok(pods)
}

/// Creates a pod, waits until the other nodes have routes to it, and returns it with its addresses.
pub async fn add(place: &LabPaths, cluster: &LabCluster, mut pod: LabPod) -> LabResult<LabPod> {
    cluster.node(&pod.node)?;
    if cluster.nodes.iter().any(|node| node.name == pod.name) {
        return Err(LabError::refused(format!("{} is a node; call the pod something else", pod.name)));
    }
    let file = place.pod_file(&pod.name);
    if !files::create(&file, &pod)? {
        return Err(LabError::refused(format!("there is a pod {} already", pod.name)));
    }
    match attach(place, cluster, &pod).await {
        Ok(addresses) => {
            pod.addresses = addresses;
            files::replace(&file, &pod)?;
        }
        Err(error) => {
            // Report the first error. `lab down` removes anything that the cleanup leaves.
            let _ = cni::delete(place, cluster, &pod).await;
            let _ = remove_files(place, &pod);
            return Err(error);
        }
    }
    wait_until_reachable(place, cluster, &pod).await?;
    Ok(pod)
}

async fn attach(place: &LabPaths, cluster: &LabCluster, pod: &LabPod) -> LabResult<Vec<IpAddr>> {
    netns::create(&place.pod_netns(&pod.name)).await?;
    create_namespace_profile(cluster, &pod.namespace).await?;
    let addresses = cni::add(place, cluster, pod).await?;
    if addresses.is_empty() {
        return Err(LabError::refused(format!("the plugin gave pod {} no address", pod.name)));
    }
    if let Some(envoy) = &pod.envoy {
        PodSidecar::new(place, pod).start(cluster, envoy).await?;
    }
    Ok(addresses)
}

/// Creates the profile of a namespace with the rules and labels that a Kubernetes namespace gives to its pods, so that
/// `namespaceSelector` works, and the label of the network, because the profile that containers of other runtimes share
/// admits only endpoints with this label. An existing profile is not changed.
async fn create_namespace_profile(cluster: &LabCluster, namespace: &str) -> LabResult<()> {
    let allow = json!([{"action": "Allow"}]);
    let profile = json!({
        "apiVersion": API_VERSION,
        "kind": "Profile",
        "metadata": {"name": format!("kns.{namespace}")},
        "spec": {
            "ingress": allow,
            "egress": allow,
            "labelsToApply": {
                (cni::NETWORK_NAME): "",
                "pcns.kubernetes.io/metadata.name": namespace,
                "pcns.projectcalico.org/name": namespace,
            },
        },
    });
    match store::create(&store::client(cluster).await?, profile).await {
        Err(LabError::Store(StoreError::AlreadyExists { .. })) => Ok(()),
        result => result,
    }
}

pub async fn delete(place: &LabPaths, cluster: &LabCluster, name: &str) -> LabResult<()> {
    let pod = LabPod::load(place, name)?;
    netns::end_processes(&place.pod_netns(name))?;
    cni::delete(place, cluster, &pod).await?;
    remove_files(place, &pod)
}

/// Removes the namespace with its processes, the sidecar and the description of a pod.
fn remove_files(place: &LabPaths, pod: &LabPod) -> LabResult<()> {
    netns::remove(&place.pod_netns(&pod.name))?;
    if pod.envoy.is_some() {
        PodSidecar::new(place, pod).remove()?;
    }
    let file = place.pod_file(&pod.name);
    std::fs::remove_file(&file).map_err(LabError::file(&file))
}

/// Waits until every node on the same link has a route to the pod, so that callers need not retry. A timeout is not an
/// error: a node whose daemon was stopped on purpose does not learn routes.
async fn wait_until_reachable(place: &LabPaths, cluster: &LabCluster, pod: &LabPod) -> LabResult<()> {
    let home = cluster.node(&pod.node)?;
    let deadline = Instant::now() + ROUTE_TIMEOUT;
    for node in cluster.nodes.iter().filter(|node| node.name != home.name) {
        if cluster.topology == LabTopology::L3 && node.rack != home.rack {
            continue;
        }
        let connection = netns::connection(&netns::open(&place.node_netns(&node.name))?)?;
        for address in &pod.addresses {
            let through = if address.is_ipv4() { home.ipv4.addr().into() } else { home.ipv6.addr().into() };
            while routes::next_hop(&connection, *address).await != Some(through) && Instant::now() < deadline
            {
                tokio::time::sleep(ROUTE_POLL_INTERVAL).await;
            }
        }
    }
    Ok(())
}

/// Returns whether a name is a DNS label, which is valid in file names and resource names.
fn is_label(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels() {
        let pod = |name: &str, namespace: &str| LabPod::new(name, "node1", namespace, BTreeMap::new());
        assert_eq!(pod("web-1", "shop").unwrap().container_id.len(), 64);
        for name in ["", "-a", "a-", "A", "a.b", "../x", "a/b"] {
            assert!(pod(name, "default").is_err() && pod("a", name).is_err(), "{name}");
        }
    }
}
