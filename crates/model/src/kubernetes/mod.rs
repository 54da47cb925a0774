//! Kubernetes' own objects that say who may talk to whom, as objects of ours.
//!
//! Each reads the fields that matter and no others. Whoever gets the objects from the API server is elsewhere: here are
//! functions only.

mod cluster_network_policy;
mod endpoint_slice;
pub mod network_policy;
mod ports;
mod selectors;
mod service;

pub use cluster_network_policy::{ClusterNetworkPolicySpec, global_network_policy};
pub use endpoint_slice::{EndpointSlice, RawEndpointSlice, SERVICE_LABEL, ServicePort};
pub use service::{ExternalTraffic, RawService, Service, ServiceForm};

/// What policies made from a NetworkPolicy of Kubernetes are called, before its own name.
pub const NETWORK_POLICY_PREFIX: &str = "knp.default.";
/// What policies made from a ClusterNetworkPolicy are called, before its own name.
pub const CLUSTER_NETWORK_POLICY_PREFIX: &str = "kcnp.";

/// Whether an object of this kind and name is made from one of Kubernetes, which alone can change it.
pub fn is_derived_policy(kind: crate::Kind, name: &str) -> bool {
    match kind {
        crate::Kind::NetworkPolicy => name.starts_with(NETWORK_POLICY_PREFIX),
        crate::Kind::GlobalNetworkPolicy => name.starts_with(CLUSTER_NETWORK_POLICY_PREFIX),
        _ => false,
    }
}
