//! Reserved addresses: they are never allocated unless requested explicitly.

use super::space;
use ipnet::IpNet;
use std::net::IpAddr;

/// All reserved ranges of both families, merged, so that a lookup is a binary search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReservedRanges {
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

impl ReservedRanges {
    pub fn new(nets: impl IntoIterator<Item = IpNet>) -> ReservedRanges {
        let mut reservations = ReservedRanges::default();
        for net in nets {
            match net {
                IpNet::V4(_) => reservations.v4.push(space::bounds(&net)),
                IpNet::V6(_) => reservations.v6.push(space::bounds(&net)),
            }
        }
        merge(&mut reservations.v4);
        merge(&mut reservations.v6);
        reservations
    }

    /// Returns the union with further ranges.
    pub fn and(&self, nets: impl IntoIterator<Item = IpNet>) -> ReservedRanges {
        let mut all = ReservedRanges::new(nets);
        all.v4.extend_from_slice(&self.v4);
        all.v6.extend_from_slice(&self.v6);
        merge(&mut all.v4);
        merge(&mut all.v6);
        all
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = space::bits(address);
        self.at(space::version_of(address), bits).is_some()
    }

    /// Returns whether every address of the network is reserved.
    pub fn covers(&self, net: &IpNet) -> bool {
        let (first, last) = space::bounds(net);
        self.at(space::version(net), first).is_some_and(|(_, end)| end >= last)
    }

    /// Returns the number of reserved addresses in the network.
    pub fn count_in(&self, net: &IpNet) -> u128 {
        let (first, last) = space::bounds(net);
        let sizes = self.within(net).map(|(start, end)| end.min(last) - start.max(first));
        sizes.fold(0, |count: u128, size| count.saturating_add(size).saturating_add(1))
    }

    /// Returns the merged ranges that overlap a network, in order.
    pub fn within<'a>(&'a self, net: &IpNet) -> impl Iterator<Item = (u128, u128)> + 'a {
        let (first, last) = space::bounds(net);
        let ranges = self.ranges(space::version(net));
        ranges.iter().copied().filter(move |&(start, end)| end >= first && start <= last)
    }

    fn ranges(&self, version: u8) -> &[(u128, u128)] {
        if version == 4 { &self.v4 } else { &self.v6 }
    }

    fn at(&self, version: u8, bits: u128) -> Option<(u128, u128)> {
        let ranges = self.ranges(version);
        let after = ranges.partition_point(|&(start, _)| start <= bits);
        ranges.get(after.checked_sub(1)?).copied().filter(|&(_, end)| bits <= end)
    }
}

fn merge(ranges: &mut Vec<(u128, u128)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let touching = next.0 <= kept.1.saturating_add(1);
        if touching {
            kept.1 = kept.1.max(next.1);
        }
        touching
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(nets: &[&str]) -> ReservedRanges {
        ReservedRanges::new(nets.iter().map(|net| net.parse().unwrap()))
    }

    #[test]
    fn two_halves_cover_the_whole() {
        let halves = reserved(&["10.0.0.32/27", "10.0.0.0/27", "10.0.0.8/32", "fd00::/120"]);
        assert!(halves.covers(&"10.0.0.0/26".parse().unwrap()));
        assert!(!halves.covers(&"10.0.0.0/25".parse().unwrap()));
        assert!(halves.covers(&"fd00::40/122".parse().unwrap()));
        assert!(halves.contains("10.0.0.63".parse().unwrap()));
        assert!(!halves.contains("10.0.0.64".parse().unwrap()));
        assert_eq!(halves.count_in(&"10.0.0.48/28".parse().unwrap()), 16);
        assert_eq!(halves.count_in(&"10.0.0.0/8".parse().unwrap()), 64);
        let more = halves.and(["10.0.0.64/26".parse().unwrap(), "fd01::/120".parse().unwrap()]);
        assert!(
            more.covers(&"10.0.0.0/25".parse().unwrap()) && more.covers(&"fd00::40/122".parse().unwrap())
        );
    }

    #[test]
    fn nothing_reserved_covers_nothing() {
        let none = reserved(&[]);
        assert!(!none.contains("10.0.0.1".parse().unwrap()));
        assert!(!none.covers(&"10.0.0.1/32".parse().unwrap()));
        assert_eq!(none.count_in(&"::/0".parse().unwrap()), 0);
    }

    #[test]
    fn the_last_address_does_not_overflow() {
        let all = reserved(&["::/0", "ffff::/16", "255.255.255.255/32"]);
        assert!(all.covers(&"::/0".parse().unwrap()));
        assert!(all.contains("255.255.255.255".parse().unwrap()));
    }
}
