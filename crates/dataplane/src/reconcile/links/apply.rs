//! Creates, repairs and removes tunnel devices.

use super::desired::LinkForm;
use super::diff::LinkOperation;
use crate::engine::DataplaneEngine;
use crate::error::DataplaneResult;
use crate::kernel::{KernelEvent, KernelRejection, RejectionKind};
use tortie_plan::TunnelKind;

/// Limit of rounds: a wrong device is deleted, created, set up and given its address.
const MAX_LINK_ROUNDS: usize = 4;

impl DataplaneEngine {
    /// Creates and repairs the tunnel devices of the plan.
    pub(crate) async fn apply_links(&mut self) {
        for kind in TunnelKind::ALL {
            for _ in 0..MAX_LINK_ROUNDS {
                let operations = match self.core.link_work(kind) {
                    Ok(operations) => operations,
                    Err(reason) => {
                        self.core.tunnel_failed(kind, reason);
                        break;
                    }
                };
                if operations.is_empty() {
                    break;
                }
                if let Err(reason) = self.change_links(operations).await {
                    self.core.tunnel_failed(kind, reason);
                    break;
                }
            }
        }
    }

    /// Removes tunnel devices that are not in the plan, once no route uses them.
    pub(crate) async fn remove_links(&mut self) {
        for kind in TunnelKind::ALL {
            let operations = self.core.unwanted_links(kind);
            if let Err(reason) = self.change_links(operations).await {
                tracing::warn!(
                    device = self.core.device_name(kind),
                    reason,
                    "cannot remove a tunnel device that is no longer needed; will retry"
                );
            }
        }
    }

    /// Adds and removes the addresses to which workloads connect for BGP.
    pub(crate) async fn apply_peering(&mut self) {
        for operation in self.core.peering_work(self.started.elapsed()) {
            let outcome = self.change_links(vec![operation.clone()]).await;
            if let LinkOperation::AddAddress { index, net } = operation {
                self.core.peering_failed(index, net, outcome);
            }
        }
    }

    async fn change_links(&mut self, operations: Vec<LinkOperation>) -> std::result::Result<(), String> {
        for operation in operations {
            let outcome = self.change_link(&operation).await;
            // Read the result even after an error: the actual state of the kernel counts.
            self.look_at(&operation).await.map_err(|error| error.to_string())?;
            outcome?;
        }
        Ok(())
    }

    async fn change_link(&mut self, operation: &LinkOperation) -> std::result::Result<(), String> {
        let (outcome, harmless) = match operation {
            LinkOperation::Create(link) => {
                let name = link.name.as_str();
                let made = match &link.form {
                    LinkForm::Vxlan(vxlan, mac) => {
                        self.kernel.create_vxlan(name, vxlan, *mac, link.mtu).await
                    }
                    LinkForm::Ipip => self.kernel.create_ipip(name).await,
                    LinkForm::Wireguard => self.kernel.create_wireguard(name, link.mtu).await,
                };
                (made.map_err(|refusal| explained(refusal, link.kind())), RejectionKind::Exists)
            }
            LinkOperation::Delete { index, .. } => {
                (self.kernel.delete_link(*index).await, RejectionKind::Missing)
            }
            LinkOperation::SetUp { index } => (self.kernel.set_link_up(*index).await, RejectionKind::Missing),
            LinkOperation::SetMtu { index, mtu } => {
                (self.kernel.set_link_mtu(*index, *mtu).await, RejectionKind::Missing)
            }
            LinkOperation::AddAddress { index, net } => {
                let name = self.core.name(*index);
                (self.kernel.add_address(*index, &name, *net).await, RejectionKind::Exists)
            }
            LinkOperation::RemoveAddress { index, net } => {
                (self.kernel.delete_address(*index, *net).await, RejectionKind::Missing)
            }
        };
        match outcome {
            Err(refusal) if refusal.kind != harmless => Err(refusal.reason),
            _ => Ok(()),
        }
    }

    /// Reads the result of an operation, because notifications of our own changes are filtered out.
    async fn look_at(&mut self, operation: &LinkOperation) -> DataplaneResult<()> {
        let now = self.started.elapsed();
        match operation {
            LinkOperation::Create(link) => {
                if let Some(link) = self.kernel.link_named(&link.name).await? {
                    self.core.link_is(link.index, Some(link), now);
                }
            }
            LinkOperation::Delete { index, .. }
            | LinkOperation::SetUp { index }
            | LinkOperation::SetMtu { index, .. } => {
                let link = self.kernel.link(*index).await?;
                self.core.link_is(*index, link, now);
            }
            LinkOperation::AddAddress { index, net } | LinkOperation::RemoveAddress { index, net } => {
                let present = self.kernel.addresses().await?.contains(&(*index, *net));
                self.stale.routes |=
                    self.core.event(KernelEvent::Address { device: *index, net: *net, present });
            }
        }
        Ok(())
    }
}

/// Names the kernel module that is missing; the kernel's own message is generic.
fn explained(refusal: KernelRejection, kind: &str) -> KernelRejection {
    match refusal.kind {
        RejectionKind::Unsupported => KernelRejection {
            reason: format!(
                "this kernel has no {kind} devices; load or install its module {kind} ({})",
                refusal.reason
            ),
            ..refusal
        },
        _ => refusal,
    }
}
