//! Migrates a cluster's objects from crd.projectcalico.org/v1 to projectcalico.org/v3 when the user creates a
//! DatastoreMigration.
//!
//! [`choose_next_step`] derives the next step from the phase and the existing objects, without I/O, so a new leader continues
//! where the previous one stopped. During the migration the datastore is locked for nodes (`datastoreReady: false`),
//! and pods keep their network.

mod copy;

use copy::ObjectCopy;
use std::time::Duration;
use tortie_model::kinds::BUILT_IN_TIERS;
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::orchestrator::{DatastoreMigrationObject, DatastoreWorkload, OrchestratorClient};
use tortie_store::{StoreClient, StoreConfig, StoreError, StoreResult};

pub const CRD_GROUP_VERSION: &str = "crd.projectcalico.org/v1";
pub const V3_GROUP_VERSION: &str = "projectcalico.org/v3";
const MIGRATION_TYPE: &str = "APIServerToCRDs";
/// Interval between checks.
const MIGRATION_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const MIGRATION_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Delay for writes in flight when the datastore is locked.
pub const WRITE_DRAIN_DELAY: Duration = Duration::from_secs(10);
/// Maximum number of conflicting objects named in a message.
const MAX_NAMED_CONFLICTS: usize = 10;

pub mod phase {
    pub const PENDING: &str = "Pending";
    pub const MIGRATING: &str = "Migrating";
    pub const WAITING: &str = "WaitingForConflictResolution";
    pub const CONVERGED: &str = "Converged";
    pub const COMPLETE: &str = "Complete";
    pub const FAILED: &str = "Failed";
}

/// Next step of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStep {
    Nothing,
    /// Add the finalizer to the DatastoreMigration.
    Hold,
    /// Check the preconditions.
    Check,
    Move,
    /// Check whether all components use the new group.
    AwaitFollowers,
    /// Delete the old CRDs and remove the finalizer.
    CleanUp,
    /// Restore the previous state of the cluster and remove the finalizer.
    Abort,
    /// Reject the abort: nodes already use the new group.
    RefuseAbort,
}

/// Returns the next step of a migration in this phase.
pub fn choose_next_step(phase: &str, is_deleted: bool, is_held: bool) -> MigrationStep {
    match (phase, is_deleted) {
        _ if !is_held && is_deleted => MigrationStep::Nothing,
        _ if !is_held => MigrationStep::Hold,
        (phase::COMPLETE, true) => MigrationStep::CleanUp,
        (phase::CONVERGED, true) => MigrationStep::RefuseAbort,
        (_, true) => MigrationStep::Abort,
        (phase::COMPLETE | phase::FAILED, false) => MigrationStep::Nothing,
        (phase::CONVERGED, false) => MigrationStep::AwaitFollowers,
        (phase::MIGRATING | phase::WAITING, false) => MigrationStep::Move,
        (_, false) => MigrationStep::Check,
    }
}

/// Clients of both groups and of Kubernetes.
#[derive(Clone, Debug)]
pub struct DatastoreMover {
    old: StoreClient,
    new: StoreClient,
    orchestrator: OrchestratorClient,
    drain: Duration,
}

impl DatastoreMover {
    pub async fn connect(
        config: &StoreConfig,
        orchestrator: OrchestratorClient,
        drain: Duration,
    ) -> StoreResult<DatastoreMover> {
        let [old, new] = [CRD_GROUP_VERSION, V3_GROUP_VERSION]
            .map(|group| StoreConfig { calico_api_group: group.to_owned(), ..config.clone() });
        let old = StoreClient::connect(&old).await?;
        let new = StoreClient::connect(&new).await?;
        Ok(DatastoreMover { old, new, orchestrator, drain })
    }

