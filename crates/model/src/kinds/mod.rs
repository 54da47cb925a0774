//! The kinds: one module each, holding its types, its defaults and its rules.

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
    IPPool IPPoolSpec, IPReservation IPReservationSpec, BGPConfiguration BGPConfigurationSpec, BGPPeer BGPPeerSpec,
    BGPFilter BGPFilterSpec, FelixConfiguration FelixConfigurationSpec, GlobalNetworkPolicy GlobalNetworkPolicySpec,
    NetworkPolicy NetworkPolicySpec, StagedGlobalNetworkPolicy StagedGlobalNetworkPolicySpec,
    StagedNetworkPolicy StagedNetworkPolicySpec, StagedKubernetesNetworkPolicy StagedKubernetesNetworkPolicySpec,
    GlobalNetworkSet GlobalNetworkSetSpec, NetworkSet NetworkSetSpec, HostEndpoint HostEndpointSpec,
    WorkloadEndpoint WorkloadEndpointSpec, Profile ProfileSpec, Node NodeSpec, Tier TierSpec,
    ClusterInformation ClusterInformationSpec, KubeControllersConfiguration KubeControllersConfigurationSpec,
    CalicoNodeStatus CalicoNodeStatusSpec, IPAMConfiguration IPAMConfigurationSpec, BlockAffinity BlockAffinitySpec,
    IPAMBlock IPAMBlockSpec, IPAMHandle IPAMHandleSpec, LiveMigration LiveMigrationSpec,
}
