//! Workloads that are attached to a node.

use crate::nat::FloatingIp;
use crate::qos::QosSettings;
use std::net::{IpAddr, Ipv6Addr};

/// Identifies a workload endpoint, in Calico's terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId {
    /// `k8s`, `cni`, `openstack`, ...
    pub orchestrator: String,
    /// `namespace/pod` or `namespace/container`.
    pub workload: String,
    /// The interface inside the workload, `eth0`.
    pub endpoint: String,
}

/// A local workload: the interface that leads to it and its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlannedWorkload {
    /// Name of the host side of the interface, `cali...`.
    pub interface: String,
    /// MAC address of the workload, for a permanent neighbour entry.
    pub mac: Option<[u8; 6]>,
    /// Single addresses of both families, in the order of the endpoint.
    pub addresses: Vec<IpAddr>,
    /// Whether the workload may send from addresses that are not its own.
    pub may_spoof: bool,
    /// Floating IPs that map to its own addresses.
    pub floating: Vec<FloatingIp>,
    pub qos: QosSettings,
    /// Set if the node has BGP sessions with the workload.
    pub bgp_peer: Option<WorkloadPeering>,
    pub migration: MigrationState,
}

/// State of the live migration of a virtual machine to this node. A machine that leaves the node is in state `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MigrationState {
    #[default]
    None,
    /// The machine still runs on the other node: no routes lead to it here.
    Arriving,
    /// The machine runs here: routes to it take precedence over those to its previous node.
    Arrived,
    /// The migration is over: like `Arrived`, until routes have converged everywhere.
    Settling,
}

impl MigrationState {
    /// Returns whether routes to the machine take precedence over normal ones.
    pub fn is_elevated(self) -> bool {
        matches!(self, MigrationState::Arrived | MigrationState::Settling)
    }
}

/// BGP peering of a workload with its node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkloadPeering {
    /// The BGPPeer that selects the workload.
    pub name: String,
    /// Addresses of the host on the workload's link, to which the workload connects.
    pub addresses: Vec<IpAddr>,
}

impl PlannedWorkload {
    /// Returns every address that is routed to its interface.
    pub fn routed(&self) -> impl Iterator<Item = IpAddr> {
        let all =
            self.addresses.iter().copied().chain(self.floating.iter().map(|floating| floating.external));
        all.filter(|_| self.migration != MigrationState::Arriving)
    }
}

/// Returns the link-local address that an interface derives from its MAC: modified EUI-64 in `fe80::/64`.
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
