//! Turns events of the kernel into flows.

use super::book::AddressBook;
use super::decision::{EvaluatedFlow, SIDES, SideHits, is_identified};
use super::ends::{FlowService, NO_NAME};
use super::records::{
    AddedCounters, ask, build_records, count_added, describe_disagreement, emit, other_flow,
};
use super::table::{ConnectionTable, FlowTemplate, KeyEntry, KeyTable, LiveConnection};
use super::view::{KnownPlace, PolicyView, build_trace};
use crate::proto::{Flow, PolicyHit};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use tortie_plan::flow::{
    ConnectionOutcome, ConnectionRecord, FlowCounters, FlowDecision, FlowEvent, FlowInterfaces, FlowLoss,
    FlowOpening, FlowTuple,
};

/// Time for the policy that the kernel used to arrive here, if the one here decides differently.
const SETTLE_SECONDS: i64 = 10;
/// Time after the last event of a key after which it is forgotten. The kernel lists live connections more often.
const KEY_LIFETIME_SECONDS: i64 = 300;
/// Interval between searches for expired keys.
const SWEEP_SECONDS: i64 = 15;

/// Limits of the memory of a recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderLimits {
    /// Estimated memory of keys and their records.
    pub max_key_bytes: usize,
    pub max_connections: usize,
}

impl Default for RecorderLimits {
    fn default() -> Self {
        RecorderLimits { max_key_bytes: 16 << 20, max_connections: 65_536 }
    }
}

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderStats {
    pub events: u64,
    /// New connections and denied packets that were recorded.
    pub allowed: u64,
    pub denied: u64,
    /// Those of them that the kernel only counted, without their key.
    pub other_allowed: u64,
    pub other_denied: u64,
    /// Flows for which the evaluation agreed with the kernel, or did not.
    pub agreements: u64,
    pub disagreements: u64,
    /// The last disagreement.
    pub last_disagreement: Option<String>,
    /// Keys without an identity of a known rule.
    pub unidentified: u64,
    /// Ended connections by outcome.
    pub established: u64,
    pub refused: u64,
    pub unanswered: u64,
    /// Connections whose opening is not known.
    pub unjoined: u64,
    /// Keys and connections that were not remembered because of the limits.
    pub forgotten_keys: u64,
    pub forgotten_connections: u64,
    /// Events that were lost, by the part that lost them.
    pub lost_openings: u64,
    pub lost_endings: u64,
    pub lost_receiver: u64,
    pub lost_reads: u64,
}

/// Turns events of the kernel into flows.
#[derive(Debug)]
pub struct FlowRecorder {
    limits: RecorderLimits,
    /// Connections that were opened before this time have counters from before.
    started: i64,
    keys: KeyTable,
    connections: ConnectionTable,
    stats: RecorderStats,
    last_sweep: i64,
    /// The revision at which waiting keys were last evaluated.
    settled_revision: u64,
    waiting: usize,
}

/// The fields of an event that concern a key of the kernel.
struct KeyFacts<'a> {
    tuple: FlowTuple,
    decision: &'a FlowDecision,
    connection: Option<ConnectionTupleRef<'a>>,
    path: Option<(KnownPlace, KnownPlace)>,
}

type ConnectionTupleRef<'a> = &'a tortie_plan::flow::ConnectionTuple;

impl FlowRecorder {
    /// Creates a recorder at a time in seconds since 1970.
    pub fn new(limits: RecorderLimits, now: i64) -> FlowRecorder {
        FlowRecorder {
            limits,
            started: now,
            keys: KeyTable::default(),
            connections: ConnectionTable::default(),
            stats: RecorderStats::default(),
            last_sweep: now,
            settled_revision: 0,
            waiting: 0,
        }
    }

    pub fn stats(&self) -> &RecorderStats {
        &self.stats
    }

