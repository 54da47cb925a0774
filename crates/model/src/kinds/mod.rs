//! The kinds: one module each, holding its types, its defaults and its rules.

mod bgp_configuration;
mod bgp_filter;
mod bgp_peer;
mod block_affinity;
mod calico_node_status;
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
mod live_migration;
mod node;
mod shared;
mod workload_endpoint;

pub use bgp_configuration::*;
pub use bgp_filter::*;
pub use bgp_peer::*;
pub use block_affinity::*;
pub use calico_node_status::*;
pub use cluster_information::*;
pub use condition::*;
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
pub use shared::{BGPPassword, ProgramClusterRoutes, SecretKeyRef, Switch};
pub use workload_endpoint::*;

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
    GlobalNetworkPolicy GlobalNetworkPolicySpec,
NetworkPolicy NetworkPolicySpec, StagedGlobalNetworkPolicy StagedGlobalNetworkPolicySpec,
StagedNetworkPolicy StagedNetworkPolicySpec, StagedKubernetesNetworkPolicy StagedKubernetesNetworkPolicySpec,
GlobalNetworkSet GlobalNetworkSetSpec, NetworkSet NetworkSetSpec,     Profile ProfileSpec, Tier TierSpec,
        }
