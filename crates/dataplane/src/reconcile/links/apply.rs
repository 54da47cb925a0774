//! Makes tunnel devices, mends them and removes those that are not wanted any more.

use super::desired::LinkForm;
use super::diff::LinkOperation;
use crate::engine::Engine;
use crate::error::Result;
use crate::kernel::{Event, Refusal, RefusalKind};
use tortie_plan::TunnelKind;

/// A device that is not as it must be is removed, made, set up and given its address: more rounds are of no use.
const ROUNDS: usize = 4;

impl Engine {
    /// Has the tunnel devices that the plan wants.
    pub(crate) async fn apply_links(&mut self) {
        for kind in TunnelKind::ALL {
            for _ in 0..ROUNDS {
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

    /// Removes tunnel devices that the plan does not want, once no route leads through them.
    pub(crate) async fn remove_links(&mut self) {
        for kind in TunnelKind::ALL {
            let operations = self.core.unwanted_links(kind);
            if let Err(reason) = self.change_links(operations).await {
                tracing::warn!(
                    device = self.core.device_name(kind),
                    reason,
                    "a tunnel device that is not needed is not removed; will try again"
                );
            }
        }
    }

    /// Has the addresses that workloads call to speak BGP.
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
            // Whether it went through or not: what counts is what the kernel has now.
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
                (made.map_err(|refusal| explained(refusal, link.kind())), RefusalKind::Exists)
            }
            LinkOperation::Delete { index, .. } => {
                (self.kernel.delete_link(*index).await, RefusalKind::Missing)
            }
            LinkOperation::SetUp { index } => (self.kernel.set_link_up(*index).await, RefusalKind::Missing),
            LinkOperation::SetMtu { index, mtu } => {
                (self.kernel.set_link_mtu(*index, *mtu).await, RefusalKind::Missing)
            }
            LinkOperation::AddAddress { index, net } => {
                let name = self.core.name(*index);
                (self.kernel.add_address(*index, &name, *net).await, RefusalKind::Exists)
            }
            LinkOperation::RemoveAddress { index, net } => {
                (self.kernel.delete_address(*index, *net).await, RefusalKind::Missing)
            }
        };
        match outcome {
            Err(refusal) if refusal.kind != harmless => Err(refusal.reason),
            _ => Ok(()),
        }
    }

    /// Takes in what became of it: what we do ourselves the kernel does not announce to us.
    async fn look_at(&mut self, operation: &LinkOperation) -> Result<()> {
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
                self.stale.routes |= self.core.event(Event::Address { device: *index, net: *net, present });
            }
        }
        Ok(())
    }
}

/// Names what a kernel without such tunnels lacks; its own words are about any operation.
fn explained(refusal: Refusal, kind: &str) -> Refusal {
    match refusal.kind {
        RefusalKind::Unsupported => Refusal {
            reason: format!(
                "this kernel has no {kind} devices; load or install its module {kind} ({})",
                refusal.reason
            ),
            ..refusal
        },
        _ => refusal,
    }
}