    /// Runs the migration while this replica leads.
    pub async fn follow(&self) {
        loop {
            match self.step().await {
                Ok(true) => tokio::time::sleep(MIGRATION_CHECK_INTERVAL).await,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot continue the migration of the datastore; trying again");
                    tokio::time::sleep(MIGRATION_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Executes the next step. Returns true if nothing else can be done right now.
    pub async fn step(&self) -> StoreResult<bool> {
        let Some(migration) = self.orchestrator.migration().await? else { return Ok(true) };
        match choose_next_step(migration.phase(), migration.is_deleted(), migration.is_held()) {
            MigrationStep::Nothing => Ok(true),
            MigrationStep::Hold => self.orchestrator.hold_migration(&migration, true).await.map(|_| false),
            MigrationStep::Check => self.check_preconditions(&migration).await,
            MigrationStep::Move => self.move_objects(migration).await,
            MigrationStep::AwaitFollowers => self.await_followers(&migration).await,
            MigrationStep::CleanUp => self.clean_up(&migration).await,
            MigrationStep::Abort => self.abort(&migration).await,
            MigrationStep::RefuseAbort => {
                let message = "cannot abort: nodes may already use projectcalico.org/v3; wait until the migration is complete";
                self.set_phase(&migration, phase::CONVERGED, message).await?;
                self.await_followers(&migration).await
            }
        }
    }

    /// Writes phase and message to the status, if they changed.
    async fn set_phase(
        &self,
        migration: &DatastoreMigrationObject,
        phase: &str,
        message: &str,
    ) -> StoreResult<()> {
        if (migration.phase(), migration.message()) == (phase, message) {
            return Ok(());
        }
        tracing::info!(phase, message, "phase of the datastore migration changed");
        self.orchestrator.set_migration_phase(migration, phase, message).await.map(drop)
    }

    async fn check_preconditions(&self, migration: &DatastoreMigrationObject) -> StoreResult<bool> {
        if migration.kind() != MIGRATION_TYPE {
            let message = format!("spec.type: {:?} is not {MIGRATION_TYPE}", migration.kind());
            return self.set_phase(migration, phase::FAILED, &message).await.map(|()| false);
        }
        match self.find_obstacle().await? {
            Some(message) => self.set_phase(migration, phase::PENDING, &message).await.map(|()| true),
            None => self.set_phase(migration, phase::MIGRATING, "").await.map(|()| false),
        }
    }

    /// Returns why the migration cannot start yet.
    async fn find_obstacle(&self) -> StoreResult<Option<String>> {
        let old = self.orchestrator.definitions("crd.projectcalico.org").await?;
        if old.is_empty() {
            return Ok(Some("there are no CRDs of crd.projectcalico.org to migrate from".to_owned()));
        }
        let new = self.orchestrator.definitions("projectcalico.org").await?;
        for kind in copy::list_required_kinds() {
            let name = format!("{}.projectcalico.org", kind.plural());
            if !new.iter().any(|definition| definition.name == name && definition.established) {
                return Ok(Some(format!(
                    "CRD {name} does not exist or is not established yet: apply deploy/00-crds.yaml"
                )));
            }
        }
        for tier in BUILT_IN_TIERS {
            match self.old.get(&StoreKey::resource(Kind::Tier, "", tier.name)).await {
                Ok(_) => {}
                Err(StoreError::DoesNotExist { .. }) => {
                    return Ok(Some(format!(
                        "tier {} does not exist in crd.projectcalico.org/v1",
                        tier.name
                    )));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn move_objects(&self, migration: DatastoreMigrationObject) -> StoreResult<bool> {
        if set_ready(&self.old, false).await? {
            tokio::time::sleep(self.drain).await;
        }
        let migration = self.orchestrator.withdraw_api_server(&migration).await?;
        let copy = ObjectCopy { from: &self.old, to: &self.new };
        let conflicts = copy.find_conflicts().await?;
        if !conflicts.is_empty() {
            let named = conflicts.iter().take(MAX_NAMED_CONFLICTS).cloned().collect::<Vec<_>>().join(", ");
            let message = format!(
                "{} objects differ between the API groups; delete one of each pair: {named}",
                conflicts.len()
            );
            return self.set_phase(&migration, phase::WAITING, &message).await.map(|()| true);
        }
        copy.lock_target().await?;
        let count = copy.copy_objects().await?;
        copy.update_owners().await?;
        set_ready(&self.new, true).await?;
        let message =
            format!("{count} objects are in projectcalico.org/v3; set CALICO_API_GROUP on nodes to use it");
        self.set_phase(&migration, phase::CONVERGED, &message).await.map(|()| false)
    }

    async fn await_followers(&self, migration: &DatastoreMigrationObject) -> StoreResult<bool> {
        let followers = self.orchestrator.followers().await?;
        match followers.iter().find(|follower| !uses_new_group(follower)) {
            None if !followers.is_empty() => {
                self.set_phase(migration, phase::COMPLETE, "").await.map(|()| false)
            }
            _ => Ok(true),
        }
    }

    async fn clean_up(&self, migration: &DatastoreMigrationObject) -> StoreResult<bool> {
        for definition in self.orchestrator.definitions("crd.projectcalico.org").await? {
            if copy::is_moved(&definition.name) {
                self.orchestrator.remove_definition(&definition).await?;
            } else {
                tracing::info!(definition = definition.name, "kept a CRD: its objects were not migrated");
            }
        }
        self.orchestrator.hold_migration(migration, false).await.map(|_| true)
    }

    async fn abort(&self, migration: &DatastoreMigrationObject) -> StoreResult<bool> {
        self.orchestrator.restore_api_server(migration).await?;
        set_ready(&self.old, true).await?;
        self.orchestrator.hold_migration(migration, false).await.map(|_| true)
    }
}

/// Returns whether all pods of a component use the new group.
fn uses_new_group(follower: &DatastoreWorkload) -> bool {
    follower.group.eq_ignore_ascii_case(V3_GROUP_VERSION) && follower.rolled_out
}

/// Sets `datastoreReady`. Returns whether it changed.
async fn set_ready(client: &StoreClient, ready: bool) -> StoreResult<bool> {
    let key = StoreKey::resource(Kind::ClusterInformation, "", "default");
    let entry = match client.get(&key).await {
        Ok(entry) => entry,
        Err(StoreError::DoesNotExist { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    let StoreValue::Resource(Resource::ClusterInformation(mut information)) = entry.value else {
        return Ok(false);
    };
    if information.spec.datastore_ready == Some(ready) {
        return Ok(false);
    }
    information.spec.datastore_ready = Some(ready);
    let value = StoreValue::Resource(Resource::ClusterInformation(information));
    client.update(&key, &value, &entry.revision).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_step_follows_from_the_phase() {
        for (phase, is_deleted, is_held, step) in [
            ("", false, false, MigrationStep::Hold),
            ("", false, true, MigrationStep::Check),
            (phase::PENDING, false, true, MigrationStep::Check),
            (phase::PENDING, true, true, MigrationStep::Abort),
            (phase::MIGRATING, false, true, MigrationStep::Move),
            (phase::WAITING, false, true, MigrationStep::Move),
            (phase::WAITING, true, true, MigrationStep::Abort),
            (phase::CONVERGED, false, true, MigrationStep::AwaitFollowers),
            (phase::CONVERGED, true, true, MigrationStep::RefuseAbort),
            (phase::COMPLETE, false, true, MigrationStep::Nothing),
            (phase::COMPLETE, true, true, MigrationStep::CleanUp),
            (phase::FAILED, false, true, MigrationStep::Nothing),
            (phase::FAILED, true, true, MigrationStep::Abort),
            (phase::COMPLETE, true, false, MigrationStep::Nothing),
        ] {
            assert_eq!(choose_next_step(phase, is_deleted, is_held), step, "{phase} {is_deleted} {is_held}");
        }
    }
}
