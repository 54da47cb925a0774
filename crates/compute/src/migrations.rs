//! Live migrations of virtual machines between nodes: the migration state of the endpoints of this node. In the table,
//! columns are states, rows are events, and cells are the next states.
//!
//! ```text
//!              None       Arriving   Arrived    Settling
//! target       Arriving
//! announced               Arrived
//! no role                 Settling   Settling
//! settled                                       None
//! source                  None       None       None
//! ```
//!
//! If a migration ends before the announcement of the virtual machine, the announcement is assumed to be lost. Deleted
//! endpoints have no state.

use std::collections::BTreeMap;
use tortie_model::StoreKey;
use tortie_model::kinds::{
    LiveMigration, LiveMigrationSource, LiveMigrationTarget, WorkloadEndpoint, WorkloadEndpointIdentifier,
};
use tortie_model::selector::Selector;
use tortie_plan::{MigrationState, WorkloadId};

use crate::conversion_error::ConversionError;
use crate::workloads::workload_id;

/// The orchestrator whose workload IDs are unique in the cluster.
const KUBERNETES_ORCHESTRATOR: &str = "k8s";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MigrationRole {
    #[default]
    None,
    Source,
    Target,
}

/// The source or the target of a migration.
#[derive(Debug)]
enum MigrationEnd {
    Workload { host: String, orchestrator: String, workload: String },
    Endpoint { host: String, id: WorkloadId },
    Selected(Selector),
}

#[derive(Debug)]
struct MigrationEnds {
    source: Option<MigrationEnd>,
    target: Option<MigrationEnd>,
}

#[derive(Debug, Default)]
pub(crate) struct LiveMigrations {
    known: BTreeMap<StoreKey, MigrationEnds>,
    /// Endpoints of this node that take part in a migration, or whose routes have not converged after one.
    endpoints: BTreeMap<WorkloadId, (MigrationRole, MigrationState)>,
}

impl LiveMigrations {
    /// Adds or replaces a migration. The caller must then assess every endpoint again.
    pub fn put(&mut self, key: &StoreKey, migration: &LiveMigration) -> Result<(), ConversionError> {
        let source = migration.spec.source.as_ref().and_then(find_source_end);
        let target = migration.spec.target.as_ref().map(find_target_end).transpose()?.flatten();
        self.known.insert(key.clone(), MigrationEnds { source, target });
        Ok(())
    }

    /// Removes a migration. The caller must then assess every endpoint again.
    pub fn remove(&mut self, key: &StoreKey) {
        self.known.remove(key);
    }

    /// Updates the migration state of an endpoint of this node. Returns whether it changed.
    pub fn assess(&mut self, endpoint: &WorkloadEndpoint) -> bool {
        // Return early in the common case without migrations.
        if self.known.is_empty() && self.endpoints.is_empty() {
            return false;
        }
        let id = workload_id(endpoint);
        let role = self.role(&id, endpoint);
        let (before, state) = self.endpoints.get(&id).copied().unwrap_or_default();
        let new = match (role, state) {
            _ if role == before => state,
            (MigrationRole::Target, MigrationState::None) => MigrationState::Arriving,
            (MigrationRole::None, MigrationState::Arriving | MigrationState::Arrived) => {
                MigrationState::Settling
            }
            (MigrationRole::Source, _) => MigrationState::None,
            (MigrationRole::Target | MigrationRole::None, _) => state,
        };
        self.set_state(id, role, new);
        new != state
    }

    /// Returns the migration state of an endpoint as of its last assessment.
    pub fn state(&self, id: &WorkloadId) -> MigrationState {
        self.endpoints.get(id).map(|(_, state)| *state).unwrap_or_default()
    }

    /// Records that the virtual machine has announced that it runs on this node. Returns whether the state changed.
    pub fn record_announcement(&mut self, id: &WorkloadId) -> bool {
        self.advance(id, MigrationState::Arriving, MigrationState::Arrived)
    }

    /// Records that routes have converged on all nodes. Returns whether the state changed.
    pub fn record_convergence(&mut self, id: &WorkloadId) -> bool {
        self.advance(id, MigrationState::Settling, MigrationState::None)
    }

    /// Removes an endpoint that was deleted.
    pub fn remove_endpoint(&mut self, id: &WorkloadId) {
        self.endpoints.remove(id);
    }

    fn advance(&mut self, id: &WorkloadId, from: MigrationState, to: MigrationState) -> bool {
        match self.endpoints.get(id).copied() {
            Some((role, state)) if state == from => self.set_state(id.clone(), role, to),
            _ => return false,
        }
        true
    }

    fn set_state(&mut self, id: WorkloadId, role: MigrationRole, state: MigrationState) {
        match (role, state) {
            (MigrationRole::None, MigrationState::None) => self.endpoints.remove(&id),
            known => self.endpoints.insert(id, known),
        };
    }

    /// Returns the role of an endpoint. An endpoint that is the target of one migration and the source of another is a
    /// target.
    fn role(&self, id: &WorkloadId, endpoint: &WorkloadEndpoint) -> MigrationRole {
        let mut targets = self.known.values().filter_map(|ends| ends.target.as_ref());
        let mut sources = self.known.values().filter_map(|ends| ends.source.as_ref());
        if targets.any(|end| end.matches(id, endpoint)) {
            MigrationRole::Target
        } else if sources.any(|end| end.matches(id, endpoint)) {
            MigrationRole::Source
        } else {
            MigrationRole::None
        }
    }
}

impl MigrationEnd {
    fn matches(&self, own: &WorkloadId, endpoint: &WorkloadEndpoint) -> bool {
        let (host, is_same) = match self {
            MigrationEnd::Workload { host, orchestrator, workload } => {
                (host, own.orchestrator == *orchestrator && own.workload == *workload)
            }
            MigrationEnd::Endpoint { host, id } => (host, own == id),
            MigrationEnd::Selected(selector) => return selector.matches(&endpoint.metadata.labels),
        };
        is_same && (own.orchestrator == KUBERNETES_ORCHESTRATOR || endpoint.spec.node == *host)
    }
}

fn find_source_end(source: &LiveMigrationSource) -> Option<MigrationEnd> {
    let workload = source.workload.as_ref().map(|workload| MigrationEnd::Workload {
        host: workload.hostname.clone(),
        orchestrator: workload.orchestrator_id.clone(),
        workload: workload.workload_id.clone(),
    });
    workload.or_else(|| source.workload_endpoint.as_ref().map(read_endpoint_end))
}

fn find_target_end(target: &LiveMigrationTarget) -> Result<Option<MigrationEnd>, ConversionError> {
    let Some(selector) = &target.selector else {
        return Ok(target.workload_endpoint.as_ref().map(read_endpoint_end));
    };
    match Selector::parse(selector) {
        Ok(selector) => Ok(Some(MigrationEnd::Selected(selector))),
        Err(error) => Err(ConversionError::new("target.selector", selector, error.into())),
    }
}

fn read_endpoint_end(endpoint: &WorkloadEndpointIdentifier) -> MigrationEnd {
    let id = WorkloadId {
        orchestrator: endpoint.orchestrator_id.clone(),
        workload: endpoint.workload_id.clone(),
        endpoint: endpoint.endpoint_id.clone(),
    };
    MigrationEnd::Endpoint { host: endpoint.hostname.clone(), id }
}
