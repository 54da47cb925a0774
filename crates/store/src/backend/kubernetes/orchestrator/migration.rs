//! Requests of the datastore migration from crd.projectcalico.org/v1 to projectcalico.org/v3: the DatastoreMigration
//! object, the APIService of the group, the custom resource definitions, and the API group that nodes use.

use super::{OrchestratorClient, number_at, text_at};
use crate::backend::kubernetes::failure::KubernetesFailure;
use crate::{StoreError, StoreResult};
use serde_json::{Value as Json, json};

const MIGRATIONS_PATH: &str = "/apis/migration.projectcalico.org/v1/datastoremigrations";
const MIGRATION_NAME: &str = "v1-to-v3";
const MIGRATION_FINALIZER: &str = "migration.projectcalico.org/v1-crd-cleanup";
/// Annotation that stores the APIService of the aggregated API server while Kubernetes serves the group itself.
const SAVED_API_SERVICE_ANNOTATION: &str = "migration.projectcalico.org/saved-apiservice";
const API_SERVICES_PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const API_SERVICE_NAME: &str = "v3.projectcalico.org";
const DEFINITIONS_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_GROUP_VARIABLE: &str = "CALICO_API_GROUP";
/// Programs that use the datastore, under Calico's names and Tortie's: kind, resource and name.
const DATASTORE_WORKLOADS: [(&str, &str, &str); 3] = [
    ("DaemonSet", "daemonsets", "calico-node"),
    ("DaemonSet", "daemonsets", "tortie-node"),
    ("Deployment", "deployments", "calico-typha"),
];
const WORKLOAD_NAMESPACES: [&str; 2] = ["kube-system", "calico-system"];

/// A DatastoreMigration.
#[derive(Clone, Debug, PartialEq)]
pub struct DatastoreMigrationObject {
    object: Json,
}

impl DatastoreMigrationObject {
    /// Returns the phase; empty at first.
    pub fn phase(&self) -> &str {
        text_at(&self.object, "/status/phase")
    }

    pub fn message(&self) -> &str {
        text_at(&self.object, "/status/message")
    }

    pub fn kind(&self) -> &str {
        text_at(&self.object, "/spec/type")
    }

    pub fn is_deleted(&self) -> bool {
        self.object.pointer("/metadata/deletionTimestamp").is_some()
    }

    pub fn is_held(&self) -> bool {
        self.finalizers().any(|name| name == MIGRATION_FINALIZER)
    }

    fn finalizers(&self) -> impl Iterator<Item = &str> {
        let listed = self.object.pointer("/metadata/finalizers").and_then(Json::as_array);
        listed.into_iter().flatten().filter_map(Json::as_str)
    }
}

/// A CustomResourceDefinition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceDefinition {
    pub name: String,
    pub established: bool,
    uid: String,
}

/// A program that uses the datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatastoreWorkload {
    pub name: String,
    /// API group that it is configured to use; empty if not configured.
    pub group: String,
    /// Whether all of its pods are updated and ready.
    pub rolled_out: bool,
}

impl OrchestratorClient {
    /// Returns the migration; `None` if it does not exist. Also `None` if access is forbidden, since the RBAC rules are
    /// installed together with the definition.
    pub async fn migration(&self) -> StoreResult<Option<DatastoreMigrationObject>> {
        match self.api.get("DatastoreMigration", &format!("{MIGRATIONS_PATH}/{MIGRATION_NAME}")).await {
            Ok(object) => Ok(Some(DatastoreMigrationObject { object })),
            Err(
                KubernetesFailure::Missing(_)
                | KubernetesFailure::NotServed(_)
                | KubernetesFailure::Forbidden(_),
            ) => Ok(None),
            Err(failure) => Err(failure.about(id())),
        }
    }

    /// Adds or removes the finalizer that keeps the object until the migration has finished.
    pub async fn hold_migration(
        &self,
        migration: &DatastoreMigrationObject,
        held: bool,
    ) -> StoreResult<DatastoreMigrationObject> {
        let mut names: Vec<&str> =
            migration.finalizers().filter(|name| *name != MIGRATION_FINALIZER).collect();
        if held {
            names.push(MIGRATION_FINALIZER);
        }
        let mut object = migration.object.clone();
        object["metadata"]["finalizers"] = json!(names);
        self.put_migration(&object, "").await
    }

