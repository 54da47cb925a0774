//! Interfaces: their state, and the tunnel devices, which this module creates. Interfaces of workloads are created by
//! `pod`.

mod apply;
mod desired;
mod observed;
mod peering;
#[cfg(test)]
mod tests;

pub use desired::link_kind;
pub use observed::ObservedLinks;
pub use peering::PeeringReconciler;

use super::plan_index::PlanIndex;
use super::{OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
use crate::kernel::KernelLink;
use desired::{DesiredLink, LinkForm, TunnelError, desired_link};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{PlanUpdate, TunnelKind};

/// The tunnel devices. The observed interfaces are part of the context.
#[derive(Debug, Default)]
pub struct LinkReconciler {
    /// Tunnel devices that could not be created or changed.
    errors: BTreeMap<TunnelKind, FailedTunnel>,
    /// Former names of our devices.
    former_names: BTreeSet<(TunnelKind, String)>,
}

#[derive(Debug)]
struct FailedTunnel {
    reason: FailureReason,
    /// Whether the next attempt is due.
    retry: bool,
}

/// A change of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkOperation {
    Create(DesiredLink),
    Delete {
        index: u32,
    },
    SetUp {
        index: u32,
    },
    SetMtu {
        index: u32,
        mtu: u32,
    },
    /// `interface` is the name of the interface.
    AddAddress {
        index: u32,
        interface: String,
        net: IpNet,
    },
    RemoveAddress {
        index: u32,
        net: IpNet,
    },
}

/// A change of the device of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelOperation {
    pub tunnel: TunnelKind,
    pub step: ReconcileStep,
    pub change: LinkOperation,
}

impl LinkReconciler {
    /// Records the names of the old devices, and retries all devices.
    pub fn plan_replaced(&mut self, old: &PlanIndex) {
        for (kind, device) in old.tunnels() {
            self.remember_name(*kind, &device.name);
        }
        self.errors.clear();
    }

    /// Records the name of a device in a plan; the device is removed if the tunnel gets another name.
    fn remember_name(&mut self, kind: TunnelKind, name: &str) {
        if kind.is_wireguard() && name != kind.device() {
            self.former_names.insert((kind, name.to_owned()));
        }
    }

    /// Records that a tunnel device is not as desired; it is retried at the next tick, and when its plan changes.
    fn fail(&mut self, kind: TunnelKind, reason: FailureReason) {
        self.errors.insert(kind, FailedTunnel { reason, retry: false });
    }

    /// Returns the next change of a desired tunnel device; `None` if it is as desired.
    fn next_change(
        &mut self,
        kind: TunnelKind,
        context: &ReconcileContext,
    ) -> Result<Option<LinkOperation>, TunnelError> {
        if self.errors.get(&kind).is_some_and(|error| !error.retry) {
            return Ok(None);
        }
        let Some(desired) = desired_link(kind, context)? else { return Ok(None) };
        let Some(link) = context.links.named(&desired.name) else {
            return Ok(Some(LinkOperation::Create(desired)));
        };
        let change = repair(link, desired, kind, context)?;
        if change.is_none() {
            self.errors.remove(&kind);
        }
        Ok(change)
    }

    /// Returns the operations that remove the remains of a tunnel which is not in the plan.
    fn surplus(&self, kind: TunnelKind, context: &ReconcileContext) -> Vec<LinkOperation> {
        let Some(link) = self.surplus_link(kind, context).filter(|_| context.in_sync) else {
            return Vec::new();
        };
        let index = link.index;
        match kind {
            TunnelKind::VxlanV4 | TunnelKind::VxlanV6 | TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => {
                vec![LinkOperation::Delete { index }]
            }
            // The device was created by the kernel, and other programs may use it.
            TunnelKind::Ipip => {
                let ours = context.links.nets_of(index).filter(|net| is_our_address(kind, net, context));
                ours.map(|net| LinkOperation::RemoveAddress { index, net }).collect()
            }
        }
    }

    /// Returns a device of this kind that the plan does not contain.
    fn surplus_link<'a>(&self, kind: TunnelKind, context: &'a ReconcileContext) -> Option<&'a KernelLink> {
        let desired = context.plan.tunnel(kind).map(|device| device.name.as_str());
        if !kind.is_wireguard() && desired.is_some() {
            return None;
        }
        let former = self.former_names.iter().filter(|(other, _)| *other == kind && kind.is_wireguard());
        let names = former.map(|(_, name)| name.as_str()).chain([kind.device()]);
        let mut links =
            names.filter(|name| Some(*name) != desired).filter_map(|name| context.links.named(name));
        links.find(|link| link.kind.as_deref() == Some(link_kind(kind)))
    }
}

