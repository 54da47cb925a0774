//! The task that owns the dataplane: receives plans and kernel events, and makes the kernel converge on the desired
//! state.

use crate::arrivals::ArrivalListener;
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::{AffectedWorkloads, KernelFailure};
use crate::felix::{FelixLeftovers, FelixWatch};
use crate::kernel::{ConntrackCleanup, KernelEvent, KernelEventStream, RtnetlinkClient, WireguardClient};
use crate::mtu::MtuChoice;
use crate::netns::Netns;
use crate::policy::{self, DeniedFlows, PolicyEngine, PolicyEvent};
use crate::reconcile::DataplaneCore;
use crate::reports::{ReportOutbox, ReportReceiver};
use crate::sysctl::{self, SysctlSetting};
use crate::wireguard_keys::WireguardKeys;
use futures::FutureExt;
use regex::Regex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate, TunnelKind};

/// Interval between reads of kernel state that has no notifications.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of events processed before the next convergence.
const MAX_EVENTS_PER_TURN: usize = 4096;
const COMMAND_CHANNEL_CAPACITY: usize = 64;

/// Result of an update: workloads that no failure concerns are completely in the kernel. Failures of earlier updates
/// that concern workloads are listed until they are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyOutcome {
    pub failures: Vec<KernelFailure>,
}

enum DataplaneChange {
    Replace(Box<NodePlan>),
    Updates(Vec<PlanUpdate>),
    Settings(Box<DataplaneSettings>, Regex),
}

struct DataplaneCommand {
    change: DataplaneChange,
    done: oneshot::Sender<ApplyOutcome>,
}

/// Handle to the dataplane of one node. Dropping it stops the engine and leaves the kernel as it is.
pub struct DataplaneHandle {
    commands: mpsc::Sender<DataplaneCommand>,
    mtu: watch::Receiver<MtuChoice>,
    engine: JoinHandle<()>,
    turns: Arc<AtomicU64>,
}

impl DataplaneHandle {
    /// Opens netlink in `host`, reads the existing kernel state and starts watching it. Changes nothing but the
    /// forwarding sysctls. WireGuard keys are not persisted: they live as long as their devices.
    pub async fn start(
        host: Netns,
        settings: DataplaneSettings,
    ) -> DataplaneResult<(DataplaneHandle, ReportReceiver)> {
        DataplaneHandle::start_with_keys(host, settings, WireguardKeys::default()).await
    }

    /// Like [`DataplaneHandle::start`], with a store for the keys of WireGuard devices.
    pub async fn start_with_keys(
        host: Netns,
        settings: DataplaneSettings,
        keys: WireguardKeys,
    ) -> DataplaneResult<(DataplaneHandle, ReportReceiver)> {
        let pattern = mtu_pattern(&settings)?;
        let kernel = RtnetlinkClient::open(&host)?;
        // Subscribe before the first snapshot, so that no change between the two is missed.
        let events = KernelEventStream::open(&host, &kernel).await?;
        let switches = forwarding_switches(&settings);
        sysctl::write(&host, switches.clone()).await?;
        let rp_filter = sysctl::read(&host, "net/ipv4/conf/default/rp_filter").await?.unwrap_or(1);
        let started = Instant::now();
        let denied_flows = settings.policy.cut_denied_flows.then(DeniedFlows::default);
        let leftovers = FelixLeftovers::new(host.clone());
        let felix_watch = FelixWatch::new(host.clone());
        let mut audits = AuditSchedule::default();
        audits.configure(&settings);
        let policy = policy::open_engine(&host, settings.clone())?;
        let core = DataplaneCore::new(settings, pattern, rp_filter, kernel.snapshot().await?, Duration::ZERO);

        let (commands, inbox) = mpsc::channel(COMMAND_CHANNEL_CAPACITY);
        let (mtu, mtu_receiver) = watch::channel(core.mtu());
        let (outbox, reports) = ReportOutbox::new(mtu);
        let engine = DataplaneEngine {
            host,
            kernel,
            events,
            core,
            policy,
            denied_flows,
            leftovers,
            felix_watch,
            switches,
            started,
            audits,
            links: BTreeSet::new(),
            interfaces: BTreeSet::new(),
            stale: StaleState::default(),
            conntrack: ConntrackCleanup::default(),
            arrivals: ArrivalListener::default(),
            wireguard: None,
            keys,
            outbox,
            turns: Arc::default(),
        };
        let turns = engine.turns.clone();
        let engine = tokio::spawn(engine.run(inbox));
        Ok((DataplaneHandle { commands, mtu: mtu_receiver, engine, turns }, reports))
    }

