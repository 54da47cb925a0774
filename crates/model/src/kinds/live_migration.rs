//! The live migration of a virtual machine from one node to another.

use crate::object::{NoStatus, StatusForm};
use crate::scalar::is_default;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub type LiveMigration = TypedObject<LiveMigrationSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LiveMigrationSpec {
    #[serde(skip_serializing_if = "is_default")]
    pub source: Option<LiveMigrationSource>,
    #[serde(skip_serializing_if = "is_default")]
    pub target: Option<LiveMigrationTarget>,
}

/// Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LiveMigrationSource {
    /// The virtual machine with all its interfaces.
    #[serde(skip_serializing_if = "is_default")]
    pub workload: Option<WorkloadIdentifier>,
    /// One interface.
    #[serde(skip_serializing_if = "is_default")]
    pub workload_endpoint: Option<WorkloadEndpointIdentifier>,
}

/// Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LiveMigrationTarget {
    #[serde(skip_serializing_if = "is_default")]
    pub selector: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub workload_endpoint: Option<WorkloadEndpointIdentifier>,
}

/// The host name is ignored if the orchestrator is `k8s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkloadIdentifier {
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: String,
    #[serde(rename = "orchestratorID", skip_serializing_if = "is_default")]
    pub orchestrator_id: String,
    #[serde(rename = "workloadID", skip_serializing_if = "is_default")]
    pub workload_id: String,
}

/// The host name is ignored if the orchestrator is `k8s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkloadEndpointIdentifier {
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: String,
    #[serde(rename = "orchestratorID", skip_serializing_if = "is_default")]
    pub orchestrator_id: String,
    #[serde(rename = "workloadID", skip_serializing_if = "is_default")]
    pub workload_id: String,
    #[serde(rename = "endpointID", skip_serializing_if = "is_default")]
    pub endpoint_id: String,
}

impl ResourceSpec for LiveMigrationSpec {
    const KIND: Kind = Kind::LiveMigration;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(migration: &LiveMigration, at: &FieldChecker<'_>) {
        let (spec, at) = (&migration.spec, at.field("spec"));
        if let Some(source) = &spec.source {
            at.field("source").ensure(
                source.workload.is_some() != source.workload_endpoint.is_some(),
                "",
                "exactly one of workload and workloadEndpoint must be set",
            );
        }
        if let Some(target) = &spec.target {
            let at = at.field("target");
            at.ensure(
                target.selector.is_some() != target.workload_endpoint.is_some(),
                "",
                "exactly one of selector and workloadEndpoint must be set",
            );
            if let Some(selector) = &target.selector {
                at.field("selector").selector(selector);
            }
        }
    }
}
