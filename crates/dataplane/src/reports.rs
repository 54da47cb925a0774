//! Reports of the dataplane. Only changes are sent, at a limited rate.

use crate::failure::KernelFailure;
use crate::mtu::MtuChoice;
use crate::policy::{PolicyEngine, PolicyStats};
use crate::reconcile::{DataplaneCore, WorkloadState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tortie_plan::{TunnelKind, WorkloadId};

/// Minimum interval between two rounds of reports: each round inspects every workload.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
const REPORT_CHANNEL_CAPACITY: usize = 1024;

/// A change in the state of the dataplane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataplaneReport {
    Workload {
        id: WorkloadId,
        state: WorkloadState,
    },
    /// All host endpoints of the plan.
    HostEndpoints(BTreeMap<String, WorkloadState>),
    Mtu(MtuChoice),
    /// All workloads whose interface MTU exceeds the one that they should have.
    Oversized(BTreeMap<WorkloadId, u32>),
    RouteCount(usize),
    /// All next hops of planned routes that the kernel cannot reach.
    Unreachable(BTreeSet<IpAddr>),
    Policy(PolicyStats),
    /// All chains and sets that the kernel rejects. The endpoints that they guard are closed.
    Refused(Vec<KernelFailure>),
    /// All failures of tunnels.
    Tunnels(Vec<KernelFailure>),
    /// Number of proxied addresses, and all entries that the kernel rejects.
    Proxied(usize, Vec<KernelFailure>),
    /// All chains of other programs that may drop packets which policy allows.
    Overruled(Vec<KernelFailure>),
    /// All virtual machines migrating to this node that have announced themselves on their links.
    Announced(BTreeSet<WorkloadId>),
    /// The public keys of all WireGuard devices, as text.
    PublicKeys(BTreeMap<TunnelKind, String>),
    /// The reason why flows are not offloaded although they should be; `None` if they are, or need not be.
    NotOffloaded(Option<KernelFailure>),
    /// Whether Felix's chains are in the kernel beside our policy.
    SecondEngine(bool),
    /// The reason why the kernel does not enforce the plan's policy; `None` if it does.
    NotEnforced(Option<KernelFailure>),
}

/// The reports of one dataplane. A slow reader misses no final state: changes that do not fit into the channel are sent
/// when there is room.
pub struct ReportReceiver {
    receiver: mpsc::Receiver<DataplaneReport>,
}

impl ReportReceiver {
    /// Returns the next report; `None` when the dataplane has stopped.
    pub async fn next(&mut self) -> Option<DataplaneReport> {
        self.receiver.recv().await
    }
}

/// The reports sent last, so that only changes are sent.
pub(crate) struct ReportOutbox {
    reports: mpsc::Sender<DataplaneReport>,
    sent: BTreeMap<WorkloadId, WorkloadState>,
    sent_hosts: Option<BTreeMap<String, WorkloadState>>,
    sent_mtu: Option<MtuChoice>,
    sent_oversized: Option<BTreeMap<WorkloadId, u32>>,
    sent_routes: Option<usize>,
    sent_unreachable: Option<BTreeSet<IpAddr>>,
    sent_stats: Option<PolicyStats>,
    sent_refused: Option<Vec<KernelFailure>>,
    sent_tunnels: Option<Vec<KernelFailure>>,
    sent_proxied: Option<(usize, Vec<KernelFailure>)>,
    sent_overruled: Option<Vec<KernelFailure>>,
    sent_public_keys: Option<BTreeMap<TunnelKind, String>>,
    sent_announced: Option<BTreeSet<WorkloadId>>,
    sent_not_offloaded: Option<Option<KernelFailure>>,
    sent_not_enforced: Option<Option<KernelFailure>>,
    /// Whether Felix's chains are in the kernel too.
    pub second_engine: bool,
    sent_second_engine: Option<bool>,
    mtu: watch::Sender<MtuChoice>,
    sent_at: Option<Instant>,
    /// Time of the next round, if one is pending.
    pub due: Option<Instant>,
}

impl ReportOutbox {
    pub fn new(mtu: watch::Sender<MtuChoice>) -> (ReportOutbox, ReportReceiver) {
        let (reports, receiver) = mpsc::channel(REPORT_CHANNEL_CAPACITY);
        let outbox = ReportOutbox {
            reports,
            sent: BTreeMap::new(),
            sent_hosts: None,
            sent_mtu: None,
            sent_oversized: None,
            sent_routes: None,
            sent_unreachable: None,
            sent_stats: None,
            sent_refused: None,
            sent_tunnels: None,
            sent_proxied: None,
            sent_overruled: None,
            sent_public_keys: None,
            sent_announced: None,
            sent_not_offloaded: None,
            sent_not_enforced: None,
            second_engine: false,
            sent_second_engine: None,
            mtu,
            sent_at: None,
            due: None,
        };
        (outbox, ReportReceiver { receiver })
    }

    /// Sends reports now, or schedules them if the last round was less than `REPORT_INTERVAL` ago.
    pub fn send_soon(&mut self, core: &DataplaneCore, policy: &dyn PolicyEngine) {
        match self.sent_at.map(|sent| sent + REPORT_INTERVAL) {
            Some(due) if due > Instant::now() => self.due = Some(due),
            _ => self.send(core, policy),
        }
    }

