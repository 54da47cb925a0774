//! The desired tunnel devices.

use super::super::ReconcileContext;
use crate::kernel::VxlanAttributes;
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_plan::{TunnelDevice, TunnelKind, TunnelProtocol};

/// A desired tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLink {
    pub name: String,
    pub mtu: u32,
    pub address: Option<IpNet>,
    pub form: LinkForm,
}

/// Attributes that depend on the kind of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkForm {
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

/// The reason why a tunnel device cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error("no interface has the node's address {local}")]
    NoParent { local: IpAddr },
    #[error("an interface of this name exists and is not ours ({found}); remove it")]
    ForeignDevice { found: String },
}

/// Returns the device that a tunnel of the plan needs.
pub fn desired_link(
    kind: TunnelKind,
    context: &ReconcileContext,
) -> Result<Option<DesiredLink>, TunnelError> {
    let Some(TunnelDevice { name, address, local, mtu, protocol }) = context.plan.tunnel(kind) else {
        return Ok(None);
    };
    let Some(parent) = context.links.with_address(*local) else {
        return Err(TunnelError::NoParent { local: *local });
    };
    let form = match *protocol {
        TunnelProtocol::Vxlan { vni, port, mac } => {
            let parent = Some(parent.index);
            LinkForm::Vxlan(VxlanAttributes { vni, port, local: Some(*local), parent, learning: false }, mac)
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

/// Returns the kernel's name for devices of this kind.
pub fn link_kind(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::VxlanV4 | TunnelKind::VxlanV6 => "vxlan",
        TunnelKind::Ipip => "ipip",
        TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => "wireguard",
    }
}
