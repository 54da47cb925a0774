//! Compacts the datastore's history periodically, if no other component does.

use crate::metrics::ControllerCounters;
use std::time::Duration;
use tokio::time::Instant;
use tortie_store::HistoryCompactor;

#[derive(Debug)]
pub struct PeriodicCompaction {
    compactor: Option<Box<dyn HistoryCompactor>>,
    /// Time of the last compaction attempt.
    last: Option<Instant>,
}

impl PeriodicCompaction {
    pub fn new(compactor: Option<Box<dyn HistoryCompactor>>) -> PeriodicCompaction {
        PeriodicCompaction { compactor, last: None }
    }

    /// Compacts if the period has elapsed. The first call is made immediately: it compacts nothing but records the
    /// revision up to which the next one will.
    pub async fn run(&mut self, period: Option<Duration>, counters: &mut ControllerCounters) {
        let (Some(compactor), Some(period)) = (&mut self.compactor, period) else { return };
        if self.last.is_some_and(|last| last.elapsed() < period) {
            return;
        }
        self.last = Some(Instant::now());
        match compactor.compact().await {
            Ok(Some(revision)) => {
                tracing::info!(%revision, "compacted the history of the datastore");
                counters.compactions += 1;
                counters.compacted = revision.number().unwrap_or_default();
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot compact the datastore; trying again after etcdV3CompactionPeriod");
                counters.failures += 1;
            }
        }
    }
}
