//! The channel for plan updates from the engine to BGP. The engine must never wait for BGP, because BGP may be
//! waiting for the engine to receive routes. Therefore a later update replaces an earlier one for the same object: at
//! most one configuration and one entry per workload wait, so the size is bounded by that of the plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tortie_plan::bgp::BgpConfig;
use tortie_plan::{PlanUpdate, PlannedWorkload, WorkloadId};

#[derive(Default)]
struct WaitingUpdates {
    bgp: Option<Arc<BgpConfig>>,
    workloads: BTreeMap<WorkloadId, Option<PlannedWorkload>>,
    /// Whether there is an update, including one without content.
    any: bool,
    sender_gone: bool,
}

#[derive(Default)]
struct PlanChannelState {
    waiting: Mutex<WaitingUpdates>,
    changed: Notify,
}

impl PlanChannelState {
    fn lock(&self) -> MutexGuard<'_, WaitingUpdates> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end.
pub struct PlanUpdateSender(Arc<PlanChannelState>);

/// The end of the BGP backend.
pub struct PlanUpdateReceiver(Arc<PlanChannelState>);

pub fn mailbox() -> (PlanUpdateSender, PlanUpdateReceiver) {
    let shared = Arc::new(PlanChannelState::default());
    (PlanUpdateSender(shared.clone()), PlanUpdateReceiver(shared))
}

impl PlanUpdateSender {
    /// Adds updates. An update replaces a waiting one for the same object.
    pub fn send(&self, updates: Vec<PlanUpdate>) {
        let mut waiting = self.0.lock();
        for update in updates {
            match update {
                PlanUpdate::Bgp(bgp) => waiting.bgp = Some(bgp),
                PlanUpdate::Workload(id, workload) => _ = waiting.workloads.insert(id, workload),
                // No other update concerns BGP.
                _ => {}
            }
        }
        waiting.any = true;
        self.0.changed.notify_one();
    }
}

impl Drop for PlanUpdateSender {
    fn drop(&mut self) {
        self.0.lock().sender_gone = true;
        self.0.changed.notify_one();
    }
}

impl PlanUpdateReceiver {
    /// Returns all waiting updates, or None if the sender is gone.
    pub async fn recv(&mut self) -> Option<Vec<PlanUpdate>> {
        loop {
            {
                let mut waiting = self.0.lock();
                if std::mem::take(&mut waiting.any) {
                    let workloads = std::mem::take(&mut waiting.workloads);
                    let workloads =
                        workloads.into_iter().map(|(id, workload)| PlanUpdate::Workload(id, workload));
                    return Some(
                        waiting.bgp.take().map(PlanUpdate::Bgp).into_iter().chain(workloads).collect(),
                    );
                }
                if waiting.sender_gone {
                    return None;
                }
            }
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bgp(as_number: u32) -> PlanUpdate {
        PlanUpdate::Bgp(Arc::new(BgpConfig { as_number, ..BgpConfig::default() }))
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_latest_and_nothing_piles_up() {
        let (sender, mut receiver) = mailbox();
        for number in 0..100_000 {
            sender.send(vec![bgp(number)]);
        }
        assert_eq!(receiver.recv().await, Some(vec![bgp(99_999)]));
        sender.send(vec![bgp(7)]);
        drop(sender);
        assert_eq!(receiver.recv().await, Some(vec![bgp(7)]), "what was sent before the end is not lost");
        assert_eq!(receiver.recv().await, None);
    }
}
