//! The kinds: one module each, holding its types, its defaults and its rules.

mod cel;
mod condition;
mod kubernetes_policy;
mod network_set;
mod policy;
mod profile;
mod rule;
mod rule_check;
mod staged_kubernetes_policy;
mod staged_policy;
mod tier;

pub use condition::Condition;
pub use kubernetes_policy::{
    IPBlock, KubernetesEgressRule, KubernetesIngressRule, KubernetesPeer, KubernetesPort, KubernetesProtocol,
    LabelOperator, LabelRequirement, LabelSelector,
};
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

use crate::{Kind, Object, Spec, StatusForm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

macro_rules! untyped {
    ($($name:ident $spec:ident),* $(,)?) => {$(
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $spec(pub Map<String, Value>);
        impl Spec for $spec {
            const KIND: Kind = Kind::$name;
            type Status = Map<String, Value>;
            const STATUS: StatusForm = StatusForm::WhenSet;
        }
        pub type $name = Object<$spec>;
    )*};
}

untyped! {
    IPPool IPPoolSpec,
    IPReservation IPReservationSpec,
    BGPConfiguration BGPConfigurationSpec,
    BGPPeer BGPPeerSpec,
    BGPFilter BGPFilterSpec,
    FelixConfiguration FelixConfigurationSpec,
    HostEndpoint HostEndpointSpec,
    WorkloadEndpoint WorkloadEndpointSpec,
    Node NodeSpec,
    ClusterInformation ClusterInformationSpec,
    KubeControllersConfiguration KubeControllersConfigurationSpec,
    CalicoNodeStatus CalicoNodeStatusSpec,
    IPAMConfiguration IPAMConfigurationSpec,
    BlockAffinity BlockAffinitySpec,
    IPAMBlock IPAMBlockSpec,
    IPAMHandle IPAMHandleSpec,
    LiveMigration LiveMigrationSpec,
}

#[cfg(test)]
mod tests;
