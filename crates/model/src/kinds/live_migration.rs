//! The live migration of a virtual machine from one node to another.

use crate::object::NoStatus;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};

pub type LiveMigration = TypedObject<LiveMigrationSpec>;

api_types! {
    pub struct LiveMigrationSpec {
        pub source: Option<LiveMigrationSource>,
        pub target: Option<LiveMigrationTarget>,
    }

    /// Exactly one field is set.
    pub struct LiveMigrationSource {
        /// The virtual machine with all its interfaces.
        pub workload: Option<WorkloadIdentifier>,
        /// One interface.
        pub workload_endpoint: Option<WorkloadEndpointIdentifier>,
    }

    /// Exactly one field is set.
    pub struct LiveMigrationTarget {
        pub selector: Option<String>,
        pub workload_endpoint: Option<WorkloadEndpointIdentifier>,
    }

    /// The host name is ignored if the orchestrator is `k8s`.
    pub struct WorkloadIdentifier {
        pub hostname: String,
        #[serde(rename = "orchestratorID")]
        pub orchestrator_id: String,
        #[serde(rename = "workloadID")]
        pub workload_id: String,
    }

    /// The host name is ignored if the orchestrator is `k8s`.
    pub struct WorkloadEndpointIdentifier {
        pub hostname: String,
        #[serde(rename = "orchestratorID")]
        pub orchestrator_id: String,
        #[serde(rename = "workloadID")]
        pub workload_id: String,
        #[serde(rename = "endpointID")]
        pub endpoint_id: String,
    }
}

impl ResourceSpec for LiveMigrationSpec {
    const KIND: Kind = Kind::LiveMigration;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        if let Some(source) = &self.source {
            at.field("source").ensure(
                source.workload.is_some() != source.workload_endpoint.is_some(),
                "",
                "exactly one of workload and workloadEndpoint must be set",
            );
        }
        if let Some(target) = &self.target {
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
