//! Resyncs that are under way.

use super::felix::adjust_settings;
use super::{PhaseReport, ResyncReport, ResyncScope};
use crate::OpenStackError;
use crate::metrics::{OpenStackMetrics, increment};
use crate::neutron::PortRecord;
use crate::slot::{SlotContent, SlotKey, SlotObject};
use crate::writer::{SlotOutcome, SlotWriter, StoredSlot};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tortie_model::names::split_workload_endpoint_name;
use tortie_model::{KeyRange, Kind, StoreKey};
use tortie_store::StoreClient;

/// Maximum number of resyncs at the same time. A further one replaces the oldest.
pub const MAX_SESSIONS: usize = 4;
/// Maximum number of problems that a report lists.
const MAX_PROBLEMS: usize = 100;
/// A full resync that would delete more entries than this, and more than half of all, deletes none without force.
const MIN_MASS_DELETION: usize = 20;
const POLICY_PREFIX: &str = "ossg.default.";

/// A part of a resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    Subnets,
    Policy,
    Endpoints,
}

#[derive(Debug)]
pub struct ResyncSession {
    id: u64,
    report: ResyncReport,
    started: Instant,
    phase: Option<OpenPhase>,
}

#[derive(Debug)]
struct OpenPhase {
    kind: PhaseKind,
    started: Instant,
    report: PhaseReport,
    /// Entries that no object has demanded yet.
    stored: BTreeMap<StoreKey, StoredSlot>,
    /// Ids of objects that could not be translated.
    kept: BTreeSet<String>,
    verify: PhaseVerification,
}

/// Objects that the driver reads again after a phase, because they may have changed between the two reads.
#[derive(Debug, Default, Serialize)]
pub struct PhaseVerification {
    /// Ports whose endpoints were deleted, or that another client wrote.
    verify: BTreeSet<String>,
    /// Slots that were empty. Their objects may have been deleted before the slots were filled, when there was nothing to
    /// delete in the datastore.
    created: Vec<SlotKey>,
}

/// All resyncs under way.
#[derive(Debug, Default)]
pub struct ResyncSessions {
    inner: Mutex<SessionTable>,
}

#[derive(Debug, Default)]
struct SessionTable {
    last_id: u64,
    sessions: BTreeMap<u64, Arc<tokio::sync::Mutex<ResyncSession>>>,
}

impl ResyncSessions {
    /// Starts a resync and returns its id.
    pub fn start(&self, scope: ResyncScope, expand_ms: u64, metrics: &OpenStackMetrics) -> u64 {
        let mut table = self.lock();
        table.last_id += 1;
        let id = table.last_id;
        while table.sessions.len() >= MAX_SESSIONS {
            table.sessions.pop_first();
            increment(&metrics.replaced_resyncs);
        }
        let expand = PhaseReport { total_ms: expand_ms, ..PhaseReport::default() };
        let report = ResyncReport {
            scope,
            phases: BTreeMap::from([("expand".to_owned(), expand)]),
            started_at: format!("{:.0}", Timestamp::now()),
            ..ResyncReport::default()
        };
        let session = ResyncSession { id, report, started: Instant::now(), phase: None };
        table.sessions.insert(id, Arc::new(tokio::sync::Mutex::new(session)));
        id
    }

    pub fn find(&self, id: u64) -> Result<Arc<tokio::sync::Mutex<ResyncSession>>, OpenStackError> {
        self.lock().sessions.get(&id).cloned().ok_or(OpenStackError::UnknownResync(id))
    }

