//! The interfaces of the host, to which host endpoints are assigned.

use crate::startup::list_local_interfaces;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::NodePlan;

/// Returns the interfaces that do not lead to workloads, with their addresses. The list is empty without host endpoints.
pub fn list_host_interfaces(plan: &NodePlan) -> BTreeMap<String, Vec<IpAddr>> {
    if plan.host_endpoints.is_empty() {
        return BTreeMap::new();
    }
    let found = match list_local_interfaces() {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "cannot list the interfaces of the host; host endpoints are not evaluated");
            return BTreeMap::new();
        }
    };
    let leads_to_workload =
        |name: &str| plan.workload_policies.values().any(|workload| workload.interface == name);
    let hosts = found.into_iter().filter(|interface| !leads_to_workload(&interface.name));
    hosts
        .map(|interface| (interface.name, interface.addresses.iter().map(|net| net.addr()).collect()))
        .collect()
}
