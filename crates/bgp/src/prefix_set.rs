//! Sets of prefixes for filters. A lookup takes time logarithmic in the size of the set.

use ipnet::IpNet;

/// A set of prefixes that supports exact lookups and lookups of a covering member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixSet {
    /// Sorted: a prefix directly precedes the prefixes inside it.
    all: Vec<IpNet>,
    /// The members of `all` that are inside no other member. They are disjoint, so at most one of them covers a given
    /// prefix.
    outer: Vec<IpNet>,
}

impl PrefixSet {
    pub fn contains(&self, net: &IpNet) -> bool {
        self.all.binary_search(&net.trunc()).is_ok()
    }

    /// Returns whether the prefix is equal to a member or inside one.
    pub fn covers(&self, net: &IpNet) -> bool {
        let net = net.trunc();
        let after = self.outer.partition_point(|outer| *outer <= net);
        after.checked_sub(1).and_then(|at| self.outer.get(at)).is_some_and(|outer| outer.contains(&net))
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl FromIterator<IpNet> for PrefixSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let mut all: Vec<IpNet> = nets.into_iter().map(|net| net.trunc()).collect();
        all.sort();
        all.dedup();
        let mut outer: Vec<IpNet> = Vec::new();
        for net in &all {
            if !outer.last().is_some_and(|last| last.contains(net)) {
                outer.push(*net);
            }
        }
        PrefixSet { all, outer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nets() -> impl Strategy<Value = Vec<IpNet>> {
        // Few addresses, so that prefixes nest and repeat.
        let v4 = (0u32..64, 24u8..=32)
            .prop_map(|(bits, len)| IpNet::new((std::net::Ipv4Addr::from(bits << 2)).into(), len).unwrap());
        let v6 = (0u128..16, 120u8..=128)
            .prop_map(|(bits, len)| IpNet::new((std::net::Ipv6Addr::from(bits << 2)).into(), len).unwrap());
        proptest::collection::vec(prop_oneof![v4, v6], 0..20)
    }

    proptest! {
        #[test]
        fn answers_as_a_plain_list_does(members in nets(), questions in nets()) {
            let set: PrefixSet = members.iter().copied().collect();
            for question in questions {
                let exact = members.iter().any(|member| member.trunc() == question.trunc());
                let covered = members.iter().any(|member| member.contains(&question.trunc()));
                prop_assert_eq!(set.contains(&question), exact);
                prop_assert_eq!(set.covers(&question), covered);
            }
        }
    }
}
