//! What the kernel refused: which object, whom it concerns, and why. Whoever waits for a workload is matched by its id,
//! never by searching the text.

use crate::error::Error;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use tortie_plan::{RouteKey, Table, WorkloadId};

/// One object that the kernel did not take; everything else went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub object: KernelObject,
    pub concerns: Concerns,
    pub reason: String,
}

impl Failure {
    /// Whether this workload does not have in the kernel what it should have.
    pub fn concerns(&self, workload: &WorkloadId) -> bool {
        match &self.concerns {
            Concerns::Everything => true,
            Concerns::Workloads(workloads) => workloads.contains(workload),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.reason)
    }
}

impl From<Error> for Failure {
    /// One that is of no concern to workloads.
    fn from(error: Error) -> Failure {
        let (object, reason) = error.into();
        Failure { object, concerns: Concerns::nobody(), reason }
    }
}

/// Which workloads do not have what they should have because of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// Every workload of the node.
    Everything,
    /// These; none for an object that belongs to the node alone.
    Workloads(BTreeSet<WorkloadId>),
}

impl Concerns {
    pub fn nobody() -> Concerns {
        Concerns::Workloads(BTreeSet::new())
    }
}

impl FromIterator<WorkloadId> for Concerns {
    fn from_iter<I: IntoIterator<Item = WorkloadId>>(workloads: I) -> Concerns {
        Concerns::Workloads(workloads.into_iter().collect())
    }
}

/// An object of the kernel, by what identifies it there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelObject {
    Interface {
        name: String,
    },
    Address {
        address: IpAddr,
        interface: String,
    },
    Route {
        key: RouteKey,
    },
    /// A rule of policy routing.
    RoutingRule {
        priority: u32,
    },
    Neighbour {
        address: IpAddr,
        interface: String,
    },
    /// An address that an interface answers for.
    Proxy {
        address: IpAddr,
        interface: String,
    },
    /// An entry of a tunnel's forwarding database.
    ForwardingEntry {
        mac: [u8; 6],
        interface: String,
    },
    /// Buckets and redirections of an interface.
    TrafficControl {
        interface: String,
    },
    Sysctl {
        /// With dots.
        key: String,
    },
    Chain {
        name: String,
    },
    Rule {
        chain: String,
        /// Counted from 0 within the chain.
        index: usize,
    },
    Set {
        name: String,
    },
    SetElement {
        set: String,
        element: String,
    },
    MapElement {
        map: String,
        key: String,
    },
    Table {
        name: &'static str,
    },
    /// One that is not ours, of a table named with its family.
    ForeignChain {
        table: String,
        name: String,
    },
    /// A request that is about no single object: reading a list, opening a socket.
    KernelState(&'static str),
}

impl KernelObject {
    pub(crate) fn interface(name: impl Into<String>) -> KernelObject {
        KernelObject::Interface { name: name.into() }
    }

    pub(crate) fn route(key: impl Into<RouteKey>) -> KernelObject {
        KernelObject::Route { key: key.into() }
    }
}

impl From<&'static str> for KernelObject {
    fn from(what: &'static str) -> KernelObject {
        KernelObject::KernelState(what)
    }
}

impl fmt::Display for KernelObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelObject::Interface { name } => write!(f, "interface {name}"),
            KernelObject::Address { address, interface } => write!(f, "address {address} on {interface}"),
            KernelObject::Route { key: RouteKey { table: Table::MAIN, destination } } => {
                write!(f, "route {destination}")
            }
            KernelObject::Route { key } => write!(f, "route {} of table {}", key.destination, key.table.0),
            KernelObject::RoutingRule { priority } => write!(f, "routing rule {priority}"),
            KernelObject::Neighbour { address, interface } => write!(f, "neighbour {address} on {interface}"),
            KernelObject::Proxy { address, interface } => {
                write!(f, "proxied address {address} on {interface}")
            }
            KernelObject::ForwardingEntry { mac: [a, b, c, d, e, g], interface } => {
                write!(f, "forwarding entry {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} on {interface}")
            }
            KernelObject::TrafficControl { interface } => write!(f, "traffic control of {interface}"),
            KernelObject::Sysctl { key } => write!(f, "sysctl {key}"),
            KernelObject::Chain { name } => write!(f, "chain {name}"),
            KernelObject::Rule { chain, index } => write!(f, "rule {index} of chain {chain}"),
            KernelObject::Set { name } => write!(f, "set {name}"),
            KernelObject::SetElement { set, element } => write!(f, "element {element} of set {set}"),
            KernelObject::MapElement { map, key } => write!(f, "element {key} of map {map}"),
            KernelObject::Table { name } => write!(f, "table {name}"),
            KernelObject::ForeignChain { table, name } => write!(f, "chain {name} of table {table}"),
            KernelObject::KernelState(what) => f.write_str(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipnet::IpNet;

    fn id(name: &str) -> WorkloadId {
        WorkloadId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
    }

    #[test]
    fn a_failure_is_matched_by_workload() {
        let object = KernelObject::route("10.0.0.1/32".parse::<IpNet>().unwrap());
        let failure = |concerns| Failure { object: object.clone(), concerns, reason: "File exists".into() };
        let ones = failure([id("one")].into_iter().collect());
        assert!(ones.concerns(&id("one")) && !ones.concerns(&id("two")));
        assert!(failure(Concerns::Everything).concerns(&id("two")));
        assert!(!failure(Concerns::nobody()).concerns(&id("one")));
        assert_eq!(ones.to_string(), "route 10.0.0.1/32: File exists");
        let destination = "10.0.0.0/26".parse().unwrap();
        let elsewhere = KernelObject::route(RouteKey { table: Table(7), destination });
        assert_eq!(elsewhere.to_string(), "route 10.0.0.0/26 of table 7");
    }
}
