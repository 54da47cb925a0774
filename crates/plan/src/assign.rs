//! Assigns host endpoints to the interfaces of a node.

use crate::endpoint::HostEndpointPolicy;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The active host endpoints of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostEndpointAssignment {
    /// Name of the host endpoint of each interface, by interface name.
    pub specific: BTreeMap<String, String>,
    /// Name of the `*` host endpoint, which applies to every other interface.
    pub everywhere: Option<String>,
}

impl HostEndpointAssignment {
    pub fn of(&self, interface: &str) -> Option<&String> {
        self.specific.get(interface).or(self.everywhere.as_ref())
    }
}

/// Assigns host endpoints to interfaces. If several host endpoints match the same interface, the one with the
/// smallest name wins. `interfaces` holds the interfaces that do not lead to workloads, with their addresses.
pub fn assign(
    endpoints: &BTreeMap<String, HostEndpointPolicy>,
    interfaces: &BTreeMap<String, Vec<IpAddr>>,
) -> HostEndpointAssignment {
    let mut assignment = HostEndpointAssignment::default();
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
