//! Path attributes, stored once for all routes that share them.

use crate::filter::BgpCommunity;
use hashbrown::{DefaultHashBuilder, HashTable};
use rustbgpd_wire::{Aggregator, ExtendedCommunity, LargeCommunity, Origin, RawAttribute};
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// LOCAL_PREF of a route that was received without one.
pub const DEFAULT_LOCAL_PREF: u32 = 100;

/// The attributes of a path, independent of their wire format.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteAttrs {
    /// Preference that is compared before everything else: 200 for our own routes and 100 for learnt ones, unless a
    /// filter changes it. Never sent.
    pub preference: u16,
    pub origin: Origin,
    /// The AS numbers, nearest first. AS sets are rejected (RFC 9774), so a path is one sequence.
    pub as_path: Box<[u32]>,
    /// `None` means this speaker itself.
    pub next_hop: Option<IpAddr>,
    /// The link-local address that accompanies a global IPv6 next hop.
    pub link_local: Option<Ipv6Addr>,
    pub med: Option<u32>,
    pub local_pref: Option<u32>,
    pub atomic_aggregate: bool,
    pub aggregator: Option<Aggregator>,
    pub communities: Box<[u32]>,
    pub extended_communities: Box<[ExtendedCommunity]>,
    pub large_communities: Box<[LargeCommunity]>,
    pub originator: Option<Ipv4Addr>,
    pub cluster_list: Box<[Ipv4Addr]>,
    /// Transitive attributes that we do not interpret but pass on.
    pub others: Box<[RawAttribute]>,
    /// The device of a route that originates here, for filters. Never sent.
    pub device: Option<Arc<str>>,
    /// Whether this is the route of a service that originates here, for filters. Never sent.
    pub service: bool,
}

impl RouteAttrs {
    pub const LEARNT_PREFERENCE: u16 = 100;
    pub const LOCAL_PREFERENCE: u16 = 200;

    /// Returns the attributes of a route that originates here.
    pub fn local() -> RouteAttrs {
        RouteAttrs { preference: RouteAttrs::LOCAL_PREFERENCE, ..RouteAttrs::default() }
    }

    pub fn local_pref(&self) -> u32 {
        self.local_pref.unwrap_or(DEFAULT_LOCAL_PREF)
    }

    pub fn has_community(&self, community: BgpCommunity) -> bool {
        match community {
            BgpCommunity::Standard(high, low) => {
                self.communities.contains(&BgpCommunity::standard(high, low))
            }
            BgpCommunity::Large(global, one, two) => {
                self.large_communities.contains(&LargeCommunity::new(global, one, two))
            }
        }
    }

    pub fn add_community(&mut self, community: BgpCommunity) {
        if self.has_community(community) {
            return;
        }
        match community {
            BgpCommunity::Standard(high, low) => {
                let value = BgpCommunity::standard(high, low);
                self.communities = [&self.communities[..], &[value]].concat().into();
            }
            BgpCommunity::Large(global, one, two) => {
                let value = LargeCommunity::new(global, one, two);
                self.large_communities = [&self.large_communities[..], &[value]].concat().into();
            }
        }
    }
}

impl Default for RouteAttrs {
    fn default() -> Self {
        RouteAttrs {
            preference: RouteAttrs::LEARNT_PREFERENCE,
            origin: Origin::Igp,
            as_path: Box::default(),
            next_hop: None,
            link_local: None,
            med: None,
            local_pref: None,
            atomic_aggregate: false,
            aggregator: None,
            communities: Box::default(),
            extended_communities: Box::default(),
            large_communities: Box::default(),
            originator: None,
            cluster_list: Box::default(),
            others: Box::default(),
            device: None,
            service: false,
        }
    }
}

/// Returns one shared copy for equal attributes. Unused attributes are removed when the pool has doubled in size.
#[derive(Debug, Default)]
pub struct AttrsInterner {
    pool: HashTable<Arc<RouteAttrs>>,
    hasher: DefaultHashBuilder,
    sweep_at: usize,
}

impl AttrsInterner {
    const MIN_SWEEP_SIZE: usize = 1024;

    pub fn intern(&mut self, attrs: RouteAttrs) -> Arc<RouteAttrs> {
        let hash = self.hasher.hash_one(&attrs);
        if let Some(known) = self.pool.find(hash, |known| **known == attrs) {
            return known.clone();
        }
        if self.pool.len() >= self.sweep_at.max(Self::MIN_SWEEP_SIZE) {
            self.sweep();
        }
        let attrs = Arc::new(attrs);
        self.pool.insert_unique(hash, attrs.clone(), |known| self.hasher.hash_one(&**known));
        attrs
    }

    fn sweep(&mut self) {
        self.pool.retain(|attrs| Arc::strong_count(attrs) > 1);
        self.pool.shrink_to(self.pool.len() * 2, |known| self.hasher.hash_one(&**known));
        self.sweep_at = self.pool.len() * 2;
    }

    /// Returns the number of distinct attribute sets in memory.
    pub fn size(&self) -> usize {
        self.pool.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs(value: u32) -> RouteAttrs {
        RouteAttrs { med: Some(value), ..RouteAttrs::default() }
    }

    #[test]
    fn equal_attributes_are_kept_once() {
        let mut interner = AttrsInterner::default();
        let first = interner.intern(attrs(1));
        assert!(Arc::ptr_eq(&first, &interner.intern(attrs(1))));
        assert!(!Arc::ptr_eq(&first, &interner.intern(attrs(2))));
    }

    #[test]
    fn what_nobody_uses_goes() {
        let mut interner = AttrsInterner::default();
        let kept: Vec<_> = (0..10).map(|value| interner.intern(attrs(value))).collect();
        (0..100_000).for_each(|value| drop(interner.intern(attrs(value))));
        assert!(interner.size() <= 2 * AttrsInterner::MIN_SWEEP_SIZE, "{} kept", interner.size());
        for (value, kept) in kept.iter().enumerate() {
            assert!(Arc::ptr_eq(kept, &interner.intern(attrs(value as u32))));
        }
    }
}