    pub fn remove(&self, id: u64) {
        self.lock().sessions.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResyncSession {
    /// Reads the entries of a phase. The driver must not read Neutron's objects before this returns.
    pub async fn begin(&mut self, kind: PhaseKind, writer: &SlotWriter) -> Result<(), OpenStackError> {
        let started = Instant::now();
        let mut stored = BTreeMap::new();
        for range in kind.ranges(writer) {
            for (key, slot) in list(&writer.client, &range).await? {
                if self.is_in_scope(kind, &key) {
                    stored.insert(key, slot);
                }
            }
        }
        let report = PhaseReport {
            etcd_read_ms: milliseconds(started),
            etcd_items: stored.len() as u64,
            ..PhaseReport::default()
        };
        let verify = PhaseVerification::default();
        self.phase = Some(OpenPhase { kind, started, report, stored, kept: BTreeSet::new(), verify });
        Ok(())
    }

    fn is_in_scope(&self, kind: PhaseKind, key: &StoreKey) -> bool {
        let scope = &self.report.scope;
        let Some(id) = object_id(key) else { return false };
        let ids = match kind {
            PhaseKind::Subnets => &scope.subnets,
            PhaseKind::Policy => &scope.security_groups,
            PhaseKind::Endpoints => &scope.ports,
        };
        scope.full || ids.contains(&id)
    }

    /// Compares a page of Neutron's objects with the entries and writes differences. An object that cannot be read or
    /// translated is listed in the report and keeps its entries.
    pub async fn add_objects(
        &mut self,
        objects: Vec<Value>,
        writer: &SlotWriter,
    ) -> Result<(), OpenStackError> {
        let phase = self.phase.as_mut().ok_or(OpenStackError::NoPhase(self.id))?;
        for value in objects {
            phase.report.neutron_items += 1;
            let id = read_id(&value);
            let problem = match serde_json::from_value::<SlotObject>(value) {
                Ok(object) => phase.compare(&object, writer).await?,
                Err(error) => Some(error.to_string()),
            };
            let Some(problem) = problem else { continue };
            tracing::warn!(
                id,
                problem,
                "resync: cannot translate an object of Neutron; the datastore keeps its entry"
            );
            phase.report.invalid += 1;
            increment(&writer.metrics.invalid);
            if self.report.problems.len() < MAX_PROBLEMS {
                self.report.problems.push(format!("{id}: {problem}"));
            }
            phase.kept.insert(id);
        }
        Ok(())
    }

    /// Deletes the entries that no object demands and ends the phase. Returns the objects to read again.
    pub async fn end(
        &mut self,
        neutron_read_ms: u64,
        force: bool,
        writer: &SlotWriter,
    ) -> Result<PhaseVerification, OpenStackError> {
        let mut phase = self.phase.take().ok_or(OpenStackError::NoPhase(self.id))?;
        let kept = std::mem::take(&mut phase.kept);
        phase.stored.retain(|key, _| object_id(key).is_none_or(|id| !kept.contains(&id)));
        let extra = phase.stored.len();
        let is_mass = extra >= MIN_MASS_DELETION && extra as u64 * 2 > phase.report.etcd_items;
        if self.report.scope.full && is_mass && !force {
            self.report.error.get_or_insert(format!(
                "Neutron has no object for {extra} of {} entries of phase {}: nothing was deleted; check that Neutron's \
                 database is the right one and complete, then repeat with --force",
                phase.report.etcd_items,
                phase.kind.name()
            ));
        } else {
            phase.delete_extra(writer).await?;
        }
        phase.report.neutron_read_ms = neutron_read_ms;
        phase.report.total_ms = milliseconds(phase.started);
        self.report.phases.insert(phase.kind.name().to_owned(), phase.report);
        Ok(phase.verify)
    }

    /// Completes the report. A full resync also adjusts the settings of the cluster.
    pub async fn finish(&mut self, error: Option<String>, writer: &SlotWriter) -> ResyncReport {
        if let Some(error) = error {
            self.report.error.get_or_insert(error);
        }
        if self.report.scope.full && self.report.error.is_none() {
            let started = Instant::now();
            match adjust_settings(&writer.client).await {
                Ok(updated) => {
                    let report =
                        PhaseReport { total_ms: milliseconds(started), updated, ..PhaseReport::default() };
                    self.report.phases.insert("felix_config".to_owned(), report);
                }
                Err(error) => self.report.error = Some(error.to_string()),
            }
        }
        self.report.ok = self.report.error.is_none();
        self.report.finished_at = format!("{:.0}", Timestamp::now());
        self.report.total_ms = milliseconds(self.started);
        increment(if self.report.ok { &writer.metrics.resyncs } else { &writer.metrics.failed_resyncs });
        self.report.clone()
    }
}

impl OpenPhase {
    /// Makes the slots of an object correct. Returns the reason if it cannot be translated.
    async fn compare(
        &mut self,
        object: &SlotObject,
        writer: &SlotWriter,
    ) -> Result<Option<String>, OpenStackError> {
        let mut problem = None;
        for slot in list_slots(object) {
            let started = Instant::now();
            let translation = match slot.translate(object, &writer.region) {
                Ok(translation) => translation,
                Err(error) => {
                    problem = Some(error.to_string());
                    continue;
                }
            };
            let Some(key) = slot.to_store_key(&writer.region) else { continue };
            if matches!(translation.content, SlotContent::Absent) {
                continue;
            }
            writer
                .metrics
                .rejected_rules
                .fetch_add(translation.warnings.len() as u64, std::sync::atomic::Ordering::Relaxed);
            let stored = self.stored.remove(&key).unwrap_or(StoredSlot::Absent);
            let outcome = writer.replace(&key, &stored, &translation.content).await?;
            self.count(&key, &outcome, started);
            if outcome == SlotOutcome::Created {
                self.verify.created.push(slot);
            }
        }
        Ok(problem)
    }

    async fn delete_extra(&mut self, writer: &SlotWriter) -> Result<(), OpenStackError> {
        for (key, stored) in std::mem::take(&mut self.stored) {
            let started = Instant::now();
            let outcome = writer.replace(&key, &stored, &SlotContent::Absent).await?;
            self.count(&key, &outcome, started);
        }
        Ok(())
    }

    fn count(&mut self, key: &StoreKey, outcome: &SlotOutcome, started: Instant) {
        let report = &mut self.report;
        let elapsed = milliseconds(started);
        match outcome {
            SlotOutcome::Correct => report.correct += 1,
            SlotOutcome::Created => report.created += 1,
            SlotOutcome::Updated => report.updated += 1,
            SlotOutcome::Deleted => report.deleted += 1,
            SlotOutcome::Conflict => report.conflicts += 1,
            SlotOutcome::Invalid(_) => report.invalid += 1,
        }
        if *outcome == SlotOutcome::Created {
            report.create_ms += elapsed;
        } else {
            report.compare_ms += elapsed;
        }
        let may_be_outdated = matches!(outcome, SlotOutcome::Deleted | SlotOutcome::Conflict);
        if self.kind == PhaseKind::Endpoints && may_be_outdated {
            self.verify.verify.extend(object_id(key));
        }
    }
}

impl PhaseKind {
    fn name(self) -> &'static str {
        match self {
            PhaseKind::Subnets => "subnets",
            PhaseKind::Policy => "policy",
            PhaseKind::Endpoints => "endpoints",
        }
    }

    fn ranges(self, writer: &SlotWriter) -> Vec<KeyRange> {
        let resources = |kind, prefix: &str| KeyRange::Resources {
            kind,
            namespace: Some(writer.region.namespace()),
            name_prefix: prefix.to_owned(),
        };
        match self {
            PhaseKind::Subnets => {
                vec![KeyRange::DhcpSubnets { region: Some(writer.region.name().to_owned()) }]
            }
            PhaseKind::Policy => vec![resources(Kind::NetworkPolicy, POLICY_PREFIX)],
            PhaseKind::Endpoints => {
                vec![resources(Kind::LiveMigration, ""), resources(Kind::WorkloadEndpoint, "")]
            }
        }
    }
}

/// Lists the entries of a range, unreadable ones included.
async fn list(client: &StoreClient, range: &KeyRange) -> Result<Vec<(StoreKey, StoredSlot)>, OpenStackError> {
    let listing = client.list(range).await?;
    let has_unreadable = !listing.unreadable.is_empty();
    let mut slots: BTreeMap<StoreKey, StoredSlot> = listing
        .entries
        .into_iter()
        .map(|entry| (entry.key.clone(), StoredSlot::Entry(Box::new(entry))))
        .collect();
    if has_unreadable {
        for key in client.list_keys(range).await? {
            slots.entry(key).or_insert(StoredSlot::Unreadable);
        }
    }
    Ok(slots.into_iter().collect())
}

/// Returns the id of the object to which an entry belongs; `None` for the entries of other programs.
fn object_id(key: &StoreKey) -> Option<String> {
    match key {
        StoreKey::DhcpSubnet { id, .. } => Some(id.clone()),
        StoreKey::Resource { kind: Kind::NetworkPolicy, name, .. } => {
            name.strip_prefix(POLICY_PREFIX).map(str::to_owned)
        }
        StoreKey::Resource { name, .. } => {
            let [_, orchestrator, _, port] = split_workload_endpoint_name(name)?;
            (orchestrator == crate::names::ORCHESTRATOR).then_some(port)
        }
        _ => None,
    }
}

/// Returns the slots that an object may demand, in the order in which they are written.
fn list_slots(object: &SlotObject) -> Vec<SlotKey> {
    let mut slots = Vec::new();
    if let Some(record) = &object.port {
        slots.extend(list_port_slots(record));
    }
    if let Some(group) = &object.security_group {
        slots.push(SlotKey::Policy { security_group_id: group.id.clone() });
    }
    if let Some(subnet) = &object.subnet {
        slots.push(SlotKey::Subnet { subnet_id: subnet.id.clone() });
    }
    slots
}

fn list_port_slots(record: &PortRecord) -> Vec<SlotKey> {
    let port = &record.port;
    let (device_id, port_id) = (port.device_id.clone(), port.id.clone());
    let destination = port.migrating_to().filter(|host| *host != port.host);
    let migration = destination.map(|host| SlotKey::Migration {
        host: host.to_owned(),
        device_id: device_id.clone(),
        port_id: port_id.clone(),
    });
    let hosts = destination.into_iter().chain([port.host.as_str()]);
    let endpoints = hosts.map(|host| SlotKey::Endpoint {
        host: host.to_owned(),
        device_id: device_id.clone(),
        port_id: port_id.clone(),
    });
    migration.into_iter().chain(endpoints).collect()
}

/// Returns the id of an object that may be malformed.
fn read_id(value: &Value) -> String {
    let candidates = ["/port/port/id", "/security_group/id", "/subnet/id"];
    let id = candidates.iter().find_map(|path| value.pointer(path).and_then(Value::as_str));
    id.unwrap_or_default().to_owned()
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_sessions_replace_the_oldest() {
        let sessions = ResyncSessions::default();
        let metrics = OpenStackMetrics::default();
        let ids: Vec<u64> =
            (0..=MAX_SESSIONS).map(|_| sessions.start(ResyncScope::default(), 0, &metrics)).collect();
        assert!(sessions.find(ids[0]).is_err());
        assert!(ids[1..].iter().all(|id| sessions.find(*id).is_ok()));
        assert_eq!(metrics.replaced_resyncs.load(std::sync::atomic::Ordering::Relaxed), 1);
        sessions.remove(ids[1]);
        let error = sessions.find(ids[1]).unwrap_err().to_string();
        assert!(error.contains("does not exist"), "{error}");
    }

    #[test]
    fn entries_belong_to_objects_by_name() {
        let endpoint = |name: &str| object_id(&StoreKey::resource(Kind::WorkloadEndpoint, "openstack", name));
        assert_eq!(endpoint("cmp--1-openstack-d0--aa-p1--bb").as_deref(), Some("p1-bb"));
        assert_eq!(endpoint("n1-k8s-web-eth0"), None);
        let policy = |name: &str| object_id(&StoreKey::resource(Kind::NetworkPolicy, "openstack", name));
        assert_eq!(policy("ossg.default.sg1").as_deref(), Some("sg1"));
        assert_eq!(policy("default.web"), None);
    }
}
