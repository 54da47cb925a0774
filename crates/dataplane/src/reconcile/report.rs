//! Derives reports from the kernel's state: the state of workloads and host endpoints, the MTU and the number of
//! routes.

use super::DataplaneCore;
use super::routes::{PROTOCOL_BIRD, RouteOwnership};
use crate::kernel::{KernelLink, KernelRouteTarget};
use crate::mtu::{self, MtuChoice};
use crate::policy::FlowInterfaces;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::{MigrationState, PlannedWorkload, QosSettings, RouteKey, WorkloadId};

/// State of a workload in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadState {
    Up,
    Down,
    Error(String),
}

impl DataplaneCore {
    pub fn states(&self) -> impl Iterator<Item = (&WorkloadId, WorkloadState)> {
        self.plan.workloads().iter().map(|(id, workload)| (id, self.state(id, workload)))
    }

    /// Returns the state of host endpoints by their interfaces; `failure` is the reason if policy is not in force.
    pub fn host_states(
        &self,
        endpoints: BTreeMap<String, Option<Vec<String>>>,
        failure: Option<&str>,
    ) -> BTreeMap<String, WorkloadState> {
        let up = |name: &String| self.links.named(name).is_some_and(KernelLink::is_up);
        let state = |interfaces: Option<Vec<String>>| match (failure, interfaces) {
            (Some(reason), _) => WorkloadState::Error(reason.to_owned()),
            (None, None) => WorkloadState::Up,
            (None, Some(interfaces)) if interfaces.iter().any(up) => WorkloadState::Up,
            (None, Some(_)) => WorkloadState::Down,
        };
        endpoints.into_iter().map(|(name, interfaces)| (name, state(interfaces))).collect()
    }

    fn state(&self, id: &WorkloadId, workload: &PlannedWorkload) -> WorkloadState {
        let interface = &workload.interface;
        let active = self.plan.active(interface).is_some_and(|(active, _)| active == id);
        let Some(link) = self.links.named(interface).filter(|link| active && link.is_up()) else {
            return WorkloadState::Down;
        };
        if let Some(bridge) = self.bridge_of(link) {
            return WorkloadState::Error(format!(
                "{interface} is a port of the bridge {bridge}: policy does not apply to packets between \
                 ports of a bridge; if the bridge serves only this workload, set the bridge as the interface of the endpoint"
            ));
        }
        if let Some((object, reason)) = self.conf_errors.get(&link.index) {
            return WorkloadState::Error(format!("{object}: {reason}"));
        }
        // A workload that still runs on another node has no routes here but counts as up: its hypervisor waits for
        // that.
        let routed = workload.addresses.iter().filter(|_| workload.migration != MigrationState::Arriving);
        for address in routed {
            let key = RouteKey::from(IpNet::from(*address));
            if let Some(reason) = self.failures.get(&key) {
                return WorkloadState::Error(format!("route {}: {reason}", key.destination));
            }
            match self.wanted(&key) {
                // The workload has moved to another node.
                Ok(Some(entry)) if entry.protocol == PROTOCOL_BIRD => {}
                Ok(Some(entry)) if entry.target != KernelRouteTarget::Device(link.index) => {
                    let owner = entry.target.device().map_or_else(String::new, |device| self.name(device));
                    return WorkloadState::Error(format!("address {address} belongs to {owner}"));
                }
                Ok(Some(entry)) if !self.routes.at(&key).contains(&entry) => {
                    return WorkloadState::Down;
                }
                _ => {}
            }
        }
        WorkloadState::Up
    }

    fn bridge_of(&self, link: &KernelLink) -> Option<&str> {
        let master = self.links.get(link.master?)?;
        (master.kind.as_deref() == Some("bridge")).then_some(master.name.as_str())
    }

    /// Returns the next hops that the kernel cannot reach. Link-local ones are skipped, as they cannot be looked up
    /// without their link.
    pub fn unreachable(&self) -> BTreeSet<IpAddr> {
        let link_local = |hop: &IpAddr| matches!(hop, IpAddr::V6(address) if address.is_unicast_link_local());
        let lost = self.lookups.iter().filter(|(_, answer)| answer.is_err()).map(|(hop, _)| *hop);
        // Some lookups may belong to routes that no longer exist.
        let used = |hop: &IpAddr| self.plan.destinations_by(*hop).next().is_some();
        lost.filter(|hop| used(hop) && self.links.connected(*hop).is_none() && !link_local(hop)).collect()
    }

    /// Returns the interfaces whose flows may be offloaded: those of workloads, and those that match the MTU interface
    /// pattern.
    pub fn flow_interfaces(&self) -> FlowInterfaces {
        let workloads = || self.plan.workloads().values();
        let there = |name: &&String| self.links.named(name).is_some_and(KernelLink::is_up);
        let own = workloads().map(|workload| &workload.interface).filter(there);
        let hosts = self.links.iter().filter(|link| link.is_up() && self.mtu_pattern.is_match(&link.name));
        let seen = workloads().filter(|workload| workload.qos != QosSettings::default());
        FlowInterfaces {
            devices: own.chain(hosts.map(|link| &link.name)).cloned().collect(),
            seen: seen.map(|workload| workload.interface.clone()).collect(),
        }
    }

    /// Returns the interfaces that do not belong to workloads, and their addresses.
    pub fn host_interfaces(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let links = self.links.iter();
        let links = links.filter(|link| !self.is_workload(&link.name) && !self.excluded.contains(&link.name));
        links.map(|link| (link.name.clone(), self.links.addresses_of(link.index).collect())).collect()
    }

    /// Returns the host's own addresses on all interfaces.
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        self.links.iter().flat_map(|link| self.links.addresses_of(link.index)).collect()
    }

    pub fn mtu(&self) -> MtuChoice {
        let everywhere = [IpNet::V4(ipnet::Ipv4Net::default()), IpNet::V6(ipnet::Ipv6Net::default())];
        let defaults =
            everywhere.map(|net| self.routes.at(&net.into()).iter().min_by_key(|entry| entry.metric));
        let leads_to_nodes = [self.own_protocol(), PROTOCOL_BIRD];
        let ours = self.routes.all().filter(|entry| leads_to_nodes.contains(&entry.protocol));
        let mut carriers: BTreeSet<u32> = ours.filter_map(|entry| entry.target.device()).collect();
        carriers.extend(defaults.into_iter().flatten().filter_map(|entry| entry.target.device()));
        let links = self.links.iter().filter(|link| !self.is_workload(&link.name) && !link.is_tunnel());
        let carrier = mtu::carrier(&self.mtu_pattern, links, &carriers);
        mtu::choose(carrier, self.plan.tunnels().iter().map(|(kind, device)| (*kind, device.mtu)))
    }

    /// Returns the workloads whose interface MTU exceeds the largest possible one, with that MTU.
    pub fn oversized(&self, largest: u32) -> BTreeMap<WorkloadId, u32> {
        let links = self.plan.workloads().iter().filter_map(|(id, workload)| {
            let link = self.links.named(&workload.interface)?;
            (link.mtu > largest).then(|| (id.clone(), link.mtu))
        });
        links.collect()
    }

    /// Returns the number of our routes in the kernel.
    pub fn route_count(&self) -> usize {
        self.routes.all().filter(|entry| self.ownership(entry, Duration::MAX) == RouteOwnership::Ours).count()
    }
}
