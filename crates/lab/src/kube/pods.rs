//! The pods of a lab with Kubernetes, from the workload endpoints of the datastore.

use crate::cluster::LabCluster;
use crate::error::LabResult;
use crate::pod::LabPod;
use crate::store;
use std::collections::BTreeMap;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_model::{Kind, Resource};

/// Label prefixes that Calico and Kubernetes add to endpoints.
const DERIVED_LABELS: [&str; 2] = ["projectcalico.org/", "kubernetes.io/"];

/// Returns the pods that are not in the host's network, which have no endpoint.
pub async fn list(cluster: &LabCluster) -> LabResult<Vec<LabPod>> {
    let resources = store::client(cluster).await?;
    let (listing, _) = resources.list_all(Kind::WorkloadEndpoint, None).await?;
    let pods = listing.items.into_iter().filter_map(|resource| match resource {
        Resource::WorkloadEndpoint(endpoint) if endpoint.spec.orchestrator == "k8s" => {
            Some(convert_pod(*endpoint))
        }
        _ => None,
    });
    Ok(pods.collect())
}

fn convert_pod(endpoint: WorkloadEndpoint) -> LabPod {
    let spec = endpoint.spec;
    let addresses = spec.ip_networks.iter().filter_map(|net| net.split('/').next()?.parse().ok()).collect();
    let labels = endpoint.metadata.labels.into_iter();
    let labels: BTreeMap<String, String> =
        labels.filter(|(key, _)| !DERIVED_LABELS.iter().any(|prefix| key.starts_with(prefix))).collect();
    LabPod {
        name: spec.pod,
        node: spec.node,
        namespace: endpoint.metadata.namespace,
        labels,
        container_id: spec.container_id,
        addresses,
        envoy: None,
    }
}