    /// Stops the engine and returns when it has stopped. A caller that starts another dataplane must wait for this: an
    /// engine that still runs would treat the writes of its successor as foreign changes and undo them.
    pub async fn stop(self) {
        let DataplaneHandle { commands, engine, .. } = self;
        drop(commands);
        // An error means that the engine has panicked: it has ended in either case.
        let _ = engine.await;
    }

    /// Replaces the desired state as a whole. From the first call on, the engine removes its own objects that are not
    /// in the plan.
    pub async fn replace(&self, plan: NodePlan) -> DataplaneResult<ApplyOutcome> {
        self.send(DataplaneChange::Replace(Box::new(plan))).await
    }

    /// Applies changes and returns when they are in the kernel. Failed changes are retried until they succeed or are
    /// superseded.
    pub async fn apply(&self, updates: Vec<PlanUpdate>) -> DataplaneResult<ApplyOutcome> {
        self.send(DataplaneChange::Updates(updates)).await
    }

    /// Applies new settings; kernel objects that do not depend on a changed setting stay as they are.
    /// `cut_denied_flows` is only read by [`DataplaneHandle::start`].
    pub async fn configure(&self, settings: DataplaneSettings) -> DataplaneResult<ApplyOutcome> {
        let pattern = mtu_pattern(&settings)?;
        self.send(DataplaneChange::Settings(Box::new(settings), pattern)).await
    }

    async fn send(&self, change: DataplaneChange) -> DataplaneResult<ApplyOutcome> {
        let (done, outcome) = oneshot::channel();
        self.commands.send(DataplaneCommand { change, done }).await.map_err(|_| DataplaneError::Stopped)?;
        outcome.await.map_err(|_| DataplaneError::Stopped)
    }

    /// Returns the counter of the engine's loop iterations: it advances at least once a second unless the engine is
    /// stuck.
    pub fn turns(&self) -> Arc<AtomicU64> {
        self.turns.clone()
    }

    /// Whether the engine is running; it ends by itself only when it can no longer read the kernel's events.
    pub fn is_running(&self) -> bool {
        !self.engine.is_finished()
    }

    /// Returns the MTU that workloads should have now.
    pub fn mtu(&self) -> MtuChoice {
        self.mtu.borrow().clone()
    }
}

fn mtu_pattern(settings: &DataplaneSettings) -> DataplaneResult<Regex> {
    Regex::new(&settings.mtu_interface_pattern)
        .map_err(|error| DataplaneError::Invalid { field: "mtuIfacePattern", reason: error.to_string() })
}

fn forwarding_switches(settings: &DataplaneSettings) -> Vec<SysctlSetting> {
    let mut switches = Vec::new();
    if settings.ip_forwarding {
        switches.push(SysctlSetting::new("net/ipv4/ip_forward".into(), 1));
        if settings.ipv6 {
            // Lenient, as a node's kernel may lack IPv6.
            switches.push(SysctlSetting::lenient("net/ipv6/conf/all/forwarding".into(), 1));
        }
    }
    if settings.host_encryption {
        // Packets that arrive unencrypted carry a mark. With this sysctl the reverse path lookup uses the mark too and
        // so bypasses the tunnel.
        switches.push(SysctlSetting::new("net/ipv4/conf/all/src_valid_mark".into(), 1));
    }
    switches
}

/// Kernel state that has to be read again before the next convergence.
#[derive(Default)]
pub(crate) struct StaleState {
    pub(crate) everything: bool,
    pub(crate) links: bool,
    pub(crate) routes: bool,
    pub(crate) switches: bool,
    pub(crate) rules: bool,
    pub(crate) proxies: bool,
    pub(crate) qdiscs: bool,
    /// WireGuard tunnels whose keys have to be checked.
    pub(crate) keys: BTreeSet<TunnelKind>,
}

