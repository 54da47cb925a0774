//! The task that owns the dataplane: receives commands and kernel events.

use super::audits::{AuditSchedule, until};
use super::{ApplyOutcome, DataplaneChange, DataplaneCommand, forwarding_switches};
use crate::arrivals::ArrivalListener;
use crate::error::DataplaneResult;
use crate::felix::{FelixLeftovers, FelixWatch};
use crate::kernel::{KernelEvent, KernelEventStream};
use crate::policy::{DeniedFlows, PolicyEngine, PolicyEvent};
use crate::reconcile::{DataplaneCore, KernelHandle, announce};
use crate::reports::ReportOutbox;
use crate::sysctl::SysctlSetting;
use futures::FutureExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tortie_plan::PlanUpdate;

/// Interval between reads of kernel state that has no notifications.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of events processed before the next convergence.
const MAX_EVENTS_PER_TURN: usize = 4096;

/// Kernel state that has to be read again before the next convergence, in addition to the state that the reconcilers
/// know to be stale.
#[derive(Default)]
pub struct StaleState {
    pub everything: bool,
    /// Whether all links have to be read.
    pub all_links: bool,
    /// Indexes of links with pending events.
    pub links: BTreeSet<u32>,
    /// Interfaces of new workloads; their link events may not have arrived yet.
    pub interfaces: BTreeSet<String>,
    /// Whether the sysctls of the whole host have to be checked.
    pub switches: bool,
}

pub struct DataplaneEngine {
    pub kernel: KernelHandle,
    pub events: KernelEventStream,
    pub core: DataplaneCore,
    pub policy: Box<dyn PolicyEngine>,
    /// Present if established flows have to follow policy changes.
    pub denied_flows: Option<DeniedFlows>,
    pub leftovers: FelixLeftovers,
    pub felix_watch: FelixWatch,
    /// The sysctls of the whole host.
    pub switches: Vec<SysctlSetting>,
    pub started: Instant,
    pub audits: AuditSchedule,
    pub stale: StaleState,
    pub arrivals: ArrivalListener,
    pub outbox: ReportOutbox,
    pub turns: Arc<AtomicU64>,
}

