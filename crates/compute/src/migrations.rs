//! Virtual machines on their way from one node to another: what follows for the endpoints of this node.
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
//! The end of a migration counts as an announcement that was missed. An endpoint that is gone is nowhere in the table.

use std::collections::BTreeMap;
use tortie_model::Key;
use tortie_model::kinds::{
    LiveMigration, LiveMigrationSource, LiveMigrationTarget, WorkloadEndpoint, WorkloadEndpointIdentifier,
};
use tortie_model::selector::Selector;
use tortie_plan::{Migration, WorkloadId};

use crate::workloads::workload_id;

/// What the workloads of this orchestrator are called is unique in the cluster.
const KUBERNETES: &str = "k8s";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    #[default]
    None,
    Source,
    Target,
}

/// One end of a migration.
#[derive(Debug)]
enum End {
    Workload { host: String, orchestrator: String, workload: String },
    Endpoint { host: String, id: WorkloadId },
    Selected(Selector),
}

#[derive(Debug)]
struct Ends {
    source: Option<End>,
    target: Option<End>,
}

#[derive(Debug, Default)]
pub(crate) struct Migrations {
    known: BTreeMap<Key, Ends>,
    /// Endpoints of this node that have to do with one, or had until just now.
    endpoints: BTreeMap<WorkloadId, (Role, Migration)>,
}

impl Migrations {
    /// Every endpoint is to be assessed anew.
    pub fn put(&mut self, key: &Key, migration: &LiveMigration) -> Result<(), String> {
        let source = migration.spec.source.as_ref().and_then(source_end);
        let target = migration.spec.target.as_ref().map(target_end).transpose()?.flatten();
        self.known.insert(key.clone(), Ends { source, target });
        Ok(())
    }

    /// Every endpoint is to be assessed anew.
    pub fn remove(&mut self, key: &Key) {
        self.known.remove(key);
    }

    /// Whether an endpoint of this node is somewhere else in a migration than before.
    pub fn assess(&mut self, endpoint: &WorkloadEndpoint) -> bool {
        // Nearly always.
        if self.known.is_empty() && self.endpoints.is_empty() {
            return false;
        }
        let id = workload_id(endpoint);
        let role = self.role(&id, endpoint);
        let (before, state) = self.endpoints.get(&id).copied().unwrap_or_default();
        let new = match (role, state) {
            _ if role == before => state,
            (Role::Target, Migration::None) => Migration::Arriving,
            (Role::None, Migration::Arriving | Migration::Arrived) => Migration::Settling,
            (Role::Source, _) => Migration::None,
            (Role::Target | Role::None, _) => state,
        };
        self.note(id, role, new);
        new != state
    }

    /// Where an endpoint is, as it was last assessed.
    pub fn of(&self, id: &WorkloadId) -> Migration {
        self.endpoints.get(id).map(|(_, state)| *state).unwrap_or_default()
    }

    /// The machine runs here. Whether that is news.
    pub fn announced(&mut self, id: &WorkloadId) -> bool {
        self.advance(id, Migration::Arriving, Migration::Arrived)
    }

    /// Routes have converged everywhere. Whether that is news.
    pub fn settled(&mut self, id: &WorkloadId) -> bool {
        self.advance(id, Migration::Settling, Migration::None)
    }

    /// The endpoint is gone.
    pub fn forget(&mut self, id: &WorkloadId) {
        self.endpoints.remove(id);
    }

    fn advance(&mut self, id: &WorkloadId, from: Migration, to: Migration) -> bool {
        match self.endpoints.get(id).copied() {
            Some((role, state)) if state == from => self.note(id.clone(), role, to),
            _ => return false,
        }
        true
    }

    fn note(&mut self, id: WorkloadId, role: Role, state: Migration) {
        match (role, state) {
            (Role::None, Migration::None) => self.endpoints.remove(&id),
            known => self.endpoints.insert(id, known),
        };
    }

    /// Who is the target of one migration and the source of the next is still the target.
    fn role(&self, id: &WorkloadId, endpoint: &WorkloadEndpoint) -> Role {
        let is = |end: &Option<End>| end.as_ref().is_some_and(|end| end.is(id, endpoint));
        if self.known.values().any(|ends| is(&ends.target)) {
            Role::Target
        } else if self.known.values().any(|ends| is(&ends.source)) {
            Role::Source
        } else {
            Role::None
        }
    }
}

impl End {
    fn is(&self, own: &WorkloadId, endpoint: &WorkloadEndpoint) -> bool {
        let here = |host: &str| own.orchestrator == KUBERNETES || endpoint.spec.node == host;
        match self {
            End::Workload { host, orchestrator, workload } => {
                own.orchestrator == *orchestrator && own.workload == *workload && here(host)
            }
            End::Endpoint { host, id } => own == id && here(host),
            End::Selected(selector) => selector.matches(&endpoint.metadata.labels),
        }
    }
}

fn source_end(source: &LiveMigrationSource) -> Option<End> {
    let workload = source.workload.as_ref().map(|workload| End::Workload {
        host: workload.hostname.clone(),
        orchestrator: workload.orchestrator_id.clone(),
        workload: workload.workload_id.clone(),
    });
    workload.or_else(|| source.workload_endpoint.as_ref().map(endpoint_end))
}

fn target_end(target: &LiveMigrationTarget) -> Result<Option<End>, String> {
    match &target.selector {
        Some(selector) => {
            let selector = Selector::parse(selector).map_err(|error| format!("target.selector: {error}"))?;
            Ok(Some(End::Selected(selector)))
        }
        None => Ok(target.workload_endpoint.as_ref().map(endpoint_end)),
    }
}

fn endpoint_end(endpoint: &WorkloadEndpointIdentifier) -> End {
    let id = WorkloadId {
        orchestrator: endpoint.orchestrator_id.clone(),
        workload: endpoint.workload_id.clone(),
        endpoint: endpoint.endpoint_id.clone(),
    };
    End::Endpoint { host: endpoint.hostname.clone(), id }
}