    pub fn send(&mut self, core: &DataplaneCore, policy: &dyn PolicyEngine) {
        (self.sent_at, self.due) = (Some(Instant::now()), None);
        let mtu = core.mtu();
        let largest = mtu.mtu;
        if self.sent_mtu.as_ref() != Some(&mtu) {
            tracing::info!(mtu = mtu.mtu, interface = mtu.interface, reason = mtu.reason, "workload MTU");
            self.mtu.send_replace(mtu.clone());
            if self.reports.try_send(DataplaneReport::Mtu(mtu.clone())).is_ok() {
                self.sent_mtu = Some(mtu);
            }
        }
        let oversized = core.oversized(largest);
        if self.sent_oversized.as_ref() != Some(&oversized)
            && self.reports.try_send(DataplaneReport::Oversized(oversized.clone())).is_ok()
        {
            self.sent_oversized = Some(oversized);
        }
        let count = core.route_count();
        if self.sent_routes != Some(count)
            && self.reports.try_send(DataplaneReport::RouteCount(count)).is_ok()
        {
            self.sent_routes = Some(count);
        }
        let unreachable = core.unreachable();
        if self.sent_unreachable.as_ref() != Some(&unreachable)
            && self.reports.try_send(DataplaneReport::Unreachable(unreachable.clone())).is_ok()
        {
            self.sent_unreachable = Some(unreachable);
        }
        let stats = policy.stats();
        if self.sent_stats != Some(stats) && self.reports.try_send(DataplaneReport::Policy(stats)).is_ok() {
            self.sent_stats = Some(stats);
        }
        let mut refused = policy.refused();
        refused.extend(core.withheld());
        if self.sent_refused.as_ref() != Some(&refused)
            && self.reports.try_send(DataplaneReport::Refused(refused.clone())).is_ok()
        {
            self.sent_refused = Some(refused);
        }
        let tunnels = core.tunnel_failures();
        if self.sent_tunnels.as_ref() != Some(&tunnels)
            && self.reports.try_send(DataplaneReport::Tunnels(tunnels.clone())).is_ok()
        {
            self.sent_tunnels = Some(tunnels);
        }
        let proxied = (core.proxied().len(), core.proxy_failures());
        if self.sent_proxied.as_ref() != Some(&proxied)
            && self.reports.try_send(DataplaneReport::Proxied(proxied.0, proxied.1.clone())).is_ok()
        {
            self.sent_proxied = Some(proxied);
        }
        let overruled = policy.overruled();
        if self.sent_overruled.as_ref() != Some(&overruled)
            && self.reports.try_send(DataplaneReport::Overruled(overruled.clone())).is_ok()
        {
            self.sent_overruled = Some(overruled);
        }
        let keys = core.public_keys();
        if let Some(keys) = keys.filter(|keys| self.sent_public_keys.as_ref() != Some(keys))
            && self.reports.try_send(DataplaneReport::PublicKeys(keys.clone())).is_ok()
        {
            self.sent_public_keys = Some(keys);
        }
        if self.sent_announced.as_ref() != Some(core.announced())
            && self.reports.try_send(DataplaneReport::Announced(core.announced().clone())).is_ok()
        {
            self.sent_announced = Some(core.announced().clone());
        }
        let not_offloaded = policy.not_offloaded();
        if self.sent_not_offloaded.as_ref() != Some(&not_offloaded)
            && self.reports.try_send(DataplaneReport::NotOffloaded(not_offloaded.clone())).is_ok()
        {
            self.sent_not_offloaded = Some(not_offloaded);
        }
        let second_engine = self.second_engine;
        if self.sent_second_engine != Some(second_engine)
            && self.reports.try_send(DataplaneReport::SecondEngine(second_engine)).is_ok()
        {
            self.sent_second_engine = Some(second_engine);
        }
        let not_enforced = policy.not_enforced();
        if self.sent_not_enforced.as_ref() != Some(&not_enforced)
            && self.reports.try_send(DataplaneReport::NotEnforced(not_enforced.clone())).is_ok()
        {
            self.sent_not_enforced = Some(not_enforced);
        }
        let reason = self.sent_not_enforced.iter().flatten().next().map(|failure| failure.reason.as_str());
        let hosts = core.host_states(policy.host_endpoints(), reason);
        if self.sent_hosts.as_ref() != Some(&hosts)
            && self.reports.try_send(DataplaneReport::HostEndpoints(hosts.clone())).is_ok()
        {
            self.sent_hosts = Some(hosts);
        }
        let mut present = BTreeMap::new();
        for (id, state) in core.states() {
            let sent = self.sent.remove(id);
            // If the channel is full, keep the old state, so that the change is sent in a later round.
            let news = sent.as_ref() != Some(&state);
            let report = || DataplaneReport::Workload { id: id.clone(), state: state.clone() };
            let noted = if news && self.reports.try_send(report()).is_err() { sent } else { Some(state) };
            if let Some(state) = noted {
                present.insert(id.clone(), state);
            }
        }
        self.sent = present;
    }
}
