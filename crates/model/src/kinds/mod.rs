//! The resource kinds: one module each, with its types, defaults and validation rules.

mod bgp_configuration;
mod bgp_filter;
mod bgp_peer;
mod block_affinity;
mod calico_node_status;
mod cel;
mod cel_settings;
mod cluster_information;
mod condition;
mod felix_configuration;
mod host_endpoint;
mod ip_pool;
mod ip_reservation;
mod ipam_block;
mod ipam_configuration;
mod ipam_handle;
mod kube_controllers_configuration;
mod kubernetes_policy;
mod live_migration;
mod network_set;
mod node;
mod policy;
mod profile;
mod rule;
mod rule_check;
mod shared;
mod staged_kubernetes_policy;
mod staged_policy;
mod tier;
mod workload_endpoint;

pub use bgp_configuration::*;
pub use bgp_filter::*;
pub use bgp_peer::*;
pub use block_affinity::*;
pub use calico_node_status::*;
pub use cluster_information::*;
pub use felix_configuration::*;
pub use host_endpoint::*;
pub use ip_pool::*;
pub use ip_reservation::*;
pub use ipam_block::*;
pub use ipam_configuration::*;
pub use ipam_handle::*;
pub use kube_controllers_configuration::*;
pub use live_migration::*;
pub use node::*;
pub use shared::{BGPPassword, EnabledSwitch, ProgramClusterRoutes, SecretKeyRef};
pub use workload_endpoint::*;

pub use condition::Condition;
pub use kubernetes_policy::{
    IPBlock, KubernetesEgressRule, KubernetesIngressRule, KubernetesPeer, KubernetesPort, KubernetesProtocol,
    LabelOperator, LabelRequirement, LabelSelector,
};
pub(crate) use network_set::NAMESPACE_LABEL;
pub use network_set::{GlobalNetworkSet, GlobalNetworkSetSpec, NetworkSet, NetworkSetSpec};
pub use policy::{
    DEFAULT_TIER, GlobalNetworkPolicy, GlobalNetworkPolicySpec, NetworkPolicy, NetworkPolicySpec,
    PerformanceHint, PolicyType, TIER_LABEL,
};
pub use profile::{Profile, ProfileSpec};
pub use rule::{
    Action, EntityRule, HTTPMatch, HTTPPath, ICMPFields, Rule, RuleMetadata, ServiceAccountMatch,
    ServiceMatch,
};
pub use staged_kubernetes_policy::{StagedKubernetesNetworkPolicy, StagedKubernetesNetworkPolicySpec};
pub use staged_policy::{
    StagedAction, StagedGlobalNetworkPolicy, StagedGlobalNetworkPolicySpec, StagedNetworkPolicy,
    StagedNetworkPolicySpec,
};
pub use tier::{BUILT_IN_TIERS, BuiltInTier, Tier, TierAction, TierSpec, TierStatus};

#[cfg(test)]
mod tests;
