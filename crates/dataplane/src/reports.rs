//! What the dataplane tells of itself. Only changes are told, and not too often.

use crate::failure::Failure;
use crate::mtu::MtuChoice;
use crate::nft::{Enforcer, TableStats};
use crate::reconcile::{Core, WorkloadState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tortie_plan::WorkloadId;

/// Between two rounds of reports: telling looks at every workload.
const TELL: Duration = Duration::from_millis(50);
const REPORTS: usize = 1024;

/// What the dataplane has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    Workload {
        id: WorkloadId,
        state: WorkloadState,
    },
    Mtu(MtuChoice),
    RouteCount(usize),
    /// Next hops of planned routes to which the kernel has no way, all of them.
    Unreachable(BTreeSet<IpAddr>),
    Table(TableStats),
    /// Chains and sets that the kernel does not take, all of them. What they guard is closed.
    Refused(Vec<Failure>),
    /// Why the kernel does not enforce the plan's policy; `None` from when it does.
    NotEnforced(Option<Failure>),
}

/// The reports of one dataplane. A reader that is slow loses none: what changed meanwhile is told when there is room.
pub struct Reports {
    receiver: mpsc::Receiver<Report>,
}

impl Reports {
    /// The next report; `None` when the dataplane has stopped.
    pub async fn next(&mut self) -> Option<Report> {
        self.receiver.recv().await
    }
}

/// What has been told, so that only changes are.
pub(crate) struct Outbox {
    reports: mpsc::Sender<Report>,
    told: BTreeMap<WorkloadId, WorkloadState>,
    told_mtu: Option<MtuChoice>,
    told_routes: Option<usize>,
    told_unreachable: Option<BTreeSet<IpAddr>>,
    told_table: Option<TableStats>,
    told_refused: Option<Vec<Failure>>,
    told_not_enforced: Option<Option<Failure>>,
    mtu: watch::Sender<MtuChoice>,
    told_at: Option<Instant>,
    /// When to tell what happened since.
    pub due: Option<Instant>,
}

impl Outbox {
    pub fn new(mtu: watch::Sender<MtuChoice>) -> (Outbox, Reports) {
        let (reports, receiver) = mpsc::channel(REPORTS);
        let outbox = Outbox {
            reports,
            told: BTreeMap::new(),
            told_mtu: None,
            told_routes: None,
            told_unreachable: None,
            told_table: None,
            told_refused: None,
            told_not_enforced: None,
            mtu,
            told_at: None,
            due: None,
        };
        (outbox, Reports { receiver })
    }

    /// Now, unless it was only just done.
    pub fn tell_soon(&mut self, core: &Core, enforcer: &Enforcer) {
        match self.told_at.map(|told| told + TELL) {
            Some(due) if due > Instant::now() => self.due = Some(due),
            _ => self.tell(core, enforcer),
        }
    }

    pub fn tell(&mut self, core: &Core, enforcer: &Enforcer) {
        (self.told_at, self.due) = (Some(Instant::now()), None);
        let mtu = core.mtu();
        if self.told_mtu.as_ref() != Some(&mtu) {
            tracing::info!(mtu = mtu.mtu, interface = mtu.interface, reason = mtu.reason, "workload MTU");
            self.mtu.send_replace(mtu.clone());
            if self.reports.try_send(Report::Mtu(mtu.clone())).is_ok() {
                self.told_mtu = Some(mtu);
            }
        }
        let count = core.route_count();
        if self.told_routes != Some(count) && self.reports.try_send(Report::RouteCount(count)).is_ok() {
            self.told_routes = Some(count);
        }
        let unreachable = core.unreachable();
        if self.told_unreachable.as_ref() != Some(&unreachable)
            && self.reports.try_send(Report::Unreachable(unreachable.clone())).is_ok()
        {
            self.told_unreachable = Some(unreachable);
        }
        let table = enforcer.stats();
        if self.told_table != Some(table) && self.reports.try_send(Report::Table(table)).is_ok() {
            self.told_table = Some(table);
        }
        let refused = enforcer.refused();
        if self.told_refused.as_ref() != Some(&refused)
            && self.reports.try_send(Report::Refused(refused.clone())).is_ok()
        {
            self.told_refused = Some(refused);
        }
        let not_enforced = enforcer.table_failure();
        if self.told_not_enforced.as_ref() != Some(&not_enforced)
            && self.reports.try_send(Report::NotEnforced(not_enforced.clone())).is_ok()
        {
            self.told_not_enforced = Some(not_enforced);
        }
        let mut present = BTreeMap::new();
        for (id, state) in core.states() {
            let told = self.told.remove(id);
            // When the channel is full the old state stays noted, and the change is told at a later turn.
            let news = told.as_ref() != Some(&state);
            let report = || Report::Workload { id: id.clone(), state: state.clone() };
            let noted = if news && self.reports.try_send(report()).is_err() { told } else { Some(state) };
            if let Some(state) = noted {
                present.insert(id.clone(), state);
            }
        }
        self.told = present;
    }
}