    pub async fn set_migration_phase(
        &self,
        migration: &DatastoreMigrationObject,
        phase: &str,
        message: &str,
    ) -> StoreResult<DatastoreMigrationObject> {
        let mut object = migration.object.clone();
        object["status"] = json!({"phase": phase, "message": message});
        self.put_migration(&object, "/status").await
    }

    async fn put_migration(&self, object: &Json, part: &str) -> StoreResult<DatastoreMigrationObject> {
        match self.api.put(&format!("{MIGRATIONS_PATH}/{MIGRATION_NAME}{part}"), object).await {
            Ok(object) => Ok(DatastoreMigrationObject { object }),
            // The last finalizer was removed, so the object is gone.
            Err(KubernetesFailure::Missing(_)) if part.is_empty() => {
                Ok(DatastoreMigrationObject { object: object.clone() })
            }
            Err(failure) => Err(failure.about(id())),
        }
    }

    /// Makes Kubernetes serve projectcalico.org/v3 itself, after saving the previous APIService in the migration.
    pub async fn withdraw_api_server(
        &self,
        migration: &DatastoreMigrationObject,
    ) -> StoreResult<DatastoreMigrationObject> {
        let path = format!("{API_SERVICES_PATH}/{API_SERVICE_NAME}");
        let registration = match self.api.get("APIService", &path).await {
            Ok(object) if object.pointer("/spec/service").is_some_and(Json::is_object) => object,
            // Kubernetes serves the group already.
            Ok(_) | Err(KubernetesFailure::Missing(_)) => return Ok(migration.clone()),
            Err(failure) => return Err(failure.about(api_service_id())),
        };
        let mut object = migration.object.clone();
        let saved = json!({"metadata": {"labels": registration.pointer("/metadata/labels"),
            "annotations": registration.pointer("/metadata/annotations")}, "spec": registration["spec"]});
        object["metadata"]["annotations"][SAVED_API_SERVICE_ANNOTATION] = saved.to_string().into();
        let migration = self.put_migration(&object, "").await?;
        let uid = text_at(&registration, "/metadata/uid");
        match self.api.delete(&path, uid, None).await {
            Ok(()) | Err(KubernetesFailure::Missing(_)) => Ok(migration),
            Err(failure) => Err(failure.about(api_service_id())),
        }
    }

    /// Restores the saved APIService.
    pub async fn restore_api_server(&self, migration: &DatastoreMigrationObject) -> StoreResult<()> {
        let annotations = migration.object.pointer("/metadata/annotations").and_then(Json::as_object);
        let Some(saved) =
            annotations.and_then(|all| all.get(SAVED_API_SERVICE_ANNOTATION)).and_then(Json::as_str)
        else {
            return Ok(());
        };
        let saved: Json = serde_json::from_str(saved).map_err(|error| {
            StoreError::Datastore(format!(
                "{}: the annotation {SAVED_API_SERVICE_ANNOTATION} cannot be read: {error}",
                id()
            ))
        })?;
        let mut object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": API_SERVICE_NAME}, "spec": saved["spec"]});
        for field in ["labels", "annotations"] {
            if let Some(value) =
                saved.pointer(&format!("/metadata/{field}")).filter(|value| value.is_object())
            {
                object["metadata"][field] = value.clone();
            }
        }
        let path = format!("{API_SERVICES_PATH}/{API_SERVICE_NAME}");
        let written = match self.api.get("APIService", &path).await {
            // The APIService that Kubernetes created for its own definitions.
            Ok(own) => {
                object["metadata"]["resourceVersion"] = text_at(&own, "/metadata/resourceVersion").into();
                self.api.put(&path, &object).await
            }
            Err(KubernetesFailure::Missing(_)) => self.api.post(API_SERVICES_PATH, &object).await,
            Err(failure) => Err(failure),
        };
        written.map(drop).map_err(|failure| failure.about(api_service_id()))
    }

