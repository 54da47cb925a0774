//! Kubernetes objects, reduced to the fields that are used, so that nothing else is kept in memory.

use serde::Deserialize;
use std::collections::BTreeMap;
use tortie_model::ObjectMeta;
use tortie_model::kinds::StagedKubernetesNetworkPolicySpec;
use tortie_model::kubernetes::{RawEndpointSlice, RawService};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CoreMetadata {
    pub name: String,
    pub generate_name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CorePod {
    pub metadata: CoreMetadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: String,
    pub host_network: bool,
    pub service_account_name: String,
    pub containers: Vec<PodContainer>,
    pub init_containers: Vec<PodContainer>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodContainer {
    pub ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: String,
    pub container_port: u16,
    pub host_port: u16,
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    pub protocol: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    pub phase: String,
    pub reason: String,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

/// A Namespace or a ServiceAccount, of which only the metadata is used.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreMetadataObject {
    pub metadata: CoreMetadata,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreNode {
    pub metadata: CoreMetadata,
    pub spec: CoreNodeSpec,
    pub status: CoreNodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreNodeSpec {
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreNodeStatus {
    pub addresses: Vec<CoreNodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreNodeAddress {
    #[serde(rename = "type")]
    pub type_: String,
    pub address: String,
}

/// networking.k8s.io/v1. Calico's StagedKubernetesNetworkPolicy has the same spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreNetworkPolicy {
    pub metadata: CoreMetadata,
    pub spec: StagedKubernetesNetworkPolicySpec,
}

/// A policy of policy.networking.k8s.io. Clients fill its spec with defaults, so it can be missing only in an invalid
/// object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreClusterPolicy<S> {
    pub metadata: CoreMetadata,
    pub spec: S,
}

/// discovery.k8s.io/v1
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreEndpointSlice {
    pub metadata: CoreMetadata,
    #[serde(flatten)]
    pub slice: RawEndpointSlice,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreService {
    pub metadata: CoreMetadata,
    #[serde(flatten)]
    pub service: RawService,
}

/// An object of Kubernetes itself, not of Calico.
pub trait CoreObject {
    fn metadata(&self) -> &CoreMetadata;
}

macro_rules! core_objects {
    ($($object:ty),*) => {$(
        impl CoreObject for $object {
            fn metadata(&self) -> &CoreMetadata {
                &self.metadata
            }
        }
    )*};
}

core_objects!(CorePod, CoreMetadataObject, CoreNode, CoreNetworkPolicy, CoreEndpointSlice, CoreService);

impl CoreMetadata {
    /// Returns the metadata of a resource derived from this object, without labels and annotations.
    pub fn derived(&self, name: String, namespace: &str, uid: String) -> ObjectMeta {
        ObjectMeta {
            name,
            namespace: namespace.to_owned(),
            uid,
            creation_timestamp: self.creation_timestamp.clone(),
            ..Default::default()
        }
    }
}
