//! When the datastore forgets its history, where that is nobody else's work.

use crate::metrics::Counters;
use std::time::Duration;
use tokio::time::Instant;
use tortie_store::Compactor;

#[derive(Debug)]
pub struct Compaction {
    compactor: Option<Compactor>,
    /// The last turn that was asked for.
    last: Option<Instant>,
}

impl Compaction {
    pub fn new(compactor: Option<Compactor>) -> Compaction {
        Compaction { compactor, last: None }
    }

    /// Asks for a turn if the period is over. The first is asked for at once: it forgets nothing, but says up to where the next one will.
    pub async fn run(&mut self, period: Option<Duration>, counters: &mut Counters) {
        let (Some(compactor), Some(period)) = (&mut self.compactor, period) else { return };
        if self.last.is_some_and(|last| last.elapsed() < period) {
            return;
        }
        self.last = Some(Instant::now());
        match compactor.compact().await {
            Ok(Some(revision)) => {
                tracing::info!(%revision, "the datastore has forgotten its history");
                counters.compactions += 1;
                counters.compacted = revision.number().unwrap_or_default();
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the datastore does not forget its history; trying again after etcdV3CompactionPeriod");
                counters.failures += 1;
            }
        }
    }
}
