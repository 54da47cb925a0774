//! Converts native Kubernetes objects (network policies, services, endpoint slices) to Calico's types.
//!
//! Each type decodes only the fields that are needed. This module contains pure functions; the store's
//! Kubernetes backend fetches the objects.

mod cluster_network_policy;
mod endpoint_slice;
pub mod network_policy;
mod ports;
mod selectors;
mod service;

pub use cluster_network_policy::{ClusterNetworkPolicySpec, global_network_policy};
pub use endpoint_slice::{EndpointSlice, RawEndpointSlice, SERVICE_LABEL, ServicePort};
pub(crate) use ports::RuleDirection;
pub use service::{ExternalTraffic, ForwardedPort, KubernetesService, RawService, ServiceType, TargetPort};

/// Name prefix of policies derived from Kubernetes NetworkPolicies.
pub const NETWORK_POLICY_PREFIX: &str = "knp.default.";
/// Name prefix of policies derived from ClusterNetworkPolicies.
pub const CLUSTER_NETWORK_POLICY_PREFIX: &str = "kcnp.";

/// Returns whether an object of this kind and name is derived from a native Kubernetes object. Such objects
/// are read-only here.
pub fn is_derived_policy(kind: crate::Kind, name: &str) -> bool {
    match kind {
        crate::Kind::NetworkPolicy => name.starts_with(NETWORK_POLICY_PREFIX),
        crate::Kind::GlobalNetworkPolicy => name.starts_with(CLUSTER_NETWORK_POLICY_PREFIX),
        _ => false,
    }
}
