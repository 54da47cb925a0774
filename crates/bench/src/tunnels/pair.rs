//! Sets up two nodes with a pod on each and a link or a router between them, configured with command line tools or by
//! Tortie's dataplane.

use super::case::{BenchTunnelType, EncapsulationCase};
use super::wireguard::{self, WireguardTunnelEnd};
use super::{block, resource, with_status};
use crate::namespace::{BenchResult, NamespaceGroup, ip};
use crate::policy::inside;
use crate::policy::traffic::{self, TrafficRates};
use serde_json::json;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_dataplane::{DataplaneHandle, DataplaneReport, Netns, ReportReceiver};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_plan::{NodePlan, TunnelKind};

const POD_HOST_INTERFACE: &str = "cali0";
/// MAC address of the node's end of a pod's link, and the link-local address derived from it.
const HOST_MAC: &str = "ee:ee:ee:ee:ee:ee";
const HOST_LINK_LOCAL: &str = "fe80::ecee:eeff:feee:eeee";
const POD_GATEWAY: &str = "169.254.1.1";
/// Time limit for a device to report its public key.
const PUBLIC_KEY_TIMEOUT: Duration = Duration::from_secs(60);

pub struct NodePair {
    case: EncapsulationCase,
    /// The third namespace is the router, if there is one.
    nodes: NamespaceGroup,
    pods: NamespaceGroup,
    /// Kept running during the measurement.
    _dataplanes: Vec<(DataplaneHandle, ReportReceiver)>,
}

