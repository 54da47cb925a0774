//! Determines whether policy can select an endpoint by the labels of its namespace.

use super::cluster::PolicyCluster;
use super::endpoint_lookup::{PartyLocation, TrafficParty};
use tortie_compute::{EndpointPermissions, local_workload};
use tortie_model::Resource;

/// Prefix of the labels that a profile applies for a namespace.
const NAMESPACE_LABEL_PREFIX: &str = "pcns.";

impl PolicyCluster {
    /// Returns whether a profile of the workload applies labels of its namespace.
    pub fn inherits_namespace_labels(&self, party: &TrafficParty) -> bool {
        let PartyLocation::Workload { id, .. } = &party.place else { return false };
        let endpoint = self.workloads().find(|endpoint| {
            local_workload(endpoint, EndpointPermissions::ALL).is_ok_and(|(found, _)| found == *id)
        });
        let profiles = endpoint.map(|endpoint| endpoint.spec.profiles.as_slice()).unwrap_or_default();
        profiles.iter().any(|name| self.has_namespace_labels(name))
    }

    fn has_namespace_labels(&self, profile: &str) -> bool {
        self.resources().any(|resource| match resource {
            Resource::Profile(object) => {
                object.metadata.name == profile
                    && object.spec.labels_to_apply.keys().any(|key| key.starts_with(NAMESPACE_LABEL_PREFIX))
            }
            _ => false,
        })
    }
}
