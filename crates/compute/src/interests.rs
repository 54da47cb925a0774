//! Which entries of the store a plan is made of.

use crate::POLICY_KINDS;
use tortie_model::key::AffinityType;
use tortie_model::{KeyRange, Kind};

const KINDS: [Kind; 7] = [
    Kind::Node,
    Kind::IPPool,
    Kind::WorkloadEndpoint,
    Kind::LiveMigration,
    Kind::FelixConfiguration,
    // Whether the datastore is locked.
    Kind::ClusterInformation,
    // Where services are.
    Kind::BGPConfiguration,
];

/// Of one node.
pub fn of_node(host: &str, speaks_bgp: bool) -> Vec<KeyRange> {
    let mut ranges = of_every_node();
    if speaks_bgp {
        ranges.extend(of_speakers(Some(host)));
    }
    ranges
}

/// Of all nodes of a cluster together, whatever each of them does.
pub fn cluster_interests() -> Vec<KeyRange> {
    of_every_node().into_iter().chain(of_speakers(None)).collect()
}

fn of_every_node() -> Vec<KeyRange> {
    let blocks = KeyRange::Blocks { ip_version: None };
    KINDS.into_iter().chain(POLICY_KINDS).map(KeyRange::all).chain([blocks]).collect()
}

fn of_speakers(owner: Option<&str>) -> Vec<KeyRange> {
    let (affinity, owner) = (AffinityType::Host, owner.map(str::to_owned));
    let affinities = KeyRange::BlockAffinities { affinity, owner, ip_version: None };
    [Kind::BGPPeer, Kind::BGPFilter].map(KeyRange::all).into_iter().chain([affinities]).collect()
}
