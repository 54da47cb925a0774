//! Writes neighbour entries and removes those of workloads that are gone.

use crate::engine::Engine;
use crate::kernel::RefusalKind;

impl Engine {
    pub(crate) async fn apply_neighbours(&mut self) {
        let (wanted, unwanted) = self.core.neighbour_work();
        for (key, mac) in wanted {
            match self.kernel.set_neighbour(key, &self.core.name(key.device), mac).await {
                Ok(()) => self.core.neighbour_is(key, Some(mac)),
                Err(refusal) => self.core.neighbour_failed(key, refusal.reason),
            }
        }
        for key in unwanted {
            match self.kernel.delete_neighbour(key).await {
                Ok(()) => self.core.neighbour_is(key, None),
                Err(refusal) if refusal.kind == RefusalKind::Missing => self.core.neighbour_is(key, None),
                Err(refusal) => {
                    tracing::warn!(address = %key.address, reason = refusal.reason, "neighbour entry of a workload that is gone is not removed; will try again");
                }
            }
        }
    }
}
