//! Writes neighbour entries, and removes those of removed workloads and nodes.

use crate::engine::DataplaneEngine;
use crate::kernel::{NeighbourKey, RejectionKind};

impl DataplaneEngine {
    /// Writes the missing entries, and returns the surplus ones, which are removed once no route uses them.
    pub(crate) async fn apply_neighbours(&mut self) -> Vec<NeighbourKey> {
        let (wanted, unwanted) = self.core.neighbour_work();
        for (key, mac) in wanted {
            match self.kernel.set_neighbour(key, &self.core.name(key.device), mac).await {
                Ok(()) => self.core.neighbour_is(key, Some(mac)),
                Err(refusal) => self.core.neighbour_failed(key, refusal.reason),
            }
        }
        unwanted
    }

    pub(crate) async fn remove_neighbours(&mut self, unwanted: Vec<NeighbourKey>) {
        for key in unwanted {
            match self.kernel.delete_neighbour(key).await {
                Ok(()) => self.core.neighbour_is(key, None),
                Err(refusal) if refusal.kind == RejectionKind::Missing => self.core.neighbour_is(key, None),
                Err(refusal) => {
                    tracing::warn!(address = %key.address, reason = refusal.reason, "cannot remove the neighbour entry of a removed workload or node; will retry");
                }
            }
        }
    }
}
