//! The workloads of this node: their interfaces and addresses.

use crate::changes::PlanChanges;
use crate::conversion_error::{ConversionError, ConversionReason};
use crate::qos::convert_qos;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_plan::{FloatingIp, MigrationState, PlanUpdate, PlannedWorkload, WorkloadId, WorkloadPeering};

/// Maximum length of an interface name in Linux.
const MAX_INTERFACE_NAME_LENGTH: usize = 15;

/// Namespace and name of an endpoint.
pub(crate) type EndpointName = (String, String);

#[derive(Debug, Default)]
pub(crate) struct LocalWorkloads {
    endpoints: BTreeMap<EndpointName, (WorkloadId, PlannedWorkload)>,
    /// The endpoints that claim an interface. It belongs to the first endpoint; the others wait until that one is
    /// removed.
    claims: BTreeMap<String, BTreeSet<(WorkloadId, EndpointName)>>,
    /// Interfaces whose workload may have changed since the last flush.
    changed: BTreeSet<String>,
    in_plan: BTreeMap<WorkloadId, (EndpointName, PlannedWorkload)>,
    /// Addresses of the workloads in the plan, each with the number of its workloads: two may claim the same address.
    addresses: BTreeMap<IpAddr, usize>,
    /// Endpoints with BGP sessions.
    peers: BTreeMap<EndpointName, WorkloadPeering>,
    /// Floating addresses that are granted to endpoints.
    floating: BTreeMap<EndpointName, Vec<FloatingIp>>,
    /// Number of workloads in the plan that set the DSCP of their packets.
    marked: usize,
}

/// Result of [`LocalWorkloads::flush`].
#[derive(Debug, Default)]
pub(crate) struct WorkloadChanges {
    pub plan: PlanChanges,
    /// The addresses that changed.
    pub addresses: BTreeSet<IpAddr>,
    /// Endpoints that have their interface (`true`) or have lost it (`false`).
    pub interface_changes: Vec<(EndpointName, bool)>,
}

/// Features that the settings of a node allow its endpoints to request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointPermissions {
    /// Sending from source addresses that the endpoint does not have.
    pub spoofing: bool,
}

impl EndpointPermissions {
    pub const ALL: EndpointPermissions = EndpointPermissions { spoofing: true };
}

/// Returns the workload of an endpoint of this node, or the reason why it cannot be in the plan.
pub fn local_workload(
    endpoint: &WorkloadEndpoint,
    permissions: EndpointPermissions,
) -> Result<(WorkloadId, PlannedWorkload), ConversionError> {
    let spec = &endpoint.spec;
    let name = spec.interface_name.as_str();
    if name.is_empty() {
        return Err(ConversionError::new("interfaceName", name, ConversionReason::NoInterface));
    }
    if name.len() > MAX_INTERFACE_NAME_LENGTH || name.contains(['/', ' ']) {
        return Err(ConversionError::new("interfaceName", name, ConversionReason::NotInterfaceName));
    }
    let spoofs = !spec.allow_spoofed_source_prefixes.is_empty();
    if spoofs && !permissions.spoofing {
        let prefixes = spec.allow_spoofed_source_prefixes.join(",");
        let reason = ConversionReason::SpoofingForbidden;
        return Err(ConversionError::new("allowSpoofedSourcePrefixes", prefixes, reason));
    }
    let workload = PlannedWorkload {
        interface: spec.interface_name.clone(),
        mac: if spec.mac.is_empty() { None } else { Some(parse_mac(&spec.mac)?) },
        addresses: addresses(endpoint).collect(),
        may_spoof: spoofs,
        floating: Vec::new(),
        qos: convert_qos(spec.qos_controls.as_ref()),
        bgp_peer: None,
        migration: MigrationState::None,
    };
    Ok((workload_id(endpoint), workload))
}

pub(crate) fn workload_id(endpoint: &WorkloadEndpoint) -> WorkloadId {
    let spec = &endpoint.spec;
    let name = match spec.orchestrator.as_str() {
        "k8s" => &spec.pod,
        "cni" => &spec.container_id,
        _ => &spec.workload,
    };
    WorkloadId {
        orchestrator: spec.orchestrator.clone(),
        workload: format!("{}/{name}", endpoint.metadata.namespace),
        endpoint: spec.endpoint.clone(),
    }
}

/// Returns the addresses of an endpoint, ignoring invalid ones.
pub(crate) fn addresses(endpoint: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> {
    endpoint.spec.ip_networks.iter().filter_map(|text| text.split('/').next()?.parse().ok())
}

fn parse_mac(text: &str) -> Result<[u8; 6], ConversionError> {
    let bytes: Option<Vec<u8>> =
        text.split([':', '-']).map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| ConversionError::new("mac", text, ConversionReason::NotMac))
}

impl LocalWorkloads {
    pub fn put(&mut self, name: EndpointName, id: WorkloadId, workload: PlannedWorkload) {
        self.remove(&name);
        self.changed.insert(workload.interface.clone());
        self.claims.entry(workload.interface.clone()).or_default().insert((id.clone(), name.clone()));
        self.endpoints.insert(name, (id, workload));
    }

