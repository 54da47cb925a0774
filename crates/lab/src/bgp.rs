//! Configures how the lab's nodes exchange routes: without BGP, or with BGP in one of the usual topologies.

use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::process::LabDaemon;
use crate::store;
use crate::topology::{self, LabNode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use tortie_model::API_VERSION;
use tortie_store::ResourceClient;

const NODE_AS_NUMBER: u32 = 64512;
const ROUTER_AS_NUMBER: u32 = 64600;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BgpMode {
    /// No BGP: nodes learn each other's blocks from the datastore
    #[default]
    None,
    /// Full mesh between all nodes
    Mesh,
    /// All nodes peer with node1, which is the route reflector
    Reflector,
    /// Every node peers with the router of its rack, a BIRD daemon; the bird package must be installed
    Tor,
}

impl BgpMode {
    /// Returns the networking backend setting of the node daemon.
    pub fn backend(self) -> &'static str {
        match self {
            // With "none" a node would not publish its own address. "vxlan" makes it program routes without BGP.
            BgpMode::None => "vxlan",
            BgpMode::Mesh | BgpMode::Reflector | BgpMode::Tor => "tortie",
        }
    }
}

pub fn router(place: &LabPaths) -> LabDaemon {
    LabDaemon::in_dir("the router", &dir(place))
}

fn dir(place: &LabPaths) -> PathBuf {
    place.dir().join("router")
}

/// Creates the BGP resources that must exist before the nodes start.
pub async fn seed(resources: &ResourceClient, cluster: &LabCluster) -> LabResult<()> {
    let objects = match cluster.bgp {
        BgpMode::None | BgpMode::Mesh => Vec::new(),
        BgpMode::Reflector => vec![
            configuration(),
            peer("to-reflectors", json!({"nodeSelector": "all()", "peerSelector": "has(route-reflector)"})),
        ],
        BgpMode::Tor => {
            let mut objects = vec![configuration()];
            for rack in topology::racks(&cluster.nodes) {
                let gateway = topology::gateway(rack);
                for address in [gateway.ipv4.to_string(), gateway.ipv6.to_string()] {
                    let name = format!("rack{rack}-{}", if address.contains(':') { "v6" } else { "v4" });
                    // The router returns the routes of other nodes with the nodes' own AS number in the path.
                    let spec = json!({"nodeSelector": format!("rack == '{rack}'"), "peerIP": address,
                        "asNumber": ROUTER_AS_NUMBER, "numAllowedLocalASNumbers": 1});
                    objects.push(peer(&name, spec));
                }
            }
            objects
        }
    };
    for object in objects {
        store::create(resources, object).await?;
    }
    Ok(())
}

fn configuration() -> Value {
    json!({"apiVersion": API_VERSION, "kind": "BGPConfiguration", "metadata": {"name": "default"},
        "spec": {"asNumber": NODE_AS_NUMBER, "nodeToNodeMeshEnabled": false}})
}

fn peer(name: &str, spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "BGPPeer", "metadata": {"name": name}, "spec": spec})
}

/// Builds the Node resource if BGP needs labels or fields that the node does not detect itself.
pub fn node_resource(cluster: &LabCluster, node: &LabNode) -> Option<Value> {
    let labels = match cluster.bgp {
        BgpMode::Tor => json!({"rack": node.rack.to_string()}),
        BgpMode::Reflector if cluster.nodes.first() == Some(node) => json!({"route-reflector": "true"}),
        _ => return None,
    };
    let mut bgp = json!({"ipv4Address": node.ipv4.to_string(), "ipv6Address": node.ipv6.to_string()});
    if cluster.bgp == BgpMode::Reflector {
        bgp["routeReflectorClusterID"] = json!("244.0.0.1");
    }
    Some(json!({"apiVersion": API_VERSION, "kind": "Node", "metadata": {"name": node.name, "labels": labels},
        "spec": {"bgp": bgp}}))
}

/// Starts the router between the racks and waits until its control socket accepts connections.
pub async fn start_router(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    if cluster.bgp != BgpMode::Tor {
        return Ok(());
    }
    let dir = dir(place);
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let file = dir.join("bird.conf");
    let control = dir.join("bird.ctl");
    std::fs::write(&file, render_router_config(cluster)).map_err(LabError::file(&file))?;
    let mut command = Command::new("bird");
    command.arg("-f").arg("-c").arg(&file).arg("-s").arg(&control);
    let started = router(place).start(&place.fabric(), command)?;
    started.ready(async || UnixStream::connect(&control).map(drop)).await
}

fn render_router_config(cluster: &LabCluster) -> String {
    let first = topology::gateway(1).ipv4;
    let mut text = format!(
        "router id {first};\nprotocol device {{}}\n\
         protocol kernel {{ ipv4 {{ import none; export all; }}; merge paths on; }}\n\
         protocol kernel {{ ipv6 {{ import none; export all; }}; merge paths on; }}\n"
    );
    for node in &cluster.nodes {
        let gateway = topology::gateway(node.rack);
        let ends = [
            ("ipv4", "v4", gateway.ipv4.to_string(), node.ipv4.addr().to_string()),
            ("ipv6", "v6", gateway.ipv6.to_string(), node.ipv6.addr().to_string()),
        ];
        for (family, short, own, peer) in ends {
            text += &format!(
                "protocol bgp {}_{short} {{ local {own} as {ROUTER_AS_NUMBER}; neighbor {peer} as {NODE_AS_NUMBER}; \
                 {family} {{ import all; export all; next hop self; }}; }}\n",
                node.name
            );
        }
    }
    text
}
