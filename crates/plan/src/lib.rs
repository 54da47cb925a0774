//! What one node must have in its kernel: the workloads wired to it and the routes it holds.
//!
//! `compute` says how the plan changes, `dataplane` makes the kernel match it; neither knows the other. The plan is a
//! value: the same datastore always gives the same plan, whatever the order in which it was learnt.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The host's end, `cali...`.
    pub interface: String,
    /// The workload's own MAC, for a permanent neighbour entry.
    pub mac: Option<[u8; 6]>,
    /// Single addresses, both families, in the order of the endpoint.
    pub addresses: Vec<IpAddr>,
    /// Whether the workload may send from addresses that are not its own.
    pub may_spoof: bool,
}

/// Where the node sends what is addressed to a block or an address of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One of our own blocks: what is not a live workload in it goes nowhere, not to the default gateway.
    Blackhole,
    /// Directly to the node that owns it, without encapsulation.
    Via(IpAddr),
}

/// How kernel state is written; from FelixConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Interfaces that start with one of these lead to workloads.
    pub interface_prefixes: Vec<String>,
    /// Protocol number of workload routes; 3 (boot) also means that all other routes of ours carry 80.
    pub device_route_protocol: u8,
    pub ipv4_route_priority: u32,
    pub ipv6_route_priority: u32,
    /// Remove routes on workload interfaces that we did not write.
    pub remove_external_routes: bool,
    pub ip_forwarding: bool,
    pub ipv6: bool,
    /// MTU given by an administrator; otherwise it follows the interface that carries the node's address.
    pub mtu: Option<u32>,
    /// Where `mtu` is not given: which interfaces count.
    pub mtu_interface_pattern: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            interface_prefixes: vec!["cali".into()],
            device_route_protocol: 3,
            ipv4_route_priority: 1024,
            ipv6_route_priority: 1024,
            remove_external_routes: true,
            ip_forwarding: true,
            ipv6: true,
            mtu: None,
            mtu_interface_pattern: "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)".into(),
        }
    }
}

/// Everything a node must have in its kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub workloads: BTreeMap<WorkloadId, Workload>,
    pub routes: BTreeMap<IpNet, Route>,
}

/// One change to a plan; `None` takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    Workload(WorkloadId, Option<Workload>),
    Route(IpNet, Option<Route>),
}

impl Plan {
    pub fn apply(&mut self, update: Update) {
        fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match update {
            Update::Workload(id, workload) => set(&mut self.workloads, id, workload),
            Update::Route(net, route) => set(&mut self.routes, net, route),
        }
    }
}
