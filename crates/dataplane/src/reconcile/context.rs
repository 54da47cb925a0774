//! The state that all reconcilers read: the settings, the plan, the interfaces and the time.

use super::links::{ObservedLinks, link_kind};
use super::plan_index::PlanIndex;
use super::routes::{PROTOCOL_BOOT, PROTOCOL_OURS};
use crate::failure::AffectedWorkloads;
use crate::kernel::KernelLink;
use std::time::Duration;
use tortie_plan::{DataplaneSettings, PlanUpdate, PlannedWorkload, TunnelKind};

#[derive(Debug, Default)]
pub struct ReconcileContext {
    pub settings: DataplaneSettings,
    pub plan: PlanIndex,
    pub links: ObservedLinks,
    /// Whether a complete plan was received. Nothing is removed before.
    pub in_sync: bool,
    /// Time since the start of the dataplane.
    pub now: Duration,
}

impl ReconcileContext {
    /// Returns the route protocol that only we use.
    pub fn own_protocol(&self) -> u8 {
        match self.settings.device_route_protocol {
            PROTOCOL_BOOT => PROTOCOL_OURS,
            configured => configured,
        }
    }

    pub fn has_workload_prefix(&self, interface: &str) -> bool {
        self.settings.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
    }

    /// Returns whether an interface belongs to a workload: a workload of the plan has it, or its name has a workload prefix.
    pub fn is_workload(&self, interface: &str) -> bool {
        self.has_workload_prefix(interface) || self.plan.active(interface).is_some()
    }

    /// Returns the workload of an interface if the interface is up.
    pub fn workload_behind(&self, index: u32) -> Option<(&KernelLink, &PlannedWorkload)> {
        let link = self.links.get(index).filter(|link| link.is_up())?;
        self.plan.active(&link.name).map(|(_, workload)| (link, workload))
    }

    /// Returns the workloads that claim an interface.
    pub fn affected_workloads(&self, index: u32) -> AffectedWorkloads {
        let claimants = self.links.get(index).map(|link| self.plan.at_interface(&link.name));
        claimants.into_iter().flatten().cloned().collect()
    }

    /// Returns whether the interface is one of our tunnel devices.
    pub fn is_tunnel(&self, index: u32) -> bool {
        self.links.get(index).is_some_and(|link| self.tunnel_called(&link.name).is_some())
    }

    /// Returns the VXLAN tunnel of the plan that a device belongs to.
    pub fn vxlan_tunnel_at(&self, index: u32) -> Option<TunnelKind> {
        let link = self.links.get(index).filter(|link| link.vxlan.is_some())?;
        self.tunnel_called(&link.name).filter(|kind| self.plan.tunnel(*kind).is_some())
    }

    /// Returns the device of a tunnel if it can carry packets.
    pub fn tunnel_link(&self, kind: TunnelKind) -> Option<&KernelLink> {
        let link = self.links.named(self.device_name(kind)).filter(|link| link.enabled)?;
        (link.kind.as_deref() == Some(link_kind(kind))).then_some(link)
    }

    /// Returns the device name of a tunnel, even if the plan does not contain the tunnel.
    pub fn device_name(&self, kind: TunnelKind) -> &str {
        self.plan.tunnel(kind).map_or(kind.device(), |device| device.name.as_str())
    }

    /// Returns the tunnel whose device has this name.
    pub fn tunnel_called(&self, name: &str) -> Option<TunnelKind> {
        TunnelKind::ALL.into_iter().find(|kind| self.device_name(*kind) == name)
    }

    /// Returns the index of the device whose tunnel or VTEPs an update changes.
    pub fn tunnel_device_of(&self, update: &PlanUpdate) -> Option<u32> {
        let kind = match update {
            PlanUpdate::Tunnel(kind, _) => *kind,
            PlanUpdate::Vtep(id, _) => id.tunnel,
            _ => return None,
        };
        self.links.named(self.device_name(kind)).map(|link| link.index)
    }

    /// Returns the indexes of the interfaces that a workload has before or after an update.
    pub fn workload_interfaces_of(&self, update: &PlanUpdate) -> Vec<u32> {
        let PlanUpdate::Workload(id, new) = update else { return Vec::new() };
        let workloads = self.plan.workloads().get(id).into_iter().chain(new);
        let links = workloads.filter_map(|workload| self.links.named(&workload.interface));
        links.map(|link| link.index).collect()
    }

    pub fn interface_name(&self, device: u32) -> String {
        self.links.get(device).map_or_else(|| format!("#{device}"), |link| link.name.clone())
    }
}
