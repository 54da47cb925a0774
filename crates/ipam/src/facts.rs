//! Inputs of the allocator besides its own records: pools, reservations, settings and the node's labels.

use crate::owner::BlockOwner;
use crate::pool::AllocationPool;
use crate::records::IpamRecords;
use crate::reservation::ReservedRanges;
use crate::{IpamError, IpamResult};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_model::ipam::IpamConfig;
use tortie_model::key::AffinityType;
use tortie_model::{Kind, Resource, StoreKey};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocatorInputs {
    /// Sorted by name.
    pub pools: Vec<AllocationPool>,
    pub reservations: ReservedRanges,
    pub config: IpamConfig,
    /// `None` if the store has no Node object of this name.
    pub node_labels: Option<BTreeMap<String, String>>,
}

impl AllocatorInputs {
    pub async fn load(records: &IpamRecords, owner: &BlockOwner) -> IpamResult<AllocatorInputs> {
        let node = match owner.affinity {
            AffinityType::Host => records.resource(Kind::Node, &owner.name).await?,
            AffinityType::Virtual => None,
        };
        Ok(AllocatorInputs {
            pools: records.resources(Kind::IPPool).await?.iter().filter_map(pool).collect(),
            reservations: reservations(&records.resources(Kind::IPReservation).await?),
            config: records.config().await?.unwrap_or_default(),
            node_labels: node_labels(owner, node.as_ref()),
        })
    }

    /// Returns the node labels that pools select by.
    pub fn labels(&self, owner: &BlockOwner) -> IpamResult<&BTreeMap<String, String>> {
        self.node_labels.as_ref().ok_or_else(|| IpamError::DoesNotExist {
            id: StoreKey::resource(Kind::Node, "", &owner.name).to_string(),
            reason: "an address can only be assigned on a node that the store knows".to_owned(),
        })
    }
}

/// Converts a pool resource; `None` if it is unusable.
pub fn pool(resource: &Resource) -> Option<AllocationPool> {
    let Resource::IPPool(object) = resource else { return None };
    let pool = AllocationPool::of(object);
    if pool.is_none() {
        tracing::warn!(pool = resource.metadata().name, "ignoring a pool with an invalid CIDR or block size");
    }
    pool
}

/// Returns the labels of the owner. Owners that are not hosts have no labels and need no Node object.
pub fn node_labels(owner: &BlockOwner, node: Option<&Resource>) -> Option<BTreeMap<String, String>> {
    match owner.affinity {
        AffinityType::Host => node.map(|node| node.metadata().labels.clone()),
        AffinityType::Virtual => Some(BTreeMap::new()),
    }
}

/// Returns all reserved ranges. Single addresses and blanks are accepted.
pub fn reservations<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> ReservedRanges {
    let mut nets = Vec::new();
    for resource in resources {
        let Resource::IPReservation(reservation) = resource else { continue };
        for text in reservation.spec.reserved_cidrs.iter().map(|text| text.trim()) {
            match text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
                Ok(net) => nets.push(net.trunc()),
                Err(_) if text.is_empty() => {}
                Err(_) => {
                    tracing::warn!(
                        reservation = resource.metadata().name,
                        text,
                        "ignoring a reserved range that is not a CIDR"
                    )
                }
            }
        }
    }
    ReservedRanges::new(nets)
}
