//! Address sets with lookups whose cost does not depend on the number of members.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tortie_plan::evaluate::AddressSets;
use tortie_plan::{SetId, SetKind, SetMember};

/// Estimated memory of one member: the entry of a hash table at its usual load.
pub const MEMBER_BYTES: usize = 40;

/// The address sets of a replica.
#[derive(Debug, Default)]
pub struct ReplicaSets(HashMap<SetId, MemberIndex>);

/// The members of one set.
#[derive(Debug, PartialEq, Eq)]
pub enum MemberIndex {
    Nets { v4: PrefixTable<u32>, v6: PrefixTable<u128> },
    Ports(HashSet<SetMember>),
}

/// Networks of one family by prefix length. A lookup masks the address once per length that occurs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PrefixTable<T: Eq + Hash>(Vec<PrefixLength<T>>);

#[derive(Debug, PartialEq, Eq)]
struct PrefixLength<T: Eq + Hash> {
    length: u8,
    networks: HashSet<T>,
}

impl ReplicaSets {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn contains_set(&self, id: &SetId) -> bool {
        self.0.contains_key(id)
    }

    pub fn insert(&mut self, id: SetId, members: MemberIndex) -> Option<MemberIndex> {
        self.0.insert(id, members)
    }

    pub fn remove(&mut self, id: &SetId) -> Option<MemberIndex> {
        self.0.remove(id)
    }

    pub fn get_mut(&mut self, id: &SetId) -> Option<&mut MemberIndex> {
        self.0.get_mut(id)
    }
}

impl PartialEq for ReplicaSets {
    fn eq(&self, other: &ReplicaSets) -> bool {
        self.0 == other.0
    }
}

/// A set that is not in the replica is empty.
impl AddressSets for ReplicaSets {
    fn has_address(&self, set: &SetId, address: IpAddr) -> bool {
        match (self.0.get(set), address) {
            (Some(MemberIndex::Nets { v4, .. }), IpAddr::V4(address)) => v4.contains(address.to_bits()),
            (Some(MemberIndex::Nets { v6, .. }), IpAddr::V6(address)) => v6.contains(address.to_bits()),
            (Some(MemberIndex::Ports(_)) | None, _) => false,
        }
    }

    fn has_port(&self, set: &SetId, address: IpAddr, protocol: u8, port: u16) -> bool {
        match self.0.get(set) {
            Some(MemberIndex::Ports(members)) => {
                members.contains(&SetMember::Port { address, protocol, port })
            }
            Some(MemberIndex::Nets { .. }) | None => false,
        }
    }
}

impl MemberIndex {
    pub fn new(kind: SetKind) -> MemberIndex {
        match kind {
            SetKind::Nets => MemberIndex::Nets { v4: PrefixTable::default(), v6: PrefixTable::default() },
            SetKind::Ports => MemberIndex::Ports(HashSet::new()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            MemberIndex::Nets { v4, v6 } => v4.len() + v6.len(),
            MemberIndex::Ports(members) => members.len(),
        }
    }

    /// Adds a member. Returns false if the set has it already or is of the other kind.
    pub fn insert(&mut self, member: SetMember) -> bool {
        match (self, member) {
            (MemberIndex::Nets { v4, v6 }, SetMember::Net(net)) => match net.addr() {
                IpAddr::V4(address) => v4.insert(address.to_bits(), net.prefix_len()),
                IpAddr::V6(address) => v6.insert(address.to_bits(), net.prefix_len()),
            },
            (MemberIndex::Ports(members), SetMember::Port { .. }) => members.insert(member),
            (MemberIndex::Nets { .. } | MemberIndex::Ports(_), _) => false,
        }
    }

    /// Removes a member. Returns false if the set does not have it.
    pub fn remove(&mut self, member: &SetMember) -> bool {
        match (self, member) {
            (MemberIndex::Nets { v4, v6 }, SetMember::Net(net)) => match net.addr() {
                IpAddr::V4(address) => v4.remove(address.to_bits(), net.prefix_len()),
                IpAddr::V6(address) => v6.remove(address.to_bits(), net.prefix_len()),
            },
            (MemberIndex::Ports(members), SetMember::Port { .. }) => members.remove(member),
            (MemberIndex::Nets { .. } | MemberIndex::Ports(_), _) => false,
        }
    }
}

/// The bits of an address.
pub trait AddressBits: Copy + Eq + Hash {
    fn truncate(self, length: u8) -> Self;
}

impl AddressBits for u32 {
    fn truncate(self, length: u8) -> u32 {
        let mask = u32::MAX.checked_shl(Ipv4Addr::BITS.saturating_sub(u32::from(length)));
        self & mask.unwrap_or_default()
    }
}

impl AddressBits for u128 {
    fn truncate(self, length: u8) -> u128 {
        let mask = u128::MAX.checked_shl(Ipv6Addr::BITS.saturating_sub(u32::from(length)));
        self & mask.unwrap_or_default()
    }
}

impl<T: AddressBits> PrefixTable<T> {
    pub fn contains(&self, address: T) -> bool {
        self.0.iter().any(|prefix| prefix.networks.contains(&address.truncate(prefix.length)))
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|prefix| prefix.networks.len()).sum()
    }

