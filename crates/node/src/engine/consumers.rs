//! Consumers of the plan besides the dataplane, for example BGP.
//!
//! A consumer declares which updates it wants and when ([`PlanConsumer`]). The core collects the changes of each
//! consumer and releases them at that stage; the engine adds them to the consumer's bounded queue and never waits. If
//! too many updates wait, they are replaced by the consumer's whole part of the plan.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tortie_compute::NodeParameters;
use tortie_plan::{NodePlan, PlanUpdate};

/// Maximum number of updates that wait for a consumer, both in the core and in its queue.
pub const MAX_WAITING_UPDATES: usize = 4096;

/// The declaration of a consumer.
#[derive(Clone, Copy, Debug)]
pub struct PlanConsumer {
    /// Identifies the consumer, also in metrics.
    pub name: &'static str,
    pub stage: PlanStage,
    /// Whether it receives anything with these parameters. When that becomes true, it receives its part of the plan.
    pub enabled: fn(&NodeParameters) -> bool,
    pub wants: fn(&PlanUpdate) -> bool,
    /// Copies the part of the plan that consists of wanted updates.
    pub select: fn(&NodePlan) -> NodePlan,
}

/// When a consumer receives an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStage {
    /// As soon as the plan contains it.
    Planned,
    /// Once the kernel has applied or refused it and everything planned with it.
    Programmed,
}

/// A change of a consumer's part of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PlanChange {
    /// Replaces everything that the consumer has received.
    Resync(Box<NodePlan>),
    Updates(Vec<PlanUpdate>),
}

/// Returns whether the dataplane wants an update.
pub(super) fn concerns_kernel(update: &PlanUpdate) -> bool {
    !matches!(update, PlanUpdate::Bgp(_) | PlanUpdate::Namespace(..) | PlanUpdate::ServiceAccount(..))
}

/// Changes of the plan that have not been released to a consumer yet. The first release is a resync.
#[derive(Debug)]
pub(super) struct ConsumerBacklog {
    pub consumer: PlanConsumer,
    enabled: bool,
    updates: Vec<PlanUpdate>,
    needs_resync: bool,
}

impl ConsumerBacklog {
    pub fn new(consumer: PlanConsumer) -> ConsumerBacklog {
        ConsumerBacklog { consumer, enabled: false, updates: Vec::new(), needs_resync: true }
    }

    /// Enables or disables the consumer.
    pub fn follow_parameters(&mut self, parameters: &NodeParameters) {
        self.enabled = (self.consumer.enabled)(parameters);
        if !self.enabled {
            self.needs_resync = true;
            self.updates = Vec::new();
        }
    }

    pub fn add(&mut self, update: &PlanUpdate) {
        if self.needs_resync || !(self.consumer.wants)(update) {
            return;
        }
        if self.updates.len() < MAX_WAITING_UPDATES {
            self.updates.push(update.clone());
        } else {
            self.needs_resync = true;
            self.updates = Vec::new();
        }
    }

    /// Returns the changes since the last call, after which the consumer has its part of `plan`.
    pub fn release(&mut self, plan: &NodePlan) -> Option<PlanChange> {
        if !self.enabled {
            return None;
        }
        if std::mem::take(&mut self.needs_resync) {
            return Some(PlanChange::Resync(Box::new((self.consumer.select)(plan))));
        }
        let updates = std::mem::take(&mut self.updates);
        (!updates.is_empty()).then_some(PlanChange::Updates(updates))
    }
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: Option<PlanChange>,
    sender_gone: bool,
}

#[derive(Debug, Default)]
struct PlanQueue {
    state: Mutex<QueueState>,
    changed: Notify,
}

impl PlanQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end of a consumer's queue.
#[derive(Debug)]
pub(super) struct PlanSender {
    pub consumer: PlanConsumer,
    queue: Arc<PlanQueue>,
}

/// The consumer's end of its queue.
#[derive(Debug)]
pub struct PlanReceiver(Arc<PlanQueue>);

pub(super) fn plan_queue(consumer: PlanConsumer) -> (PlanSender, PlanReceiver) {
    let queue = Arc::new(PlanQueue::default());
    (PlanSender { consumer, queue: queue.clone() }, PlanReceiver(queue))
}

impl PlanSender {
    /// Adds a change without waiting. `plan` is the plan after the change. Returns whether the consumer is sent its
    /// whole part of the plan. While that waits, further updates are applied to it, so that its size stays bounded.
    pub fn send(&self, change: PlanChange, plan: &NodePlan) -> bool {
        let mut state = self.queue.lock();
        let mut resync = matches!(change, PlanChange::Resync(_));
        let waiting = match (state.waiting.take(), change) {
            (None, change) | (_, change @ PlanChange::Resync(_)) => change,
            (Some(PlanChange::Resync(mut waiting)), PlanChange::Updates(updates)) => {
                updates.into_iter().for_each(|update| waiting.apply(update));
                PlanChange::Resync(waiting)
            }
            (Some(PlanChange::Updates(mut waiting)), PlanChange::Updates(updates)) => {
                if waiting.len() + updates.len() <= MAX_WAITING_UPDATES {
                    waiting.extend(updates);
                    PlanChange::Updates(waiting)
                } else {
                    resync = true;
                    PlanChange::Resync(Box::new((self.consumer.select)(plan)))
                }
            }
        };
        state.waiting = Some(waiting);
        self.queue.changed.notify_one();
        resync
    }
}