impl NodePair {
    fn wired(case: EncapsulationCase) -> BenchResult<NodePair> {
        let (nodes, pods) =
            (NamespaceGroup::new(if case.is_routed { 3 } else { 2 })?, NamespaceGroup::new(2)?);
        for netns in nodes.paths().iter().chain(&pods.paths()) {
            // No duplicate address detection: the addresses are unique.
            inside(netns, || Ok(fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0")?))?;
        }
        if case.is_routed {
            forward(&nodes, 2)?;
            for number in [0, 1_u8] {
                let node = nodes.name(number.into());
                let lines = [
                    format!("link add rack{number} type veth peer name eth0 netns {node}"),
                    format!("addr add {} dev rack{number}", case.router(number)),
                    format!("link set rack{number} up"),
                ];
                ip(Some(nodes.name(2)), lines)?;
            }
        } else {
            let link = format!("link add eth0 type veth peer name eth0 netns {}", nodes.name(1));
            ip(Some(nodes.name(0)), [link])?;
        }
        for (place, number) in [(0, 0_u8), (1, 1)] {
            let of_node = [
                "link set lo up".to_owned(),
                format!("addr add {} dev eth0", case.node(number)),
                "link set eth0 up".to_owned(),
                // The kernel does proxy ARP for the pods' gateway only if the node has a route to it.
                format!("route add default via {}", case.gateway(number)),
                format!(
                    "link add {POD_HOST_INTERFACE} address {HOST_MAC} type veth peer name eth0 netns {}",
                    pods.name(place)
                ),
                format!("link set {POD_HOST_INTERFACE} up"),
            ];
            ip(Some(nodes.name(place)), of_node)?;
            let gateway = if case.v6 { HOST_LINK_LOCAL } else { POD_GATEWAY };
            let of_pod = [
                "link set lo up".to_owned(),
                format!("link set eth0 mtu {} up", case.mtu()),
                format!("addr add {} dev eth0", case.pod(number)),
                format!("route add {gateway} dev eth0"),
                format!("route add default via {gateway} dev eth0"),
            ];
            ip(Some(pods.name(place)), of_pod)?;
        }
        Ok(NodePair { case, nodes, pods, _dataplanes: Vec::new() })
    }

    pub async fn by_hand(case: EncapsulationCase) -> BenchResult<NodePair> {
        let pair = NodePair::wired(case)?;
        if case.taken() == Some(BenchTunnelType::Wireguard) {
            let end = |place: usize, number: u8| -> BenchResult<WireguardTunnelEnd> {
                ip(Some(pair.nodes.name(place)), ["link add wg0 type wireguard"])?;
                Ok(WireguardTunnelEnd {
                    netns: pair.nodes.path(place),
                    endpoint: SocketAddr::new(case.node(number).addr(), 51820),
                    allowed: case.block(number),
                })
            };
            wireguard::connect("wg0", &[end(0, 0)?, end(1, 1)?]).await?;
        }
        for (place, number) in [(0, 0_u8), (1, 1)] {
            forward(&pair.nodes, place)?;
            let (other, name) = (1 - number, pair.nodes.name(place));
            ip(Some(name), [format!("route add {} dev {POD_HOST_INTERFACE}", case.pod(number))])?;
            ip(Some(name), pair.to_other(number))?;
            if case.taken() == Some(BenchTunnelType::Vxlan) {
                let node = case.node(other).addr();
                let entry = format!("66:00:00:00:00:0{other} dst {node} dev vx0 self permanent");
                let mut bridge = Command::new("bridge");
                let output = bridge.args(["-n", name, "fdb", "add"]).args(entry.split(' ')).output()?;
                if !output.status.success() {
                    return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
                }
            }
            if case.is_routed && case.taken().is_none() {
                let route = format!("route add {} via {}", case.block(number), case.node(number).addr());
                ip(Some(pair.nodes.name(2)), [route])?;
            }
        }
        Ok(pair)
    }

    /// Returns the `ip` commands with which a node reaches the pods of the other node.
    fn to_other(&self, number: u8) -> Vec<String> {
        let (case, other) = (self.case, 1 - number);
        let (block, end, mtu) = (case.block(other), case.end(other), case.mtu());
        let (own, node) = (case.node(number).addr(), case.node(other).addr());
        match case.taken() {
            None => vec![format!("route add {block} via {}", case.gateway(number))],
            Some(BenchTunnelType::Vxlan) => vec![
                format!(
                    "link add vx0 address 66:00:00:00:00:0{number} type vxlan id 4096 dstport 4789 local {own} dev eth0 nolearning"
                ),
                format!("link set vx0 mtu {mtu} up"),
                format!("addr add {} dev vx0", case.end(number)),
                format!("neigh add {end} lladdr 66:00:00:00:00:0{other} dev vx0 nud permanent"),
                format!("route add {end} dev vx0"),
                format!("route add {block} via {end} dev vx0 onlink"),
            ],
            Some(BenchTunnelType::Ipip) => vec![
                format!("link set tunl0 mtu {mtu} up"),
                format!("addr add {} dev tunl0", case.end(number)),
                format!("route add {block} via {node} dev tunl0 onlink"),
            ],
            Some(BenchTunnelType::Wireguard) => {
                vec![format!("link set wg0 mtu {mtu} up"), format!("route add {block} dev wg0")]
            }
        }
    }

    /// Creates a pair configured by Tortie, with a profile that allows everything, as in a cluster without policies.
    pub async fn ours(case: EncapsulationCase) -> BenchResult<NodePair> {
        let mut pair = NodePair::wired(case)?;
        let mut computes = Vec::new();
        let mut keys: [String; 2] = Default::default();
        let encrypts = case.tunnel == Some(BenchTunnelType::Wireguard);
        for (place, number) in [(0, 0_u8), (1, 1)] {
            let mut compute = PlanCompute::new(&format!("n{number}"), ParameterEnvironment::default());
            for (key, value) in entries(case)? {
                compute.put(&key, &value);
            }
            let mut plan = NodePlan::default();
            compute.flush().into_iter().for_each(|update| plan.apply(update));
            let netns = Netns::open(pair.nodes.path(place))?;
            let mut started = DataplaneHandle::start(netns, compute.settings().clone()).await?;
            let outcome = started.0.replace(plan).await?;
            if let Some(failure) = outcome.failures.first() {
                return Err(failure.to_string().into());
            }
            if encrypts {
                keys[place] =
                    tokio::time::timeout(PUBLIC_KEY_TIMEOUT, public_key(&mut started.1, case.v6)).await??;
            }
            pair._dataplanes.push(started);
            computes.push(compute);
        }
        if encrypts {
            // Each node learns the other's key as soon as it exists.
            for (compute, (dataplane, _)) in computes.iter_mut().zip(&pair._dataplanes) {
                for (number, key) in (0_u8..).zip(&keys) {
                    let (key, value) = node_with_key(case, number, key)?;
                    compute.put(&key, &value);
                }
                dataplane.apply(compute.flush()).await?;
            }
        }
        Ok(pair)
    }

    pub fn rates(&self) -> BenchResult<TrafficRates> {
        traffic::between(&self.pods.path(0), &self.pods.path(1), self.case.pod(1))
    }
}

/// Enables forwarding on a node or router, and proxy ARP for the pods' gateway.
fn forward(nodes: &NamespaceGroup, place: usize) -> BenchResult<()> {
    inside(&nodes.path(place), || {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
        let answers = format!("/proc/sys/net/ipv4/conf/{POD_HOST_INTERFACE}/proxy_arp");
        if fs::exists(&answers)? {
            fs::write(answers, "1")?;
        }
        Ok(())
    })
}

/// Waits until the dataplane reports the public key of its device.
async fn public_key(reports: &mut ReportReceiver, v6: bool) -> BenchResult<String> {
    let kind = if v6 { TunnelKind::WireguardV6 } else { TunnelKind::WireguardV4 };
    while let Some(report) = reports.next().await {
        if let DataplaneReport::PublicKeys(keys) = report
            && let Some(key) = keys.get(&kind)
        {
            return Ok(key.clone());
        }
    }
    Err("the dataplane has stopped".into())
}

fn node_with_key(case: EncapsulationCase, number: u8, key: &str) -> BenchResult<(StoreKey, StoreValue)> {
    let (address, end) = (case.node(number), case.end(number));
    let (spec, status) = match case.v6 {
        false => (
            json!({
                "bgp": {"ipv4Address": address, "ipv4IPIPTunnelAddr": end}, "ipv4VXLANTunnelAddr": end,
                "wireguard": {"interfaceIPv4Address": end},
            }),
            json!({"wireguardPublicKey": key}),
        ),
        true => (
            json!({
                "bgp": {"ipv6Address": address}, "ipv6VXLANTunnelAddr": end,
                "wireguard": {"interfaceIPv6Address": end},
            }),
            json!({"wireguardPublicKeyV6": key}),
        ),
    };
    with_status(Kind::Node, "", &format!("n{number}"), spec, status)
}

fn entries(case: EncapsulationCase) -> BenchResult<Vec<(StoreKey, StoreValue)>> {
    let mut pool =
        json!({"cidr": case.pool(), "vxlanMode": case.mode(BenchTunnelType::Vxlan), "ipipMode": "Never"});
    if !case.v6 {
        pool["ipipMode"] = case.mode(BenchTunnelType::Ipip).into();
    }
    let allow = json!([{"action": "Allow"}]);
    let encrypts = case.tunnel == Some(BenchTunnelType::Wireguard);
    let settings =
        json!({"wireguardEnabled": encrypts && !case.v6, "wireguardEnabledV6": encrypts && case.v6});
    let mut entries = vec![
        resource(Kind::IPPool, "", "pool", pool)?,
        resource(Kind::Profile, "", "open", json!({"ingress": allow, "egress": allow}))?,
        resource(Kind::FelixConfiguration, "", "default", settings)?,
    ];
    for number in [0, 1] {
        let name = format!("n{number}");
        entries.push(node_with_key(case, number, "")?);
        entries.push(block(&case.block(number).to_string(), &name)?);
        let endpoint = json!({
            "orchestrator": "cni", "node": name, "containerID": format!("c{number}"), "endpoint": "eth0",
            "interfaceName": POD_HOST_INTERFACE, "ipNetworks": [case.pod(number)], "profiles": ["open"],
        });
        let id = format!("{name}-cni-c{number}-eth0");
        entries.push(resource(Kind::WorkloadEndpoint, "default", &id, endpoint)?);
    }
    Ok(entries)
}
