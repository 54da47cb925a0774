//! Which host endpoint workload_policies which interface.

use crate::endpoint::HostEndpoint;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The active host endpoints of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Interface to the name of its host endpoint.
    pub specific: BTreeMap<String, String>,
    /// The one for every other interface.
    pub everywhere: Option<String>,
}

impl Assignment {
    pub fn of(&self, interface: &str) -> Option<&String> {
        self.specific.get(interface).or(self.everywhere.as_ref())
    }
}

/// Names decide where several could cover the same interface: the smallest does. `interfaces` are those that do not lead
/// to workloads, with their addresses.
pub fn assign(
    endpoints: &BTreeMap<String, HostEndpoint>,
    interfaces: &BTreeMap<String, Vec<IpAddr>>,
) -> Assignment {
    let mut assignment = Assignment::default();
    for (name, endpoint) in endpoints {
        if endpoint.interface == "*" {
            assignment.everywhere.get_or_insert_with(|| name.clone());
            continue;
        }
        for (interface, addresses) in interfaces {
            let meant = match endpoint.interface.as_str() {
                "" => addresses.iter().any(|address| endpoint.expected.contains(address)),
                wanted => wanted == interface,
            };
            if meant {
                assignment.specific.entry(interface.clone()).or_insert_with(|| name.clone());
            }
        }
    }
    assignment
}