    /// Returns the numbers of keys and of live connections that are remembered, and the estimated memory.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let bytes = self.keys.bytes() + self.connections.len() * size_of::<LiveConnection>() * 3;
        (self.keys.len(), self.connections.len(), bytes)
    }

    /// Adds the addresses that have to be looked up for an event: those of keys without a record. The second set is
    /// of destinations before DNAT.
    pub fn list_addresses(
        &self,
        event: &FlowEvent,
        objects: &mut BTreeSet<IpAddr>,
        services: &mut BTreeSet<IpAddr>,
    ) {
        let (tuple, decision, connection) = match event {
            FlowEvent::Opened(opening) | FlowEvent::Denied(opening) => {
                (opening.key.tuple, &opening.key.decision, Some(&opening.connection))
            }
            FlowEvent::Counted { key, .. } => (key.tuple, &key.decision, None),
            FlowEvent::Ended(ConnectionRecord { connection, .. }) => {
                services.extend(connection.original_destination.map(|(address, _)| address));
                return;
            }
            FlowEvent::Live(ConnectionRecord { connection, decision: Some(decision), .. }) => {
                (connection.flow, decision, Some(connection))
            }
            _ => return,
        };
        services.extend(
            connection.and_then(|connection| connection.original_destination).map(|(address, _)| address),
        );
        if self.keys.has(&tuple, decision) {
            return;
        }
        objects.extend([tuple.source, tuple.destination]);
    }

    /// Handles an event. Appends flows with its counters to `out`.
    pub fn handle(
        &mut self,
        event: &FlowEvent,
        view: &PolicyView<'_>,
        book: &AddressBook,
        now: i64,
        out: &mut Vec<Flow>,
    ) {
        self.stats.events += 1;
        match event {
            FlowEvent::Opened(opening) | FlowEvent::Denied(opening) => {
                self.open(opening, view, book, now, out)
            }
            FlowEvent::Counted { key, count, .. } => {
                let facts =
                    KeyFacts { tuple: key.tuple, decision: &key.decision, connection: None, path: None };
                let known = self.keys.find(&key.tuple, &key.decision);
                let credited = known.map_or(0, |entry| std::mem::take(&mut entry.credited));
                if let Some(entry) = self.keys.find(&key.tuple, &key.decision) {
                    entry.credited = credited.saturating_sub(*count);
                }
                self.count(&facts, count.saturating_sub(credited), view, book, now, out);
            }
            FlowEvent::Other { allowed, count } => {
                let counter =
                    if *allowed { &mut self.stats.other_allowed } else { &mut self.stats.other_denied };
                *counter += count;
                self.count_totals(*allowed, *count);
                out.push(other_flow(*allowed, count_added(*allowed, *count), now));
            }
            FlowEvent::Ended(record) => self.end(record, view, book, now, out),
            FlowEvent::Live(record) => self.follow(record, view, book, now, out),
            FlowEvent::LiveComplete { .. } => {
                for (connection, live) in self.connections.finish_round() {
                    let added = AddedCounters { completed: 1, ..AddedCounters::default() };
                    self.add_to_connection(&connection, live.key, added, now, out);
                }
            }
            FlowEvent::Lost { loss, events } => {
                let counter = match loss {
                    FlowLoss::Openings => &mut self.stats.lost_openings,
                    FlowLoss::Endings => &mut self.stats.lost_endings,
                    FlowLoss::Receiver => &mut self.stats.lost_receiver,
                    FlowLoss::Read => &mut self.stats.lost_reads,
                };
                *counter += events;
            }
        }
    }

    /// Decides about keys that wait for the policy that the kernel used, and forgets keys that are no longer used. To be
    /// called about once a second.
    pub fn tick(&mut self, view: &PolicyView<'_>, book: &AddressBook, now: i64, out: &mut Vec<Flow>) {
        if self.waiting > 0 {
            let is_new = view.revision != self.settled_revision;
            self.settled_revision = view.revision;
            for (tuple, id) in self.keys.waiting() {
                self.settle((tuple, id), is_new, view, book, now, out);
            }
        }
        if now >= self.last_sweep + SWEEP_SECONDS {
            self.last_sweep = now;
            self.keys.expire(now - KEY_LIFETIME_SECONDS);
        }
    }

    /// Updates the traces of all live connections after a change of policy. Appends a flow without counters for each that has
    /// changed, so that readers see the new pending verdict before the next report of the connection.
    pub fn reevaluate(&mut self, view: &PolicyView<'_>, now: i64, out: &mut Vec<Flow>) {
        for (tuple, id) in self.connections.list_keys() {
            let Some(before) = self.keys.find_id(&tuple, id).map(|entry| entry.records.clone()) else {
                continue;
            };
            self.refresh(&tuple, id, view);
            if let Some(entry) = self.keys.find_id(&tuple, id)
                && entry.records != before
            {
                emit(entry, &AddedCounters::default(), now, out);
            }
        }
    }

    /// Returns the addresses of keys that wait, whose records are made later.
    pub fn list_waiting_addresses(&self, objects: &mut BTreeSet<IpAddr>) {
        if self.waiting > 0 {
            objects
                .extend(self.keys.waiting().iter().flat_map(|(tuple, _)| [tuple.source, tuple.destination]));
        }
    }

    fn open(
        &mut self,
        opening: &FlowOpening,
        view: &PolicyView<'_>,
        book: &AddressBook,
        now: i64,
        out: &mut Vec<Flow>,
    ) {
        let path = opening.interfaces.as_ref().map(|interfaces| {
            let FlowInterfaces { input, output } = interfaces;
            (KnownPlace::new(input.as_deref()), KnownPlace::new(output.as_deref()))
        });
        let facts = KeyFacts {
            tuple: opening.key.tuple,
            decision: &opening.key.decision,
            connection: Some(&opening.connection),
            path,
        };
        self.count(&facts, 1, view, book, now, out);
        if let Some(entry) = self.keys.find(&opening.key.tuple, &opening.key.decision) {
            entry.credited += 1;
        }
    }

    /// Counts new connections or denied packets of a key.
    fn count(
        &mut self,
        facts: &KeyFacts<'_>,
        count: u64,
        view: &PolicyView<'_>,
        book: &AddressBook,
        now: i64,
        out: &mut Vec<Flow>,
    ) {
        let Some(id) = self.find_or_insert(facts, view, book, now) else {
            // The first packet is counted again with the next count of the kernel.
            if facts.connection.is_none() {
                self.count_totals(facts.decision.allowed, count);
                let allowed = facts.decision.allowed;
                out.push(other_flow(allowed, count_added(allowed, count), now));
            }
            return;
        };
        self.count_totals(facts.decision.allowed, count);
        self.refresh(&facts.tuple, id, view);
        let Some(entry) = self.keys.find_id(&facts.tuple, id) else { return };
        entry.seen = now;
        if entry.waiting_since.is_some() {
            entry.waiting += count;
            return;
        }
        if count > 0 {
            emit(entry, &count_added(entry.decision.allowed, count), now, out);
        }
    }

    fn count_totals(&mut self, allowed: bool, count: u64) {
        *(if allowed { &mut self.stats.allowed } else { &mut self.stats.denied }) += count;
    }

    /// Returns the key, which is added if it is new. Returns `None` if there is no room.
    fn find_or_insert(
        &mut self,
        facts: &KeyFacts<'_>,
        view: &PolicyView<'_>,
        book: &AddressBook,
        now: i64,
    ) -> Option<u64> {
        if let Some(entry) = self.keys.find(&facts.tuple, facts.decision) {
            if entry.path.is_none() {
                entry.path = facts.path.clone();
            }
            if entry.connection.is_none() {
                entry.connection = facts.connection.copied();
            }
            return Some(entry.id);
        }
        if self.keys.bytes() >= self.limits.max_key_bytes {
            self.stats.forgotten_keys += 1;
            return None;
        }
        let mut entry = KeyEntry::new(facts.decision.clone(), now);
        entry.connection = facts.connection.copied();
        entry.path = facts.path.clone();
        if !is_identified(facts.decision) {
            self.stats.unidentified += 1;
        }
        let evaluated = view.evaluate(&ask(&facts.tuple, &entry));
        if evaluated.agrees_with(facts.decision) {
            self.stats.agreements += 1;
            let hits = evaluated.explain(facts.decision, view.plan());
            let evaluated = EvaluatedFlow { hits, ..evaluated };
            entry.records = build_records(&facts.tuple, &entry, &evaluated, view, book);
            entry.revision = view.revision;
        } else {
            entry.waiting_since = Some(now);
            self.waiting += 1;
        }
        Some(self.keys.insert(facts.tuple, entry))
    }

    /// Evaluates a waiting key again if policy has changed. After the timeout, the record has the rule of the kernel alone.
    fn settle(
        &mut self,
        (tuple, id): (FlowTuple, u64),
        is_new: bool,
        view: &PolicyView<'_>,
        book: &AddressBook,
        now: i64,
        out: &mut Vec<Flow>,
    ) {
        let Some(entry) = self.keys.find_id(&tuple, id) else { return };
        let is_late = entry.waiting_since.is_some_and(|since| now >= since + SETTLE_SECONDS);
        if !is_new && !is_late {
            return;
        }
        let evaluated = view.evaluate(&ask(&tuple, entry));
        let agrees = evaluated.agrees_with(&entry.decision);
        if !agrees && !is_late {
            return;
        }
        let records = if agrees {
            self.stats.agreements += 1;
            let hits = evaluated.explain(&entry.decision, view.plan());
            build_records(&tuple, entry, &EvaluatedFlow { hits, ..evaluated }, view, book)
        } else {
            self.stats.disagreements += 1;
            self.stats.last_disagreement = Some(describe_disagreement(&tuple, entry, &evaluated));
            let hits = SideHits::of_kernel(&entry.decision, view.plan());
            build_records(&tuple, entry, &EvaluatedFlow { hits, ..evaluated }, view, book)
        };
        self.waiting -= 1;
        self.keys.set_records(&tuple, id, records, view.revision);
        let Some(entry) = self.keys.find_id(&tuple, id) else { return };
        entry.waiting_since = None;
        let count = std::mem::take(&mut entry.waiting);
        if count > 0 {
            emit(entry, &count_added(entry.decision.allowed, count), now, out);
        }
    }

    /// Updates the traces of a key if policy has changed since they were made. The ends stay as they were at the opening.
    /// Existing connections keep their verdict, so enforced hits are replaced only if they lead to the same decision.
    fn refresh(&mut self, tuple: &FlowTuple, id: u64, view: &PolicyView<'_>) {
        let Some(entry) = self.keys.find_id(tuple, id) else { return };
        if entry.revision == view.revision || entry.waiting_since.is_some() {
            return;
        }
        let question = ask(tuple, entry);
        let mut evaluated = view.evaluate(&question);
        let agrees = evaluated.agrees_with(&entry.decision);
        evaluated.hits = evaluated.explain(&entry.decision, view.plan());
        let pending = view.evaluate_pending(&question, &evaluated.hits);
        let mut records = entry.records.clone();
        for (record, side) in records.iter_mut().zip(SIDES) {
            let Some(known) = record else { continue };
            let old = known.key.policies.clone().unwrap_or_default();
            let enforced: &[PolicyHit] =
                if agrees { evaluated.hits.of(side) } else { &old.enforced_policies };
            let policies = build_trace(enforced, pending.of(side));
            if policies != old {
                let mut template = (**known).clone();
                template.key.policies = Some(policies);
                *record = Some(Arc::new(template));
            }
        }
        self.keys.set_records(tuple, id, records, view.revision);
    }

    /// Names the service of a key if a connection was opened to one and the record names none: some kernels do not report the
    /// destination before DNAT when a connection is opened.
    fn name_service(&mut self, connection: ConnectionTupleRef<'_>, id: u64, book: &AddressBook) {
        let service = FlowService::of_connection(connection, book);
        let Some(entry) = self.keys.find_id(&connection.flow, id) else { return };
        let is_named = |record: &Arc<FlowTemplate>| record.key.dest_service_name != NO_NAME;
        if service.name == NO_NAME || entry.records.iter().flatten().any(is_named) {
            return;
        }
        let (mut records, revision) = (entry.records.clone(), entry.revision);
        for record in records.iter_mut().flatten() {
            let mut template = (**record).clone();
            template.key.dest_service_name.clone_from(&service.name);
            template.key.dest_service_namespace.clone_from(&service.namespace);
            template.key.dest_service_port = service.port.into();
            *record = Arc::new(template);
        }
        self.keys.set_records(&connection.flow, id, records, revision);
    }

    /// Adds the packets and bytes of a live connection since its last report.
    fn follow(
        &mut self,
        record: &ConnectionRecord,
        view: &PolicyView<'_>,
        book: &AddressBook,
        now: i64,
        out: &mut Vec<Flow>,
    ) {
        let connection = record.connection;
        let round = self.connections.round();
        if let Some(live) = self.connections.get_mut(&connection) {
            let sent = subtract(record.sent, std::mem::replace(&mut live.sent, record.sent));
            let received = subtract(record.received, std::mem::replace(&mut live.received, record.received));
            live.round = round;
            let key = live.key;
            if let Some(id) = key {
                self.refresh(&connection.flow, id, view);
                self.name_service(&connection, id, book);
            }
            let added = AddedCounters { live: 1, sent, received, ..AddedCounters::default() };
            return self.add_to_connection(&connection, key, added, now, out);
        }
        if self.connections.len() >= self.limits.max_connections {
            // Its counters are recorded when it ends.
            self.stats.forgotten_connections += 1;
            return;
        }
        let key = match &record.decision {
            Some(decision) => {
                let facts =
                    KeyFacts { tuple: connection.flow, decision, connection: Some(&connection), path: None };
                self.find_or_insert(&facts, view, book, now)
            }
            None => self.keys.find_connection(&connection).map(|entry| entry.id),
        };
        let live = LiveConnection { key, sent: record.sent, received: record.received, round };
        self.connections.insert(connection, live);
        let mut added = AddedCounters { live: 1, ..AddedCounters::default() };
        if !self.is_older(record) {
            (added.sent, added.received) = (record.sent, record.received);
        }
        if let Some(id) = key {
            self.refresh(&connection.flow, id, view);
            self.name_service(&connection, id, book);
        }
        self.add_to_connection(&connection, key, added, now, out);
    }

    /// Adds the rest of a connection that has ended.
    fn end(
        &mut self,
        record: &ConnectionRecord,
        view: &PolicyView<'_>,
        book: &AddressBook,
        now: i64,
        out: &mut Vec<Flow>,
    ) {
        match record.outcome {
            Some(ConnectionOutcome::Established) => self.stats.established += 1,
            Some(ConnectionOutcome::Refused) => self.stats.refused += 1,
            Some(ConnectionOutcome::Unanswered) => self.stats.unanswered += 1,
            None => {}
        }
        let connection = record.connection;
        let mut added = AddedCounters { completed: 1, ..AddedCounters::default() };
        let live = self.connections.remove(&connection);
        match live {
            Some(live) => {
                added.sent = subtract(record.sent, live.sent);
                added.received = subtract(record.received, live.received);
            }
            None if self.is_older(record) => {}
            None => (added.sent, added.received) = (record.sent, record.received),
        }
        let known = live.and_then(|live| live.key);
        let key = known.or_else(|| self.keys.find_connection(&connection).map(|entry| entry.id));
        if let Some(id) = key {
            self.refresh(&connection.flow, id, view);
            self.name_service(&connection, id, book);
        }
        self.add_to_connection(&connection, key, added, now, out);
    }

    /// Returns whether a connection has counters from before the start of the recorder.
    fn is_older(&self, record: &ConnectionRecord) -> bool {
        let begun = |seconds: u64| i64::try_from(seconds).is_ok_and(|seconds| seconds < self.started);
        record
            .started
            .is_some_and(|started| begun(started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()))
    }

    fn add_to_connection(
        &mut self,
        connection: ConnectionTupleRef<'_>,
        key: Option<u64>,
        added: AddedCounters,
        now: i64,
        out: &mut Vec<Flow>,
    ) {
        let entry = key.and_then(|id| self.keys.find_id(&connection.flow, id));
        match entry {
            Some(entry) if entry.waiting_since.is_none() => {
                entry.seen = now;
                emit(entry, &added, now, out);
            }
            _ => {
                self.stats.unjoined += 1;
                out.push(other_flow(true, added, now));
            }
        }
    }
}

/// Returns the growth of counters. If they have decreased, they are those of another connection with the same tuple.
fn subtract(new: FlowCounters, old: FlowCounters) -> FlowCounters {
    if new.packets < old.packets || new.bytes < old.bytes {
        return new;
    }
    FlowCounters { packets: new.packets - old.packets, bytes: new.bytes - old.bytes }
}