    pub fn remove(&mut self, name: &EndpointName) {
        let Some((id, workload)) = self.endpoints.remove(name) else { return };
        if let Some(claims) = self.claims.get_mut(&workload.interface) {
            claims.remove(&(id, name.clone()));
            if claims.is_empty() {
                self.claims.remove(&workload.interface);
            }
        }
        self.changed.insert(workload.interface);
    }

    pub fn len(&self) -> usize {
        self.in_plan.len()
    }

    /// Replaces the endpoints with BGP sessions.
    pub fn set_peers(&mut self, peers: BTreeMap<EndpointName, WorkloadPeering>) {
        let old = std::mem::replace(&mut self.peers, peers);
        self.changed.extend(list_changed_interfaces(&self.endpoints, &old, &self.peers));
    }

    /// Replaces the floating addresses of all endpoints.
    pub fn set_floating(&mut self, floating: BTreeMap<EndpointName, Vec<FloatingIp>>) {
        let old = std::mem::replace(&mut self.floating, floating);
        self.changed.extend(list_changed_interfaces(&self.endpoints, &old, &self.floating));
    }

    /// Returns whether any workload sets the DSCP of its packets.
    pub fn any_sets_dscp(&self) -> bool {
        self.marked > 0
    }

    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Returns the addresses of the workloads, without floating addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.in_plan.values().flat_map(|(_, workload)| workload.addresses.iter().copied())
    }

    /// Returns the endpoints that claim an interface which belongs to another endpoint.
    pub fn waiting(&self) -> impl Iterator<Item = &EndpointName> {
        self.claims.values().flat_map(|claims| claims.iter().skip(1)).map(|(_, name)| name)
    }

    /// Returns the changes since the last flush.
    pub fn flush(&mut self) -> WorkloadChanges {
        let mut changes = WorkloadChanges::default();
        if self.changed.is_empty() {
            return changes;
        }
        let mut wanted: BTreeMap<WorkloadId, (EndpointName, PlannedWorkload)> = BTreeMap::new();
        let mut stale: BTreeSet<WorkloadId> = BTreeSet::new();
        let changed = std::mem::take(&mut self.changed);
        for (id, (_, workload)) in &self.in_plan {
            if changed.contains(&workload.interface) {
                stale.insert(id.clone());
            }
        }
        for interface in &changed {
            let first = self.claims.get(interface).and_then(BTreeSet::first);
            if let Some((id, name)) = first
                && let Some((_, workload)) = self.endpoints.get(name)
            {
                let bgp_peer = self.peers.get(name).cloned();
                let floating = self.floating.get(name).cloned().unwrap_or_default();
                let workload = PlannedWorkload { bgp_peer, floating, ..workload.clone() };
                wanted.insert(id.clone(), (name.clone(), workload));
            }
        }
        for id in stale.iter().filter(|id| !wanted.contains_key(id)) {
            if let Some((name, old)) = self.in_plan.remove(id) {
                self.remove_addresses(&old, &mut changes.addresses);
                changes.interface_changes.push((name, false));
                changes.plan.removed.push(PlanUpdate::Workload(id.clone(), None));
            }
        }
        for (id, (name, workload)) in wanted {
            changes.interface_changes.push((name.clone(), true));
            if self.in_plan.get(&id).is_some_and(|(_, in_plan)| *in_plan == workload) {
                continue;
            }
            if let Some((_, old)) = self.in_plan.remove(&id) {
                self.remove_addresses(&old, &mut changes.addresses);
            }
            for address in workload.routed() {
                *self.addresses.entry(address).or_default() += 1;
                changes.addresses.insert(address);
            }
            self.marked += usize::from(workload.qos.dscp.is_some());
            changes.plan.added.push(PlanUpdate::Workload(id.clone(), Some(workload.clone())));
            self.in_plan.insert(id, (name, workload));
        }
        changes
    }

    /// Removes the addresses of a workload and adds them to `changed`.
    fn remove_addresses(&mut self, old: &PlannedWorkload, changed: &mut BTreeSet<IpAddr>) {
        self.marked -= usize::from(old.qos.dscp.is_some());
        for address in old.routed() {
            if let Some(count) = self.addresses.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.addresses.remove(&address);
                }
            }
            changed.insert(address);
        }
    }
}

/// Returns the interfaces of the endpoints whose values differ between `old` and `new`.
fn list_changed_interfaces<'a, T: PartialEq>(
    endpoints: &'a BTreeMap<EndpointName, (WorkloadId, PlannedWorkload)>,
    old: &'a BTreeMap<EndpointName, T>,
    new: &'a BTreeMap<EndpointName, T>,
) -> impl Iterator<Item = String> + 'a {
    let names = old.keys().chain(new.keys()).filter(|name| old.get(*name) != new.get(*name));
    names.filter_map(|name| Some(endpoints.get(name)?.1.interface.clone()))
}
