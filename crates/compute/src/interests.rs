//! The ranges of datastore keys that a plan depends on.

use crate::POLICY_KINDS;
use tortie_model::key::AffinityType;
use tortie_model::{KeyRange, Kind};

const NODE_KINDS: [Kind; 7] = [
    Kind::Node,
    Kind::IPPool,
    Kind::WorkloadEndpoint,
    Kind::LiveMigration,
    Kind::FelixConfiguration,
    // Contains the lock of the datastore.
    Kind::ClusterInformation,
    // Contains the service ranges.
    Kind::BGPConfiguration,
];

/// Returns the key ranges for one node.
pub fn node_interests(host: &str, speaks_bgp: bool) -> Vec<KeyRange> {
    let mut ranges = ranges_of_every_node();
    if speaks_bgp {
        ranges.extend(ranges_of_speakers(Some(host)));
    }
    ranges
}

/// Returns the key ranges for all nodes of a cluster together, whether or not they run BGP.
pub fn cluster_interests() -> Vec<KeyRange> {
    ranges_of_every_node().into_iter().chain(ranges_of_speakers(None)).collect()
}

fn ranges_of_every_node() -> Vec<KeyRange> {
    let blocks = KeyRange::Blocks { ip_version: None };
    NODE_KINDS.into_iter().chain(POLICY_KINDS).map(KeyRange::all).chain([blocks]).collect()
}

fn ranges_of_speakers(owner: Option<&str>) -> Vec<KeyRange> {
    let affinities = KeyRange::BlockAffinities {
        affinity: AffinityType::Host,
        owner: owner.map(str::to_owned),
        ip_version: None,
    };
    [Kind::BGPPeer, Kind::BGPFilter].map(KeyRange::all).into_iter().chain([affinities]).collect()
}
