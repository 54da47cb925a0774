//! Determines which interfaces belong to workloads of the plan, and the desired tunnel devices.

use super::super::DataplaneCore;
use crate::kernel::{KernelLink, VxlanAttributes};
use ipnet::IpNet;
use tortie_plan::{PlannedWorkload, TunnelDevice, TunnelKind, TunnelProtocol};

/// A desired tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DesiredLink {
    pub name: String,
    pub mtu: u32,
    pub address: Option<IpNet>,
    pub form: LinkForm,
}

/// Attributes that depend on the kind of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkForm {
    Vxlan(VxlanAttributes, [u8; 6]),
    Ipip,
    Wireguard,
}

impl DesiredLink {
    /// Returns the kernel's name for the kind of device.
    pub fn kind(&self) -> &'static str {
        match self.form {
            LinkForm::Vxlan(..) => "vxlan",
            LinkForm::Ipip => "ipip",
            LinkForm::Wireguard => "wireguard",
        }
    }
}

impl DataplaneCore {
    /// Whether an interface belongs to a workload: a workload of the plan has it, or its name has a workload prefix.
    pub(in crate::reconcile) fn is_workload(&self, interface: &str) -> bool {
        self.settings.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
            || self.plan.active(interface).is_some()
    }

    /// Returns the workload of an interface if the interface is up.
    pub(in crate::reconcile) fn leads_to(&self, index: u32) -> Option<(&KernelLink, &PlannedWorkload)> {
        let link = self.links.get(index).filter(|link| link.is_up())?;
        self.plan.active(&link.name).map(|(_, workload)| (link, workload))
    }

    /// Whether the interface is one of our tunnel devices.
    pub fn is_tunnel(&self, index: u32) -> bool {
        let link = self.links.get(index);
        link.is_some_and(|link| self.tunnel_called(&link.name).is_some())
    }

    /// Returns the VXLAN tunnel of the plan that a device belongs to.
    pub(in crate::reconcile) fn tunnel_at(&self, index: u32) -> Option<TunnelKind> {
        let link = self.links.get(index).filter(|link| link.vxlan.is_some())?;
        self.tunnel_called(&link.name).filter(|kind| self.plan.tunnel(*kind).is_some())
    }

    /// Returns the device of a tunnel if it can carry packets.
    pub(in crate::reconcile) fn tunnel_link(&self, kind: TunnelKind) -> Option<&KernelLink> {
        let link = self.links.named(self.device_name(kind)).filter(|link| link.enabled)?;
        (link.kind.as_deref() == Some(link_kind(kind))).then_some(link)
    }

    /// Returns the device that a tunnel of the plan needs; the error is the reason why it cannot be created.
    pub(in crate::reconcile) fn wanted_link(&self, kind: TunnelKind) -> Result<Option<DesiredLink>, String> {
        let Some(TunnelDevice { name, address, local, mtu, protocol }) = self.plan.tunnel(kind) else {
            return Ok(None);
        };
        let Some(parent) = self.links.with_address(*local) else {
            return Err(format!("no interface has the node's address {local}"));
        };
        let form = match *protocol {
            TunnelProtocol::Vxlan { vni, port, mac } => {
                let (local, parent) = (Some(*local), Some(parent.index));
                LinkForm::Vxlan(VxlanAttributes { vni, port, local, parent, learning: false }, mac)
            }
            TunnelProtocol::Ipip => LinkForm::Ipip,
            TunnelProtocol::Wireguard { .. } => LinkForm::Wireguard,
        };
        Ok(Some(DesiredLink {
            name: name.clone(),
            mtu: mtu.unwrap_or_else(|| parent.mtu.saturating_sub(kind.overhead())),
            address: address.map(IpNet::from),
            form,
        }))
    }

    /// Returns the device name of a tunnel, even if the plan does not contain the tunnel.
    pub fn device_name(&self, kind: TunnelKind) -> &str {
        self.plan.tunnel(kind).map_or(kind.device(), |device| device.name.as_str())
    }

    /// Returns the tunnel whose device has this name.
    pub(in crate::reconcile) fn tunnel_called(&self, name: &str) -> Option<TunnelKind> {
        TunnelKind::ALL.into_iter().find(|kind| self.device_name(*kind) == name)
    }

    pub fn name(&self, device: u32) -> String {
        self.links.get(device).map_or_else(|| format!("#{device}"), |link| link.name.clone())
    }
}

/// Returns the kernel's name for devices of this kind.
pub(super) fn link_kind(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::VxlanV4 | TunnelKind::VxlanV6 => "vxlan",
        TunnelKind::Ipip => "ipip",
        TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => "wireguard",
    }
}