/// Returns the next change of an existing device.
fn repair(
    link: &KernelLink,
    desired: DesiredLink,
    kind: TunnelKind,
    context: &ReconcileContext,
) -> Result<Option<LinkOperation>, TunnelError> {
    let index = link.index;
    if link.kind.as_deref() != Some(desired.kind()) {
        let found = link.kind.clone().unwrap_or_else(|| "another kind of interface".into());
        return Err(TunnelError::ForeignDevice { found });
    }
    if let LinkForm::Vxlan(vxlan, mac) = desired.form
        && (link.vxlan != Some(vxlan) || link.mac != Some(mac))
        && context.in_sync
    {
        return Ok(Some(LinkOperation::Delete { index }));
    }
    if link.mtu != desired.mtu {
        return Ok(Some(LinkOperation::SetMtu { index, mtu: desired.mtu }));
    }
    if !link.enabled {
        return Ok(Some(LinkOperation::SetUp { index }));
    }
    // Add the new address first: a device without addresses would lose its routes.
    if let Some(net) = desired.address
        && !context.links.nets_of(index).any(|other| other == net)
    {
        // The kernel ignores an IPv6 address that the device already has with another prefix length.
        let same =
            context.links.nets_of(index).find(|other| net.addr().is_ipv6() && other.addr() == net.addr());
        return Ok(Some(match same {
            Some(net) => LinkOperation::RemoveAddress { index, net },
            None => LinkOperation::AddAddress { index, interface: desired.name, net },
        }));
    }
    let mut others = context.links.nets_of(index).filter(|net| Some(*net) != desired.address);
    let surplus = others.find(|net| is_our_address(kind, net, context));
    Ok(surplus.map(|net| LinkOperation::RemoveAddress { index, net }))
}

/// Returns whether an address on a tunnel device can only be ours. The IPIP device may have foreign addresses: ours are those
/// in a block of the cluster.
fn is_our_address(kind: TunnelKind, net: &IpNet, context: &ReconcileContext) -> bool {
    let is_single = net.prefix_len() == net.max_prefix_len();
    kind != TunnelKind::Ipip || is_single && context.plan.covers(net.addr())
}

impl Reconciler for LinkReconciler {
    fn plan_changes(&mut self, update: &PlanUpdate, context: &ReconcileContext) {
        if let PlanUpdate::Tunnel(kind, _) = update {
            if let Some(device) = context.plan.tunnel(*kind) {
                self.remember_name(*kind, &device.name);
            }
            self.errors.remove(kind);
        }
    }

    fn tick(&mut self, _: &ReconcileContext) {
        self.errors.values_mut().for_each(|error| error.retry = true);
    }

    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let errors = self.errors.iter().filter(|(kind, _)| context.plan.tunnel(**kind).is_some());
        let failures = errors.map(|(kind, error)| {
            let object = KernelObject::interface(context.device_name(*kind));
            KernelFailure::new(object, AffectedWorkloads::none(), &error.reason)
        });
        failures.collect()
    }
}

impl ReconcileOperations for LinkReconciler {
    type Operation = TunnelOperation;

    /// A wrong device is deleted, created, resized and set up; then its addresses are added and removed.
    const MAX_ROUNDS: usize = 12;

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<TunnelOperation> {
        let mut operations = Vec::new();
        for tunnel in TunnelKind::ALL {
            let changes: Vec<LinkOperation> = match step {
                ReconcileStep::Write => match self.next_change(tunnel, context) {
                    Ok(change) => change.into_iter().collect(),
                    Err(error) => {
                        self.fail(tunnel, FailureReason::from_error(&error));
                        continue;
                    }
                },
                ReconcileStep::Remove => self.surplus(tunnel, context),
            };
            operations.extend(changes.into_iter().map(|change| TunnelOperation { tunnel, step, change }));
        }
        operations
    }

    fn record(&mut self, operation: TunnelOperation, result: OperationResult, context: &ReconcileContext) {
        let Err(error) = result else { return };
        let TunnelOperation { tunnel, step, .. } = operation;
        if step == ReconcileStep::Write {
            return self.fail(tunnel, error.reason());
        }
        let device = context.device_name(tunnel);
        tracing::warn!(device, reason = %error, "cannot remove a tunnel device that is no longer needed; will retry");
    }
}
