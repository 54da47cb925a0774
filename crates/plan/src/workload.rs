//! Workloads: what is wired to a node.

use crate::nat::FloatingIp;
use crate::qos::Qos;
use std::net::{IpAddr, Ipv6Addr};

/// Who a workload endpoint is, in the words of the reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId {
    /// `k8s`, `cni`, `openstack`, ...
    pub orchestrator: String,
    /// `namespace/pod` or `namespace/container`.
    pub workload: String,
    /// The interface inside the workload, `eth0`.
    pub endpoint: String,
}

/// A local workload: the interface that leads to it and the addresses behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The host's end, `cali...`.
    pub interface: String,
    /// The workload's own MAC, for a permanent neighbour entry.
    pub mac: Option<[u8; 6]>,
    /// Single addresses, both families, in the order of the endpoint.
    pub addresses: Vec<IpAddr>,
    /// Whether the workload may send from addresses that are not its own.
    pub may_spoof: bool,
    /// Addresses elsewhere that stand for its own.
    pub floating: Vec<FloatingIp>,
    pub qos: Qos,
    /// BGP is spoken with it.
    pub bgp_peer: Option<LocalPeer>,
    pub migration: Migration,
}

/// Where a virtual machine is that comes from another node. One that leaves is none of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Migration {
    #[default]
    None,
    /// It still runs elsewhere: no route leads to it here.
    Arriving,
    /// It runs here: routes to it are better than those to where it came from.
    Arrived,
    /// The migration is over: the same, until routes have converged everywhere.
    Settling,
}

impl Migration {
    /// Whether routes win over normal ones.
    pub fn is_elevated(self) -> bool {
        matches!(self, Migration::Arrived | Migration::Settling)
    }
}

/// What makes a workload a peer of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPeer {
    /// The BGPPeer that selects it.
    pub name: String,
    /// What the host is called on its link, for the workload to call.
    pub addresses: Vec<IpAddr>,
}

impl Workload {
    /// Every address that is routed to its interface.
    pub fn routed(&self) -> impl Iterator<Item = IpAddr> {
        let all =
            self.addresses.iter().copied().chain(self.floating.iter().map(|floating| floating.external));
        all.filter(|_| self.migration != Migration::Arriving)
    }
}

/// The address that an interface with this MAC gives itself: modified EUI-64 in `fe80::/64`.
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let group = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, group(a ^ 2, b), group(c, 0xff), group(0xfe, d), group(e, f))
}
