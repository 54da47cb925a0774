//! What changed in the plan, on its way to BGP. The engine never waits for BGP, which may be waiting for the engine to take
//! routes; so nothing is queued here that a later update replaces. What waits is one configuration and one entry for each
//! workload at most: it is as large as the plan, however slow BGP is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tortie_plan::bgp::Bgp;
use tortie_plan::{Update, Workload, WorkloadId};

#[derive(Default)]
struct Waiting {
    bgp: Option<Arc<Bgp>>,
    workloads: BTreeMap<WorkloadId, Option<Workload>>,
    /// Also an update without content is one.
    any: bool,
    sender_gone: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end.
pub struct Sender(Arc<Shared>);

/// The end of whoever speaks BGP.
pub struct Receiver(Arc<Shared>);

pub fn mailbox() -> (Sender, Receiver) {
    let shared = Arc::new(Shared::default());
    (Sender(shared.clone()), Receiver(shared))
}

impl Sender {
    /// Adds updates; those that replace a waiting one take its place.
    pub fn send(&self, updates: Vec<Update>) {
        let mut waiting = self.0.lock();
        for update in updates {
            match update {
                Update::Bgp(bgp) => waiting.bgp = Some(bgp),
                Update::Workload(id, workload) => _ = waiting.workloads.insert(id, workload),
                // Nothing else concerns BGP.
                _ => {}
            }
        }
        waiting.any = true;
        self.0.changed.notify_one();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.lock().sender_gone = true;
        self.0.changed.notify_one();
    }
}

impl Receiver {
    /// All that waits. None: there will be no more.
    pub async fn recv(&mut self) -> Option<Vec<Update>> {
        loop {
            {
                let mut waiting = self.0.lock();
                if std::mem::take(&mut waiting.any) {
                    let workloads = std::mem::take(&mut waiting.workloads);
                    let workloads =
                        workloads.into_iter().map(|(id, workload)| Update::Workload(id, workload));
                    return Some(waiting.bgp.take().map(Update::Bgp).into_iter().chain(workloads).collect());
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

    fn bgp(as_number: u32) -> Update {
        Update::Bgp(Arc::new(Bgp { as_number, ..Bgp::default() }))
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