    /// Returns the definitions of an API group.
    pub async fn definitions(&self, group: &str) -> StoreResult<Vec<ResourceDefinition>> {
        let all: Vec<Json> = self
            .api
            .get_all("CustomResourceDefinition", DEFINITIONS_PATH)
            .await
            .map_err(|failure| failure.about("definitions".to_owned()))?;
        Ok(all
            .iter()
            .filter(|item| text_at(item, "/spec/group") == group)
            .map(|item| ResourceDefinition {
                name: text_at(item, "/metadata/name").to_owned(),
                established: item.pointer("/status/conditions").and_then(Json::as_array).is_some_and(|all| {
                    all.iter().any(|one| one["type"] == "Established" && one["status"] == "True")
                }),
                uid: text_at(item, "/metadata/uid").to_owned(),
            })
            .collect())
    }

    /// Deletes a definition and with it all objects of its kind.
    pub async fn remove_definition(&self, definition: &ResourceDefinition) -> StoreResult<()> {
        let path = format!("{DEFINITIONS_PATH}/{}", definition.name);
        match self.api.delete(&path, &definition.uid, None).await {
            Ok(()) | Err(KubernetesFailure::Missing(_)) => Ok(()),
            Err(failure) => Err(failure.about(format!("CustomResourceDefinition({})", definition.name))),
        }
    }

    /// Returns the programs that use the datastore and their API groups.
    pub async fn followers(&self) -> StoreResult<Vec<DatastoreWorkload>> {
        let mut found = Vec::new();
        for namespace in WORKLOAD_NAMESPACES {
            for (kind, resource, name) in DATASTORE_WORKLOADS {
                let path = format!("/apis/apps/v1/namespaces/{namespace}/{resource}/{name}");
                match self.api.get(kind, &path).await {
                    Ok(object) => found.push(follower(&format!("{namespace}/{name}"), &object)),
                    Err(KubernetesFailure::Missing(_)) => {}
                    Err(failure) => return Err(failure.about(format!("{resource} {namespace}/{name}"))),
                }
            }
        }
        Ok(found)
    }
}

fn follower(name: &str, object: &Json) -> DatastoreWorkload {
    let containers = object.pointer("/spec/template/spec/containers").and_then(Json::as_array);
    let variables =
        containers.into_iter().flatten().filter_map(|container| container.get("env")?.as_array()).flatten();
    let group = variables
        .filter(|variable| variable["name"] == API_GROUP_VARIABLE)
        .find_map(|one| one["value"].as_str());
    // A DaemonSet counts nodes, a Deployment replicas.
    let counters = if object.pointer("/status/desiredNumberScheduled").is_some_and(Json::is_i64) {
        ["/status/desiredNumberScheduled", "/status/updatedNumberScheduled", "/status/numberReady"]
    } else {
        ["/spec/replicas", "/status/updatedReplicas", "/status/readyReplicas"]
    };
    let [wanted, updated, ready] = counters.map(|pointer| number_at(object, pointer));
    DatastoreWorkload {
        name: name.to_owned(),
        group: group.unwrap_or_default().to_owned(),
        rolled_out: number_at(object, "/status/observedGeneration")
            >= number_at(object, "/metadata/generation")
            && updated >= wanted
            && ready >= wanted,
    }
}

fn id() -> String {
    format!("DatastoreMigration({MIGRATION_NAME})")
}

fn api_service_id() -> String {
    format!("APIService({API_SERVICE_NAME})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_needs_all_pods_updated_and_ready() {
        let env = json!([{"name": "A", "value": "x"}, {"name": API_GROUP_VARIABLE, "value": "projectcalico.org/v3"}]);
        let object = |generation: i64, updated: i64, ready: i64| {
            json!({"metadata": {"generation": generation}, "spec": {"template": {"spec": {"containers": [{"name": "c"}, {"env": env}]}}},
                "status": {"observedGeneration": 3, "desiredNumberScheduled": 2, "updatedNumberScheduled": updated, "numberReady": ready}})
        };
        assert_eq!(follower("n", &object(3, 2, 2)).group, "projectcalico.org/v3");
        assert!(follower("n", &object(3, 2, 2)).rolled_out);
        for (generation, updated, ready) in [(4, 2, 2), (3, 1, 2), (3, 2, 1)] {
            assert!(!follower("n", &object(generation, updated, ready)).rolled_out);
        }
        let deployment = json!({"metadata": {"generation": 1}, "spec": {"replicas": 1},
            "status": {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1}});
        assert_eq!(
            follower("d", &deployment),
            DatastoreWorkload { name: "d".into(), group: String::new(), rolled_out: true }
        );
    }
}
