//! Moving a datastore: lock, export, import, unlock; and the renaming of old policies.

pub mod export;
pub mod import;
pub mod ipam;
pub mod lock;
pub mod policy_names;

use tortie_model::Kind;

/// What is exported, in the order of the file. What refers to nodes comes after them.
pub const EXPORTED: &[Kind] = &[
    Kind::IPPool,
    Kind::BGPPeer,
    Kind::Tier,
    Kind::GlobalNetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
    Kind::GlobalNetworkSet,
    Kind::HostEndpoint,
    Kind::KubeControllersConfiguration,
    Kind::NetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedKubernetesNetworkPolicy,
    Kind::NetworkSet,
    Kind::Node,
    Kind::BGPConfiguration,
    Kind::FelixConfiguration,
    Kind::IPReservation,
    Kind::BGPFilter,
    Kind::Profile,
    Kind::WorkloadEndpoint,
    Kind::CalicoNodeStatus,
];

/// Between the parts of the file: resources, cluster information, addresses.
pub const PART: &str = "===\n";
