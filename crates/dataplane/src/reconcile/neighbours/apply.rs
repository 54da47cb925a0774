//! Writes neighbour entries and removes those of workloads and nodes that are gone.

use crate::engine::Engine;
use crate::kernel::{NeighbourKey, RefusalKind};

impl Engine {
    /// Writes what is missing; what is too much is returned, to be removed when no route leads there any more.
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
                Err(refusal) if refusal.kind == RefusalKind::Missing => self.core.neighbour_is(key, None),
                Err(refusal) => {
                    tracing::warn!(address = %key.address, reason = refusal.reason, "neighbour entry of a workload or a node that is gone is not removed; will try again");
                }
            }
        }
    }
}
