//! Which interfaces lead to workloads of the plan, and which tunnel devices there must be.

use super::super::Core;
use crate::kernel::{Link, Vxlan};
use ipnet::IpNet;
use tortie_plan::{TunnelDevice, TunnelKind, TunnelProtocol, Workload};

/// A tunnel device as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedLink {
    pub name: &'static str,
    pub mtu: u32,
    pub address: Option<IpNet>,
    /// None for IPIP.
    pub vxlan: Option<(Vxlan, [u8; 6])>,
}

impl WantedLink {
    /// As the kernel calls it.
    pub fn kind(&self) -> &'static str {
        if self.vxlan.is_some() { "vxlan" } else { "ipip" }
    }
}

impl Core {
    /// Whether an interface leads to a workload: one of the plan has it, or its name is one that only they have.
    pub(in crate::reconcile) fn is_workload(&self, interface: &str) -> bool {
        self.settings.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
            || self.plan.active(interface).is_some()
    }

    /// The workload that an interface leads to, if it can.
    pub(in crate::reconcile) fn leads_to(&self, index: u32) -> Option<(&Link, &Workload)> {
        let link = self.links.get(index).filter(|link| link.is_up())?;
        self.plan.active(&link.name).map(|(_, workload)| (link, workload))
    }

    /// The VXLAN of the plan whose device this is.
    pub(in crate::reconcile) fn tunnel_at(&self, index: u32) -> Option<TunnelKind> {
        let link = self.links.get(index).filter(|link| link.vxlan.is_some())?;
        TunnelKind::ALL
            .into_iter()
            .find(|kind| kind.device() == link.name && self.plan.tunnel(*kind).is_some())
    }

    /// The device of a tunnel, once it can carry packets.
    pub(in crate::reconcile) fn tunnel_link(&self, kind: TunnelKind) -> Option<&Link> {
        let link = self.links.named(kind.device()).filter(|link| link.enabled)?;
        (link.kind.as_deref() == Some(link_kind(kind))).then_some(link)
    }

    /// The device that a tunnel of the plan needs; an error says why it cannot be had.
    pub(in crate::reconcile) fn wanted_link(&self, kind: TunnelKind) -> Result<Option<WantedLink>, String> {
        let Some(TunnelDevice { address, local, mtu, protocol }) = self.plan.tunnel(kind) else {
            return Ok(None);
        };
        let Some(parent) = self.links.with_address(*local) else {
            return Err(format!("no interface has the node's address {local}"));
        };
        let vxlan = match *protocol {
            TunnelProtocol::Vxlan { vni, port, mac } => {
                let (local, parent) = (Some(*local), Some(parent.index));
                Some((Vxlan { vni, port, local, parent, learning: false }, mac))
            }
            TunnelProtocol::Ipip => None,
        };
        Ok(Some(WantedLink {
            name: kind.device(),
            mtu: mtu.unwrap_or_else(|| parent.mtu.saturating_sub(kind.overhead())),
            address: address.map(IpNet::from),
            vxlan,
        }))
    }

    pub fn name(&self, device: u32) -> String {
        self.links.get(device).map_or_else(|| format!("#{device}"), |link| link.name.clone())
    }
}

/// What the kernel calls devices of this kind.
pub(super) fn link_kind(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::VxlanV4 | TunnelKind::VxlanV6 => "vxlan",
        TunnelKind::Ipip => "ipip",
    }
}