    pub fn insert(&mut self, address: T, length: u8) -> bool {
        // The longest prefixes come first: most members are single addresses.
        let position = self.0.partition_point(|prefix| prefix.length > length);
        if self.0.get(position).is_none_or(|prefix| prefix.length != length) {
            self.0.insert(position, PrefixLength { length, networks: HashSet::new() });
        }
        self.0.get_mut(position).is_some_and(|prefix| prefix.networks.insert(address.truncate(length)))
    }

    pub fn remove(&mut self, address: T, length: u8) -> bool {
        let position = self.0.partition_point(|prefix| prefix.length > length);
        let Some(prefix) = self.0.get_mut(position).filter(|prefix| prefix.length == length) else {
            return false;
        };
        let removed = prefix.networks.remove(&address.truncate(length));
        if prefix.networks.is_empty() {
            self.0.remove(position);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipnet::IpNet;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn net() -> impl Strategy<Value = IpNet> {
        let v4 = (0u32..64, 24u8..=32).prop_map(|(bits, length)| {
            IpNet::new(Ipv4Addr::from(0x0a00_0000 | (bits * 8)).into(), length).unwrap().trunc()
        });
        let v6 = (0u128..64, 118u8..=128).prop_map(|(bits, length)| {
            IpNet::new(Ipv6Addr::from((0xfd00 << 112) | (bits * 16)).into(), length).unwrap().trunc()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn lookups_equal_a_scan_of_members(changes in prop::collection::vec((any::<bool>(), net()), 0..60), at in 0u32..1100) {
            let mut index = MemberIndex::new(SetKind::Nets);
            let mut members = BTreeSet::new();
            for (adds, net) in changes {
                let member = SetMember::Net(net);
                if adds {
                    prop_assert_eq!(index.insert(member), members.insert(net));
                } else {
                    prop_assert_eq!(index.remove(&member), members.remove(&net));
                }
            }
            prop_assert_eq!(index.len(), members.len());
            let id = SetId::new("s:x");
            let mut sets = ReplicaSets::default();
            sets.insert(id.clone(), index);
            let v4 = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | at));
            let v6 = IpAddr::V6(Ipv6Addr::from((0xfd00u128 << 112) | u128::from(at)));
            for address in [v4, v6] {
                prop_assert_eq!(sets.has_address(&id, address), members.iter().any(|net| net.contains(&address)));
                prop_assert!(!sets.has_address(&SetId::new("s:other"), address));
            }
        }
    }

    #[test]
    fn whole_families_are_members() {
        let mut index = MemberIndex::new(SetKind::Nets);
        assert!(index.insert(SetMember::Net("0.0.0.0/0".parse().unwrap())));
        assert!(!index.insert(SetMember::Net("0.0.0.0/0".parse().unwrap())));
        let id = SetId::new("s:x");
        let mut sets = ReplicaSets::default();
        sets.insert(id.clone(), index);
        assert!(sets.has_address(&id, "255.255.255.255".parse().unwrap()));
        assert!(!sets.has_address(&id, "::1".parse().unwrap()));
        assert!(sets.get_mut(&id).unwrap().insert(SetMember::Net("::/0".parse().unwrap())));
        assert!(sets.has_address(&id, "ffff::1".parse().unwrap()));
    }

    #[test]
    fn ports_match_as_a_whole() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let member = SetMember::Port { address, protocol: 6, port: 80 };
        let mut index = MemberIndex::new(SetKind::Ports);
        assert!(index.insert(member) && !index.insert(member));
        assert!(!index.insert(SetMember::Net("10.0.0.1/32".parse().unwrap())), "the other kind");
        let id = SetId::new("n:x");
        let mut sets = ReplicaSets::default();
        sets.insert(id.clone(), index);
        assert!(sets.has_port(&id, address, 6, 80));
        assert!(!sets.has_port(&id, address, 17, 80) && !sets.has_port(&id, address, 6, 81));
        assert!(!sets.has_address(&id, address));
    }
}
