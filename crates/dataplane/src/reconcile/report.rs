//! Derives reports from the kernel's state: the state of workloads and host endpoints, the MTU and the number of
//! routes.

use super::routes::PROTOCOL_BIRD;
use super::{DataplaneCore, Reconciler};
use crate::failure::KernelFailure;
use crate::kernel::{KernelLink, KernelRouteTarget};
use crate::mtu::{self, MtuChoice};
use crate::policy::FlowInterfaces;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{MigrationState, PlannedWorkload, QosSettings, RouteKey, TunnelKind, WorkloadId};

/// State of a workload in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadState {
    Up,
    Down,
    Error(String),
}

impl DataplaneCore {
    pub fn states(&self) -> impl Iterator<Item = (&WorkloadId, WorkloadState)> {
        self.context.plan.workloads().iter().map(|(id, workload)| (id, self.state(id, workload)))
    }

    /// Returns the state of host endpoints by their interfaces; `failure` is the reason if policy is not in force.
    pub fn host_states(
        &self,
        endpoints: BTreeMap<String, Option<Vec<String>>>,
        failure: Option<&str>,
    ) -> BTreeMap<String, WorkloadState> {
        let mut states = BTreeMap::new();
        for (name, interfaces) in endpoints {
            let state = match (failure, interfaces) {
                (Some(reason), _) => WorkloadState::Error(reason.to_owned()),
                (None, None) => WorkloadState::Up,
                (None, Some(interfaces)) if interfaces.iter().any(|name| self.is_up(name)) => {
                    WorkloadState::Up
                }
                (None, Some(_)) => WorkloadState::Down,
            };
            states.insert(name, state);
        }
        states
    }

    fn is_up(&self, interface: &str) -> bool {
        self.context.links.named(interface).is_some_and(KernelLink::is_up)
    }

    fn state(&self, id: &WorkloadId, workload: &PlannedWorkload) -> WorkloadState {
        let context = &self.context;
        let routes = &self.reconcilers.routes;
        let interface = &workload.interface;
        let active = context.plan.active(interface).is_some_and(|(active, _)| active == id);
        let Some(link) = context.links.named(interface).filter(|link| active && link.is_up()) else {
            return WorkloadState::Down;
        };
        if let Some(bridge) = self.bridge_of(link) {
            return WorkloadState::Error(format!(
                "{interface} is a port of the bridge {bridge}: policy does not apply to packets between \
                 ports of a bridge; if the bridge serves only this workload, set the bridge as the interface of the endpoint"
            ));
        }
        if let Some((object, reason)) = self.reconcilers.sysctls.error(link.index) {
            return WorkloadState::Error(format!("{object}: {reason}"));
        }
        // A workload that still runs on another node has no routes here but counts as up: its hypervisor waits for
        // that.
        if workload.migration == MigrationState::Arriving {
            return WorkloadState::Up;
        }
        for address in &workload.addresses {
            let key = RouteKey::from(IpNet::from(*address));
            if let Some(reason) = routes.failure(&key) {
                return WorkloadState::Error(format!("route {}: {reason}", key.destination));
            }
            match routes.desired_route(&key, context) {
                // The workload has moved to another node.
                Ok(Some(entry)) if entry.protocol == PROTOCOL_BIRD => {}
                Ok(Some(entry)) if entry.target != KernelRouteTarget::Device(link.index) => {
                    let owner = entry.target.device().map(|device| context.interface_name(device));
                    let owner = owner.unwrap_or_default();
                    return WorkloadState::Error(format!("address {address} belongs to {owner}"));
                }
                Ok(Some(entry)) if !routes.observed().at(&key).contains(&entry) => {
                    return WorkloadState::Down;
                }
                _ => {}
            }
        }
        WorkloadState::Up
    }

    fn bridge_of(&self, link: &KernelLink) -> Option<&str> {
        let master = self.context.links.get(link.master?)?;
        (master.kind.as_deref() == Some("bridge")).then_some(master.name.as_str())
    }

