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

/// Sends the changes since the last round.
pub struct ReportOutbox {
    reports: mpsc::Sender<DataplaneReport>,
    mtu: watch::Sender<MtuChoice>,
    sent: SentReports,
    sent_at: Option<Instant>,
    /// Whether Felix's chains are in the kernel too.
    pub second_engine: bool,
    /// Time of the next round, if one is pending.
    pub due: Option<Instant>,
}

/// The reports that were sent last.
#[derive(Default)]
struct SentReports {
    workloads: BTreeMap<WorkloadId, WorkloadState>,
    hosts: Option<BTreeMap<String, WorkloadState>>,
    mtu: Option<MtuChoice>,
    oversized: Option<BTreeMap<WorkloadId, u32>>,
    routes: Option<usize>,
    unreachable: Option<BTreeSet<IpAddr>>,
    stats: Option<PolicyStats>,
    refused: Option<Vec<KernelFailure>>,
    tunnels: Option<Vec<KernelFailure>>,
    proxied: Option<(usize, Vec<KernelFailure>)>,
    overruled: Option<Vec<KernelFailure>>,
    public_keys: Option<BTreeMap<TunnelKind, String>>,
    announced: Option<BTreeSet<WorkloadId>>,
    not_offloaded: Option<Option<KernelFailure>>,
    not_enforced: Option<Option<KernelFailure>>,
    second_engine: Option<bool>,
}

impl ReportOutbox {
    pub fn new(mtu: watch::Sender<MtuChoice>) -> (ReportOutbox, ReportReceiver) {
        let (reports, receiver) = mpsc::channel(REPORT_CHANNEL_CAPACITY);
        let sent = SentReports::default();
        let outbox = ReportOutbox { reports, mtu, sent, sent_at: None, second_engine: false, due: None };
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
        self.sent_at = Some(Instant::now());
        self.due = None;
        let reports = &self.reports;
        let sent = &mut self.sent;
        let mtu = core.mtu();
        let oversized = core.oversized(mtu.mtu);
        if sent.mtu.as_ref() != Some(&mtu) {
            tracing::info!(mtu = mtu.mtu, interface = mtu.interface, reason = mtu.reason, "workload MTU");
            self.mtu.send_replace(mtu.clone());
        }
        send_change(reports, &mut sent.mtu, mtu, DataplaneReport::Mtu);
        send_change(reports, &mut sent.oversized, oversized, DataplaneReport::Oversized);
        send_change(reports, &mut sent.routes, core.route_count(), DataplaneReport::RouteCount);
        send_change(reports, &mut sent.unreachable, core.unreachable(), DataplaneReport::Unreachable);
        send_change(reports, &mut sent.stats, policy.stats(), DataplaneReport::Policy);
        let mut refused = policy.refused();
        refused.extend(core.withheld());
        send_change(reports, &mut sent.refused, refused, DataplaneReport::Refused);
        send_change(reports, &mut sent.tunnels, core.tunnel_failures(), DataplaneReport::Tunnels);
        let proxied = (core.answered_addresses().len(), core.proxy_failures());
        send_change(reports, &mut sent.proxied, proxied, |(count, failures)| {
            DataplaneReport::Proxied(count, failures)
        });
        send_change(reports, &mut sent.overruled, policy.overruled(), DataplaneReport::Overruled);
        if let Some(keys) = core.public_keys() {
            send_change(reports, &mut sent.public_keys, keys, DataplaneReport::PublicKeys);
        }
        send_change(reports, &mut sent.announced, core.announced().clone(), DataplaneReport::Announced);
        send_change(reports, &mut sent.not_offloaded, policy.not_offloaded(), DataplaneReport::NotOffloaded);
        send_change(reports, &mut sent.second_engine, self.second_engine, DataplaneReport::SecondEngine);
        send_change(reports, &mut sent.not_enforced, policy.not_enforced(), DataplaneReport::NotEnforced);
        let failure = sent.not_enforced.iter().flatten().next();
        let hosts = core.host_states(policy.host_endpoints(), failure.map(|failure| &*failure.reason));
        send_change(reports, &mut sent.hosts, hosts, DataplaneReport::HostEndpoints);
        let mut present = BTreeMap::new();
        for (id, state) in core.states() {
            let mut last = sent.workloads.remove(id);
            send_change(reports, &mut last, state, |state| DataplaneReport::Workload {
                id: id.clone(),
                state,
            });
            present.extend(last.map(|state| (id.clone(), state)));
        }
        sent.workloads = present;
    }
}

/// Sends a value that differs from the last one. If the channel is full, the change is sent in a later round.
fn send_change<T: Clone + PartialEq>(
    reports: &mpsc::Sender<DataplaneReport>,
    sent: &mut Option<T>,
    value: T,
    report: impl FnOnce(T) -> DataplaneReport,
) {
    if sent.as_ref() != Some(&value) && reports.try_send(report(value.clone())).is_ok() {
        *sent = Some(value);
    }
}