pub(crate) struct DataplaneEngine {
    pub(crate) host: Netns,
    pub(crate) kernel: RtnetlinkClient,
    pub(crate) events: KernelEventStream,
    pub(crate) core: DataplaneCore,
    pub(crate) policy: Box<dyn PolicyEngine>,
    /// Present if established flows have to follow policy changes.
    pub(crate) denied_flows: Option<DeniedFlows>,
    pub(crate) leftovers: FelixLeftovers,
    pub(crate) felix_watch: FelixWatch,
    pub(crate) switches: Vec<SysctlSetting>,
    pub(crate) started: Instant,
    audits: AuditSchedule,
    /// Indexes of links with pending events.
    pub(crate) links: BTreeSet<u32>,
    /// Interfaces of new workloads; their link events may not have arrived yet.
    pub(crate) interfaces: BTreeSet<String>,
    pub(crate) stale: StaleState,
    pub(crate) conntrack: ConntrackCleanup,
    arrivals: ArrivalListener,
    /// Opened when the first WireGuard device exists.
    pub(crate) wireguard: Option<WireguardClient>,
    pub(crate) keys: WireguardKeys,
    pub(crate) outbox: ReportOutbox,
    pub(crate) turns: Arc<AtomicU64>,
}

impl DataplaneEngine {
    async fn run(mut self, mut inbox: mpsc::Receiver<DataplaneCommand>) {
        let mut tick = every(TICK_INTERVAL);
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
                    Some(command) => waiting.push(self.take_in(command)),
                    None => return,
                },
                event = self.events.next() => if let Err(error) = self.take_events(event) {
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
                    self.audits.routes.again();
                }
                () = until(self.audits.announcements.due) => {
                    self.audits.announcements.again();
                    self.announce_again().await;
                    continue;
                }
                () = until(self.audits.policy.due) => {
                    self.policy.invalidate(PolicyEvent::EVERYTHING);
                    self.audits.policy.again();
                }
            }
            while let Ok(command) = inbox.try_recv() {
                waiting.push(self.take_in(command));
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

    fn take_in(&mut self, command: DataplaneCommand) -> oneshot::Sender<ApplyOutcome> {
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
                self.stale.links = true;
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
                self.interfaces.insert(workload.interface.clone());
            }
            self.policy.apply(&update);
            self.denied_flows.iter_mut().for_each(|denied_flows| denied_flows.apply(&update));
            self.core.apply(update);
        }
    }

    /// Processes an event and all others that are already queued.
    fn take_events(&mut self, first: DataplaneResult<KernelEvent>) -> DataplaneResult<()> {
        self.take_event(first?);
        for _ in 0..MAX_EVENTS_PER_TURN {
            match self.events.next().now_or_never() {
                Some(event) => self.take_event(event?),
                None => break,
            }
        }
        Ok(())
    }

    fn take_event(&mut self, event: KernelEvent) {
        match event {
            KernelEvent::Overrun => {
                tracing::warn!("netlink events were lost; reading the complete kernel state again");
                self.stale.everything = true;
            }
            KernelEvent::GlobalSettings => self.stale.switches = true,
            KernelEvent::RoutingRules => self.stale.rules = true,
            KernelEvent::TrafficControl => self.stale.qdiscs = true,
            KernelEvent::Link { index, down } => {
                if down {
                    self.stale.proxies |= self.core.uses_proxies();
                    self.core.link_was_down(index);
                    // The event may predate our setting a new device up, and then does not cover the routes written
                    // since. Read the routes from the kernel instead of assuming them flushed.
                    self.stale.routes |= self.core.is_tunnel(index);
                }
                self.links.insert(index);
            }
            other => self.stale.routes |= self.core.event(other),
        }
    }

    /// Schedules a check of the state that the kernel does not announce, such as sysctls and WireGuard keys.
    fn tick(&mut self) {
        self.core.tick();
        let reviewed = self.core.review_links();
        self.apply_updates(reviewed);
        self.stale.switches = true;
        self.stale.links = true;
        self.stale.proxies |= self.core.uses_proxies();
        self.stale.keys.extend([TunnelKind::WireguardV4, TunnelKind::WireguardV6]);
    }

    /// Reads stale state again, then makes all changes that are due.
    async fn converge(&mut self) -> ApplyOutcome {
        let mut failures = Vec::new();
        if let Err(error) = self.refresh().await {
            // State marked stale stays marked and is read again in the next iteration.
            let (object, reason) = error.into();
            failures.push(KernelFailure { object, concerns: AffectedWorkloads::Everything, reason });
        }
        if self.policy.needs_interfaces() {
            self.policy.set_interfaces(self.core.host_interfaces());
        }
        if self.policy.offloads() {
            self.policy.set_flow_interfaces(self.core.flow_interfaces());
        }
        // Policy before routes: an endpoint must be guarded before it is reachable.
        failures.extend(self.policy.converge(self.started.elapsed()).await);
        self.apply_sysctls().await;
        // Links are created before the routes that use them, and removed after them.
        self.apply_links().await;
        self.apply_peering().await;
        // Also before routes: a workload must not exceed its bandwidth limit, not even initially.
        self.apply_shaping().await;
        let forwarding = self.apply_forwarding().await;
        let neighbours = self.apply_neighbours().await;
        self.apply_wireguard().await;
        self.remove_rules().await;
        self.apply_routes(&mut failures).await;
        self.apply_rules().await;
        self.apply_proxies().await;
        self.narrow_wireguard().await;
        self.remove_neighbours(neighbours).await;
        self.remove_forwarding(forwarding).await;
        self.remove_links().await;
        self.arrivals.expect(&self.host, self.core.expected_arrivals()).await;
        failures.extend(self.core.workload_failures());
        failures.extend(self.core.tunnel_failures());
        ApplyOutcome { failures }
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
        match denied_flows.delete(&self.host, &self.core.own_addresses(), now).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "deleted established flows that policy denies now"),
            Err(error) => {
                tracing::warn!(%error, "cannot delete established flows that policy denies now; will retry")
            }
        }
    }

    async fn refresh(&mut self) -> DataplaneResult<()> {
        let now = self.started.elapsed();
        if self.stale.everything {
            let snapshot = self.kernel.snapshot().await?;
            self.core.resync(snapshot, now);
            self.stale.everything = false;
            self.stale.rules = false;
            self.stale.proxies = false;
            self.stale.qdiscs = false;
            self.stale.routes = false;
            self.stale.links = false;
            self.links.clear();
            self.interfaces.clear();
        }
        if self.stale.links {
            for link in self.kernel.links().await? {
                self.core.link_is(link.index, Some(link), now);
            }
            self.stale.links = false;
            self.interfaces.clear();
        }
        while let Some(name) = self.interfaces.pop_first() {
            if let Some(link) = self.kernel.link_named(&name).await? {
                self.core.link_is(link.index, Some(link), now);
            }
        }
        while let Some(index) = self.links.first().copied() {
            let link = self.kernel.link(index).await?;
            self.core.link_is(index, link, now);
            self.links.remove(&index);
        }
        if self.stale.routes {
            let routes = self.kernel.routes().await?;
            self.core.resync_routes(routes);
            self.stale.routes = false;
        }
        if self.stale.rules {
            let rules = self.kernel.rules().await?;
            self.core.rules_are(rules);
            self.stale.rules = false;
        }
        if self.stale.proxies {
            let proxies = self.kernel.proxies().await?;
            self.core.proxies_are(proxies);
            self.stale.proxies = false;
        }
        if self.stale.qdiscs {
            let qdiscs = self.kernel.qdiscs().await?;
            self.core.qdiscs_are(qdiscs);
            self.stale.qdiscs = false;
        }
        if self.stale.switches {
            self.stale.switches = false;
            sysctl::write(&self.host, self.switches.clone()).await?;
        }
        for node in self.core.take_lookups() {
            let answer = self.kernel.lookup(node).await;
            self.core.looked_up(node, answer);
        }
        Ok(())
    }
}

/// Schedule of the audits, which read kernel state even if no event was reported, and of repeated address
/// announcements.
#[derive(Default)]
struct AuditSchedule {
    routes: AuditTimer,
    policy: AuditTimer,
    announcements: AuditTimer,
}

#[derive(Default)]
struct AuditTimer {
    interval: Option<Duration>,
    due: Option<Instant>,
}

impl AuditSchedule {
    fn configure(&mut self, settings: &DataplaneSettings) {
        self.routes.every(settings.audit_routes);
        self.policy.every(settings.audit_policy);
        self.announcements.every(settings.announce_proxied);
    }
}

impl AuditTimer {
    fn every(&mut self, interval: Option<Duration>) {
        if self.interval != interval {
            self.interval = interval;
            self.again();
        }
    }

    /// Schedules the next run after the interval plus or minus a tenth.
    fn again(&mut self) {
        self.due = self.interval.map(|interval| Instant::now() + jittered(interval));
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn jittered(period: Duration) -> Duration {
    period.mul_f64(rand::random_range(0.9..1.1))
}
