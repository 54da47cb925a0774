//! Assigns racks and addresses to the lab's nodes. Pure functions without I/O.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};

pub const MAX_NODES: u8 = 100;
const NODES_PER_RACK: u8 = 2;
const GATEWAY_HOST_NUMBER: u8 = 254;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LabTopology {
    /// All nodes on one link.
    L2,
    /// Racks of two nodes, one link per rack, and a router between the racks.
    L3,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabNode {
    pub name: String,
    pub rack: u8,
    /// Addresses with the prefix length of the link.
    pub ipv4: Ipv4Net,
    pub ipv6: Ipv6Net,
}

/// Addresses of the router on a rack's link. With one rack it does not forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackGateway {
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

impl LabTopology {
    /// Returns the nodes, named node1, node2 and so on; at most [`MAX_NODES`].
    pub fn nodes(self, count: u8) -> Vec<LabNode> {
        (1..=count.min(MAX_NODES)).map(|number| self.node(number)).collect()
    }

    fn node(self, number: u8) -> LabNode {
        let rack = match self {
            LabTopology::L2 => 1,
            LabTopology::L3 => (number - 1) / NODES_PER_RACK + 1,
        };
        LabNode { name: format!("node{number}"), rack, ipv4: v4(rack, number), ipv6: v6(rack, number) }
    }
}

pub fn gateway(rack: u8) -> RackGateway {
    RackGateway { ipv4: v4(rack, GATEWAY_HOST_NUMBER).addr(), ipv6: v6(rack, GATEWAY_HOST_NUMBER).addr() }
}

/// Returns the rack numbers in order.
pub fn racks(nodes: &[LabNode]) -> Vec<u8> {
    let mut racks: Vec<u8> = nodes.iter().map(|node| node.rack).collect();
    racks.dedup();
    racks
}

/// Returns the networks that contain the addresses of all nodes.
pub fn networks() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::new_assert(v4(0, 0).addr(), 16)), IpNet::V6(Ipv6Net::new_assert(v6(0, 0).addr(), 48))]
}

fn v4(rack: u8, host: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(10, 10, rack, host), 24)
}

fn v6(rack: u8, host: u8) -> Ipv6Net {
    let address = Ipv6Addr::new(0xfd00, 0x10, 0x10, rack.into(), 0, 0, 0, host.into());
    Ipv6Net::new_assert(address, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_link_for_all() {
        let nodes = LabTopology::L2.nodes(3);
        assert_eq!(racks(&nodes), [1]);
        assert_eq!(nodes[2].name, "node3");
        assert_eq!(nodes[2].ipv4.to_string(), "10.10.1.3/24");
        assert_eq!(nodes[2].ipv6.to_string(), "fd00:10:10:1::3/64");
        assert_eq!(gateway(1).ipv4.to_string(), "10.10.1.254");
    }

    #[test]
    fn every_node_address_is_in_the_lab_networks() {
        for node in LabTopology::L3.nodes(MAX_NODES) {
            let [v4, v6] = networks();
            assert!(v4.contains(&IpNet::V4(node.ipv4)) && v6.contains(&IpNet::V6(node.ipv6)), "{node:?}");
        }
    }

    #[test]
    fn racks_of_two() {
        let nodes = LabTopology::L3.nodes(5);
        assert_eq!(nodes.iter().map(|n| n.rack).collect::<Vec<_>>(), [1, 1, 2, 2, 3]);
        assert_eq!(racks(&nodes), [1, 2, 3]);
        assert_eq!(nodes[4].ipv4.to_string(), "10.10.3.5/24");
    }

    #[test]
    fn no_two_nodes_share_an_address() {
        for topology in [LabTopology::L2, LabTopology::L3] {
            let nodes = topology.nodes(u8::MAX);
            assert_eq!(nodes.len(), usize::from(MAX_NODES));
            let addresses: std::collections::HashSet<_> = nodes.iter().map(|n| (n.ipv4, n.ipv6)).collect();
            assert_eq!(addresses.len(), nodes.len());
            assert!(nodes.iter().all(|node| gateway(node.rack).ipv4 != node.ipv4.addr()));
        }
    }
}