impl Drop for PlanSender {
    fn drop(&mut self) {
        self.queue.lock().sender_gone = true;
        self.queue.changed.notify_one();
    }
}

impl PlanReceiver {
    /// Returns everything that waits as one change, or None if the engine has ended.
    pub async fn recv(&mut self) -> Option<PlanChange> {
        loop {
            {
                let mut state = self.0.lock();
                if state.waiting.is_some() || state.sender_gone {
                    return state.waiting.take();
                }
            }
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tortie_compute::ParameterEnvironment;
    use tortie_plan::bgp::BgpConfig;

    const CONSUMER: PlanConsumer = PlanConsumer {
        name: "test",
        stage: PlanStage::Programmed,
        enabled: |parameters| !parameters.prometheus_metrics_enabled,
        wants: |update| matches!(update, PlanUpdate::Bgp(_)),
        select: |plan| NodePlan { bgp: plan.bgp.clone(), ..NodePlan::default() },
    };

    fn bgp(as_number: u32) -> PlanUpdate {
        PlanUpdate::Bgp(Arc::new(BgpConfig { as_number, ..BgpConfig::default() }))
    }

    fn plan(as_number: u32) -> NodePlan {
        let mut plan = NodePlan::default();
        plan.apply(bgp(as_number));
        plan
    }

    fn updates(numbers: std::ops::Range<u32>) -> Option<PlanChange> {
        Some(PlanChange::Updates(numbers.map(bgp).collect()))
    }

    fn resync(as_number: u32) -> Option<PlanChange> {
        Some(PlanChange::Resync(Box::new(plan(as_number))))
    }

    const BOUND: u32 = MAX_WAITING_UPDATES as u32;

    #[tokio::test]
    async fn a_full_queue_is_replaced_by_a_resync() {
        let (sender, mut receiver) = plan_queue(CONSUMER);
        let send = |number| sender.send(PlanChange::Updates(vec![bgp(number)]), &plan(number));
        assert!((0..BOUND).all(|number| !send(number)), "all fit");
        assert_eq!(receiver.recv().await, updates(0..BOUND));
        let resyncs = (0..100_000).filter(|number| send(*number)).count();
        assert_eq!(resyncs, 1, "one snapshot, however slow the consumer is");
        assert_eq!(receiver.recv().await, resync(99_999));
        send(7);
        assert_eq!(receiver.recv().await, updates(7..8));
        send(8);
        drop(sender);
        assert_eq!(receiver.recv().await, updates(8..9), "sent before the end");
        assert_eq!(receiver.recv().await, None);
    }

    #[test]
    fn a_full_backlog_is_replaced_by_a_resync() {
        let mut backlog = ConsumerBacklog::new(CONSUMER);
        backlog.follow_parameters(&NodeParameters::default());
        backlog.add(&bgp(1));
        assert_eq!(backlog.release(&plan(1)), resync(1), "the first release");
        assert_eq!(backlog.release(&plan(1)), None);
        backlog.add(&PlanUpdate::LearntComplete);
        assert_eq!(backlog.release(&plan(1)), None, "not wanted");
        (0..BOUND).for_each(|number| backlog.add(&bgp(number)));
        assert_eq!(backlog.release(&plan(BOUND - 1)), updates(0..BOUND));
        (0..=BOUND).for_each(|number| backlog.add(&bgp(number)));
        assert_eq!(backlog.release(&plan(BOUND)), resync(BOUND));
    }

    #[test]
    fn disabled_consumers_receive_nothing() {
        let mut backlog = ConsumerBacklog::new(CONSUMER);
        let variable = ("FELIX_PROMETHEUSMETRICSENABLED".to_owned(), "true".to_owned());
        let environment = ParameterEnvironment::new([variable], []);
        let disabled = NodeParameters::resolve("n1", &BTreeMap::new(), std::iter::empty(), &environment);
        backlog.follow_parameters(&disabled);
        backlog.add(&bgp(1));
        assert_eq!(backlog.release(&plan(1)), None);
        backlog.follow_parameters(&NodeParameters::default());
        assert_eq!(backlog.release(&plan(1)), resync(1), "when it is enabled");
        backlog.add(&bgp(2));
        backlog.follow_parameters(&disabled);
        assert_eq!(backlog.release(&plan(2)), None);
        backlog.follow_parameters(&NodeParameters::default());
        assert_eq!(backlog.release(&plan(2)), resync(2), "when it is enabled again");
    }
}