    /// Returns the next hops that the kernel cannot reach. Link-local ones are skipped, as they cannot be looked up
    /// without their link, and so are those of routes that no longer exist.
    pub fn unreachable(&self) -> BTreeSet<IpAddr> {
        let mut unreachable = BTreeSet::new();
        for hop in self.reconcilers.routes.next_hops().unreachable() {
            let is_link_local = matches!(hop, IpAddr::V6(address) if address.is_unicast_link_local());
            let is_used = self.context.plan.destinations_by(hop).next().is_some();
            if is_used && !is_link_local && self.context.links.connected(hop).is_none() {
                unreachable.insert(hop);
            }
        }
        unreachable
    }

    /// Returns the interfaces whose flows may be offloaded: those of workloads, and those that match the MTU interface
    /// pattern.
    pub fn flow_interfaces(&self) -> FlowInterfaces {
        let mut interfaces = FlowInterfaces::default();
        for workload in self.context.plan.workloads().values() {
            if self.is_up(&workload.interface) {
                interfaces.devices.insert(workload.interface.clone());
            }
            if workload.qos != QosSettings::default() {
                interfaces.seen.insert(workload.interface.clone());
            }
        }
        for link in self.context.links.iter() {
            if link.is_up() && self.mtu_pattern.is_match(&link.name) {
                interfaces.devices.insert(link.name.clone());
            }
        }
        interfaces
    }

    /// Returns the interfaces that do not belong to workloads, and their addresses.
    pub fn host_interfaces(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let links = self.context.links.iter();
        let links =
            links.filter(|link| !self.context.is_workload(&link.name) && !self.excluded.contains(&link.name));
        links.map(|link| (link.name.clone(), self.context.links.addresses_of(link.index).collect())).collect()
    }

    /// Returns the host's own addresses on all interfaces.
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        self.context.links.iter().flat_map(|link| self.context.links.addresses_of(link.index)).collect()
    }

    pub fn mtu(&self) -> MtuChoice {
        let everywhere = [IpNet::V4(ipnet::Ipv4Net::default()), IpNet::V6(ipnet::Ipv6Net::default())];
        let defaults = everywhere.map(|net| {
            self.reconcilers.routes.observed().at(&net.into()).iter().min_by_key(|entry| entry.metric)
        });
        let leads_to_nodes = [self.context.own_protocol(), PROTOCOL_BIRD];
        let ours =
            self.reconcilers.routes.observed().all().filter(|entry| leads_to_nodes.contains(&entry.protocol));
        let mut carriers: BTreeSet<u32> = ours.filter_map(|entry| entry.target.device()).collect();
        carriers.extend(defaults.into_iter().flatten().filter_map(|entry| entry.target.device()));
        let links = self
            .context
            .links
            .iter()
            .filter(|link| !self.context.is_workload(&link.name) && !link.is_tunnel());
        let carrier = mtu::carrier(&self.mtu_pattern, links, &carriers);
        mtu::choose(carrier, self.context.plan.tunnels().iter().map(|(kind, device)| (*kind, device.mtu)))
    }

    /// Returns the workloads whose interface MTU exceeds the largest possible one, with that MTU.
    pub fn oversized(&self, largest: u32) -> BTreeMap<WorkloadId, u32> {
        let links = self.context.plan.workloads().iter().filter_map(|(id, workload)| {
            let link = self.context.links.named(&workload.interface)?;
            (link.mtu > largest).then(|| (id.clone(), link.mtu))
        });
        links.collect()
    }

    pub fn proxy_failures(&self) -> Vec<KernelFailure> {
        self.reconcilers.proxies.failures(&self.context)
    }

    pub fn public_keys(&self) -> Option<BTreeMap<TunnelKind, String>> {
        self.reconcilers.wireguard.public_keys(&self.context)
    }

    /// Returns the number of our routes in the kernel.
    pub fn route_count(&self) -> usize {
        let routes = &self.reconcilers.routes;
        routes.observed().all().filter(|entry| routes.is_ours(entry, &self.context)).count()
    }
}
