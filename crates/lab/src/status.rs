//! Collects the state of the lab from the datastore and the namespaces, and renders it as text or JSON.

use crate::cluster::{LabCluster, LabDatastore};
use crate::error::LabResult;
use crate::place::LabPaths;
use crate::pod::{self, LabPod};
use crate::process::LabDaemon;
use crate::sessions::{self, NodeBgpSession};
use crate::sidecar::{PodSidecar, SidecarStatus};
use crate::{enter, hub, kube, netns, node, routes, store};
use serde::Serialize;
use std::fmt::Write;
use tortie_model::{KeyRange, StoreKey, StoreValue};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabStatus {
    name: String,
    directory: String,
    store: StoreStatus,
    pools: Vec<String>,
    hubs: Vec<HubStatus>,
    nodes: Vec<NodeStatus>,
}

/// A hub that runs as a process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HubStatus {
    number: u8,
    address: String,
    pid: Option<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreStatus {
    endpoint: String,
    pid: Option<u32>,
    /// Error if the datastore could not be read.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    name: String,
    rack: u8,
    addresses: Vec<String>,
    pid: Option<u32>,
    /// Reason why the node does not accept pods.
    problem: Option<String>,
    blocks: Vec<String>,
    pods: Vec<PodStatus>,
    /// BGP sessions.
    sessions: Vec<NodeBgpSession>,
    routes: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    #[serde(flatten)]
    pod: LabPod,
    #[serde(skip_serializing_if = "Option::is_none")]
    sidecar: Option<SidecarStatus>,
}

impl PodStatus {
    fn new(place: &LabPaths, pod: &LabPod) -> PodStatus {
        let sidecar = pod.envoy.is_some().then(|| PodSidecar::new(place, pod).status());
        PodStatus { pod: pod.clone(), sidecar }
    }
}

impl HubStatus {
    fn new(place: &LabPaths, number: u8) -> HubStatus {
        let address = hub::address(number).to_string();
        HubStatus { number, address, pid: hub::daemon(place, number).running() }
    }
}

pub async fn gather(place: &LabPaths) -> LabResult<LabStatus> {
    let cluster = LabCluster::load(place)?;
    enter::reach_store(place, &cluster)?;
    let (blocks, problem) = match blocks(&cluster).await {
        Ok(blocks) => (blocks, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    // The problem of the datastore is reported above.
    let pods = pod::list(place, &cluster)
        .await
        .or_else(|error| if problem.is_some() { Ok(Vec::new()) } else { Err(error) })?;
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        let connection = netns::connection(&netns::open(&place.node_netns(&node.name))?)?;
        nodes.push(NodeStatus {
            name: node.name.clone(),
            rack: node.rack,
            addresses: vec![node.ipv4.to_string(), node.ipv6.to_string()],
            pid: daemon_of(place, &cluster, &node.name).running(),
            problem: crate::cni::status(place, &cluster, &node.name)
                .await
                .err()
                .map(|error| error.to_string()),
            blocks: blocks
                .iter()
                .filter(|(owner, _)| *owner == node.name)
                .map(|(_, cidr)| cidr.clone())
                .collect(),
            pods: pods
                .iter()
                .filter(|pod| pod.node == node.name)
                .map(|pod| PodStatus::new(place, pod))
                .collect(),
            sessions: sessions::list(&place.node_dir(&node.name).join("run")).await,
            routes: routes::list(&connection).await?,
        });
    }
    Ok(LabStatus {
        name: place.name().to_owned(),
        directory: place.dir().display().to_string(),
        store: StoreStatus {
            endpoint: cluster.endpoint.clone(),
            pid: store_of(place, &cluster).running(),
            problem,
        },
        pools: cluster.pools.iter().map(ToString::to_string).collect(),
        hubs: (1..=cluster.process_hubs()).map(|number| HubStatus::new(place, number)).collect(),
        nodes,
    })
}

/// Returns the daemon of a node, or its machine in a lab with Kubernetes.
fn daemon_of(place: &LabPaths, cluster: &LabCluster, node: &str) -> LabDaemon {
    match cluster.kubernetes {
        Some(_) => kube::machine::daemon(place, node),
        None => node::daemon(place, node),
    }
}

/// Returns the daemon that serves the datastore.
pub fn store_of(place: &LabPaths, cluster: &LabCluster) -> LabDaemon {
    let [_, api_server, ..] = kube::control::daemons(place);
    match cluster.datastore {
        LabDatastore::Kubernetes => api_server,
        LabDatastore::Embedded | LabDatastore::Etcd => store::daemon(place),
    }
}

/// Returns owner and CIDR of every block with an affinity.
async fn blocks(cluster: &LabCluster) -> LabResult<Vec<(String, String)>> {
    let resources = store::client(cluster).await?;
    let listing = resources.client().list(&KeyRange::Blocks { ip_version: None }).await?;
    let owned = listing.entries.into_iter().filter_map(|entry| match (entry.key, entry.value) {
        (StoreKey::Block { cidr }, StoreValue::Block(block)) => {
            let owner = block.affinity.as_deref()?.strip_prefix("host:")?.to_owned();
            Some((owner, cidr.to_string()))
        }
        _ => None,
    });
    Ok(owned.collect())
}

impl LabStatus {
    /// Renders the status as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("lab {} in {}\n", self.name, self.directory);
        let _ = writeln!(text, "store  {}, {}", self.store.endpoint, describe_process(self.store.pid));
        if let Some(problem) = &self.store.problem {
            let _ = writeln!(text, "       {problem}");
        }
        let _ = writeln!(text, "pools  {}", self.pools.join(", "));
        for HubStatus { number, address, pid } in &self.hubs {
            let _ = writeln!(text, "hub {number}  {address}, {}", describe_process(*pid));
        }
        for node in &self.nodes {
            let _ = writeln!(
                text,
                "\n{}  {}, rack {}, {}",
                node.name,
                node.addresses.join(", "),
                node.rack,
                describe_process(node.pid)
            );
            if let Some(problem) = &node.problem {
                let _ = writeln!(text, "  not ready: {problem}");
            }
            let _ = writeln!(text, "  blocks  {}", none_or(&node.blocks.join(", ")));
            let lines: Vec<String> = node.pods.iter().map(pod_line).collect();
            write_section(&mut text, "pods", &lines);
            let lines: Vec<String> = node.sessions.iter().map(NodeBgpSession::line).collect();
            write_section(&mut text, "bgp", &lines);
            write_section(&mut text, "routes", &node.routes);
        }
        text
    }
}

fn describe_process(pid: Option<u32>) -> String {
    pid.map_or("not running".to_owned(), |pid| format!("process {pid}"))
}

fn pod_line(status: &PodStatus) -> String {
    let PodStatus { pod, sidecar } = status;
    let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
    let labels: Vec<String> = pod.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut line = format!("{}/{}  {}", pod.namespace, pod.name, none_or(&addresses.join(", ")));
    if !labels.is_empty() {
        let _ = write!(line, "  {}", labels.join(","));
    }
    if let Some(SidecarStatus { envoy, l7 }) = sidecar {
        let _ = write!(line, "  Envoy: {}", describe_process(*envoy));
        let _ = write!(line, ", HTTP policy: {}", describe_process(*l7));
    }
    line
}

fn write_section(text: &mut String, title: &str, lines: &[String]) {
    let mut title = title;
    for line in lines {
        let _ = writeln!(text, "  {title:<6}  {line}");
        title = "";
    }
}

fn none_or(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}
