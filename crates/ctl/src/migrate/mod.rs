//! Migrates a datastore: lock, export, import, unlock; and renames policies with legacy names.

pub mod export;
pub mod import;
pub mod ipam;
pub mod lock;
pub mod policy_names;

use tortie_model::Kind;

/// The exported kinds, in the order of the file. Kinds that refer to nodes follow them.
pub const EXPORTED_KINDS: &[Kind] = &[
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

/// Separator between the parts of the file: resources, cluster information, addresses.
pub const PART_SEPARATOR: &str = "===\n";
