//! Failures reported by the kernel: the object, the workloads that it concerns, and the reason. Callers that wait for a
//! workload match failures by its id, never by searching the text.

use crate::error::DataplaneError;
use crate::kernel::KernelRejection;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use tortie_plan::{RouteKey, RoutingTable, WorkloadId};

/// One object that could not be written to the kernel; the others were still processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFailure {
    pub object: KernelObject,
    pub concerns: AffectedWorkloads,
    pub reason: FailureReason,
}

/// The reason of a failure: its text, to which it dereferences, and the errno if the kernel returned one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureReason {
    text: String,
    errno: Option<i32>,
}

impl FailureReason {
    pub(crate) fn new(text: String, errno: Option<i32>) -> FailureReason {
        FailureReason { text, errno }
    }

    /// Takes the errno from the error or from one of its sources.
    pub(crate) fn from_error(error: &(dyn std::error::Error + 'static)) -> FailureReason {
        let mut errno = None;
        let mut cause = Some(error);
        while let Some(current) = cause {
            if let Some(rejection) = current.downcast_ref::<KernelRejection>() {
                errno = rejection.errno;
            } else if let Some(error) = current.downcast_ref::<std::io::Error>() {
                errno = error.raw_os_error();
            }
            cause = current.source();
        }
        FailureReason { text: error.to_string(), errno }
    }

    /// Returns the error number with which the kernel rejected the object.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }
}

impl std::ops::Deref for FailureReason {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl From<String> for FailureReason {
    fn from(text: String) -> FailureReason {
        FailureReason { text, errno: None }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl KernelFailure {
    pub(crate) fn new(
        object: KernelObject,
        concerns: AffectedWorkloads,
        reason: &FailureReason,
    ) -> KernelFailure {
        KernelFailure { object, concerns, reason: reason.clone() }
    }

    /// Returns whether kernel state of this workload is missing or outdated because of the failure.
    pub fn concerns(&self, workload: &WorkloadId) -> bool {
        match &self.concerns {
            AffectedWorkloads::Everything => true,
            AffectedWorkloads::Workloads(workloads) => workloads.contains(workload),
        }
    }
}

impl fmt::Display for KernelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.reason)
    }
}

impl From<DataplaneError> for KernelFailure {
    /// Converts an error into a failure that concerns no workload.
    fn from(error: DataplaneError) -> KernelFailure {
        let (object, reason) = error.into();
        KernelFailure { object, concerns: AffectedWorkloads::none(), reason }
    }
}

/// Workloads whose kernel state is incomplete because of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffectedWorkloads {
    /// Every workload of the node.
    Everything,
    /// These workloads; empty for an object that belongs to the node alone.
    Workloads(BTreeSet<WorkloadId>),
}

impl AffectedWorkloads {
    pub fn none() -> AffectedWorkloads {
        AffectedWorkloads::Workloads(BTreeSet::new())
    }
}

impl FromIterator<WorkloadId> for AffectedWorkloads {
    fn from_iter<I: IntoIterator<Item = WorkloadId>>(workloads: I) -> AffectedWorkloads {
        AffectedWorkloads::Workloads(workloads.into_iter().collect())
    }
}

/// An object in the kernel, by its identifying attributes.
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
    /// A policy routing rule (`ip rule`).
    RoutingRule {
        priority: u32,
    },
    Neighbour {
        address: IpAddr,
        interface: String,
    },
    /// An address for which an interface answers ARP or ND requests.
    Proxy {
        address: IpAddr,
        interface: String,
    },
    /// An entry of a tunnel's forwarding database (FDB).
    ForwardingEntry {
        mac: [u8; 6],
        interface: String,
    },
    /// Token buckets and redirections of an interface.
    TrafficControl {
        interface: String,
    },
    Sysctl {
        /// Key with dots as separators.
        key: String,
    },
    Chain {
        name: String,
    },
    Rule {
        chain: String,
        /// Position in the chain, counted from 0.
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
    /// A chain that we do not own; `table` includes the family.
    ForeignChain {
        table: String,
        name: String,
    },
    /// A request that concerns no single object, such as reading a list or opening a socket.
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
            KernelObject::Route { key: RouteKey { table: RoutingTable::MAIN, destination } } => {
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
        let failure = |concerns| KernelFailure {
            object: object.clone(),
            concerns,
            reason: "File exists".to_owned().into(),
        };
        let ones = failure([id("one")].into_iter().collect());
        assert!(ones.concerns(&id("one")) && !ones.concerns(&id("two")));
        assert!(failure(AffectedWorkloads::Everything).concerns(&id("two")));
        assert!(!failure(AffectedWorkloads::none()).concerns(&id("one")));
        assert_eq!(ones.to_string(), "route 10.0.0.1/32: File exists");
        let destination = "10.0.0.0/26".parse().unwrap();
        let elsewhere = KernelObject::route(RouteKey { table: RoutingTable(7), destination });
        assert_eq!(elsewhere.to_string(), "route 10.0.0.0/26 of table 7");
    }
}