impl DataplaneEngine {
    pub async fn run(mut self, mut inbox: mpsc::Receiver<DataplaneCommand>) {
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The `DataplaneHandle` handle was dropped: the kernel state may already belong to a successor.
            if inbox.is_closed() && inbox.is_empty() {
                return;
            }
            self.turns.fetch_add(1, Ordering::Relaxed);
            let mut waiting = Vec::new();
            tokio::select! {
                () = until(self.outbox.due) => {
                    self.outbox.send(&self.core, &*self.policy);
                    continue;
                },
                command = inbox.recv() => match command {
                    Some(command) => waiting.push(self.accept(command)),
                    None => return,
                },
                event = self.events.next() => if let Err(error) = self.handle_events(event) {
                    return tracing::error!(%error, "cannot read rtnetlink events; the dataplane stops and is restarted");
                },
                event = self.policy.next_event() => match event {
                    Ok(event) => {
                        self.policy.invalidate(event);
                        if event.foreign {
                            self.felix_watch.invalidate();
                        }
                    }
                    Err(error) => return tracing::error!(%error, "cannot read events of the policy engine; the dataplane stops and is restarted"),
                },
                index = self.arrivals.next() => self.core.announced_on(index),
                _ = tick.tick() => self.tick(),
                () = until(self.audits.routes.due) => {
                    self.stale.everything = true;
                    self.stale.switches = true;
                    self.audits.routes.restart();
                }
                () = until(self.audits.announcements.due) => {
                    self.audits.announcements.restart();
                    self.announce_proxied().await;
                    continue;
                }
                () = until(self.audits.policy.due) => {
                    self.policy.invalidate(PolicyEvent::EVERYTHING);
                    self.audits.policy.restart();
                }
            }
            while let Ok(command) = inbox.try_recv() {
                waiting.push(self.accept(command));
            }
            let outcome = self.converge().await;
            self.outbox.send_soon(&self.core, &*self.policy);
            for done in waiting {
                // The caller may have stopped waiting; the change is in the kernel nevertheless.
                let _ = done.send(outcome.clone());
            }
            self.delete_denied_flows().await;
            if self.policy.is_settled() {
                self.leftovers.remove(self.started.elapsed()).await;
            }
            if self.leftovers.are_removed() {
                self.felix_watch.look(self.started.elapsed()).await;
                self.outbox.second_engine = self.felix_watch.is_present();
            }
        }
    }

    fn accept(&mut self, command: DataplaneCommand) -> oneshot::Sender<ApplyOutcome> {
        match command.change {
            DataplaneChange::Settings(settings, mtu_pattern) => {
                self.switches = forwarding_switches(&settings);
                self.stale.switches = true;
                self.audits.configure(&settings);
                self.policy.configure((*settings).clone());
                self.core.configure(*settings, mtu_pattern);
            }
            DataplaneChange::Replace(mut plan) => {
                self.core.withhold(&mut plan);
                self.policy.replace(&plan);
                self.denied_flows.iter_mut().for_each(|denied_flows| denied_flows.replace(&plan));
                self.core.replace(*plan);
                self.stale.all_links = true;
            }
            DataplaneChange::Updates(updates) => {
                for update in updates {
                    let granted = self.core.sift(update);
                    self.apply_updates(granted);
                }
            }
        }
        command.done
    }

    fn apply_updates(&mut self, updates: Vec<PlanUpdate>) {
        for update in updates {
            if let PlanUpdate::Workload(_, Some(workload)) = &update {
                self.stale.interfaces.insert(workload.interface.clone());
            }
            self.policy.apply(&update);
            self.denied_flows.iter_mut().for_each(|denied_flows| denied_flows.apply(&update));
            self.core.apply(update);
        }
    }

    /// Processes an event and all others that are already queued.
    fn handle_events(&mut self, first: DataplaneResult<KernelEvent>) -> DataplaneResult<()> {
        self.handle_event(first?);
        for _ in 0..MAX_EVENTS_PER_TURN {
            match self.events.next().now_or_never() {
                Some(event) => self.handle_event(event?),
                None => break,
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, event: KernelEvent) {
        match &event {
            KernelEvent::Overrun => {
                tracing::warn!("netlink events were lost; reading the complete kernel state again");
                self.stale.everything = true;
            }
            KernelEvent::GlobalSettings => self.stale.switches = true,
            KernelEvent::Link { index, .. } => {
                self.stale.links.insert(*index);
            }
            _ => {}
        }
        self.core.handle_event(event);
    }

    /// Schedules a check of the state that the kernel does not announce, such as sysctls and WireGuard keys.
    fn tick(&mut self) {
        self.core.tick();
        let reviewed = self.core.review_links();
        self.apply_updates(reviewed);
        self.stale.switches = true;
        self.stale.all_links = true;
    }

    /// Announces the addresses that the host answers for again.
    async fn announce_proxied(&self) {
        announce(&self.kernel.netns, self.core.answered_addresses()).await;
    }

    /// Deletes established flows once the kernel has the policy that denies them; deleted earlier, they would come
    /// back.
    async fn delete_denied_flows(&mut self) {
        let now = self.started.elapsed();
        let settled = self.policy.is_settled();
        let Some(denied_flows) =
            self.denied_flows.as_mut().filter(|denied_flows| settled && denied_flows.is_due(now))
        else {
            return;
        };
        match denied_flows.delete(&self.kernel.netns, &self.core.own_addresses(), now).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "deleted established flows that policy denies now"),
            Err(error) => {
                tracing::warn!(%error, "cannot delete established flows that policy denies now; will retry")
            }
        }
    }
}
