//! Writes forwarding entries, and removes those of removed nodes.

use crate::engine::DataplaneEngine;
use crate::kernel::{FdbKey, RejectionKind};
use std::net::IpAddr;

impl DataplaneEngine {
    /// Writes the missing entries, and returns the surplus ones, which are removed once no route uses them.
    pub(crate) async fn apply_forwarding(&mut self) -> Vec<(FdbKey, IpAddr)> {
        let (missing, unwanted) = self.core.forwarding_work();
        for (key, node) in missing {
            let written = self.kernel.set_forwarding_entry(key, &self.core.name(key.device), node).await;
            match written {
                Ok(()) => self.core.forwarding_is(key, node, true),
                Err(refusal) => self.core.forwarding_failed(key, refusal.reason),
            }
        }
        unwanted
    }

    pub(crate) async fn remove_forwarding(&mut self, unwanted: Vec<(FdbKey, IpAddr)>) {
        for (key, node) in unwanted {
            match self.kernel.delete_forwarding_entry(key, node).await {
                Ok(()) => self.core.forwarding_is(key, node, false),
                // If the MAC has another node now, the new entry has replaced this one.
                Err(refusal) if refusal.kind == RejectionKind::Missing => {
                    self.core.forwarding_is(key, node, false);
                }
                Err(refusal) => {
                    tracing::warn!(%node, reason = refusal.reason, "cannot remove the forwarding entry of a removed node; will retry");
                }
            }
        }
    }
}
