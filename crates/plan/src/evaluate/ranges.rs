//! Looks up an address in many nets: merged ranges and binary search.

use ipnet::IpNet;
use std::net::IpAddr;

/// The addresses of some nets. The ranges of one family are sorted and never adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NetRanges {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl NetRanges {
    pub fn new<'a>(nets: impl IntoIterator<Item = &'a IpNet>) -> NetRanges {
        let mut v4 = Vec::new();
        let mut v6 = Vec::new();
        for net in nets {
            match net {
                IpNet::V4(net) => v4.push((net.network().into(), net.broadcast().into())),
                IpNet::V6(net) => v6.push((net.network().into(), net.broadcast().into())),
            }
        }
        NetRanges { v4: merge(v4, |last| last.checked_add(1)), v6: merge(v6, |last| last.checked_add(1)) }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => within(&self.v4, address.into()),
            IpAddr::V6(address) => within(&self.v6, address.into()),
        }
    }
}

fn merge<T: Copy + Ord>(mut ranges: Vec<(T, T)>, next: impl Fn(T) -> Option<T>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if next(*end).is_none_or(|next| first <= next) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged.shrink_to_fit();
    merged
}

fn within<T: Copy + Ord>(ranges: &[(T, T)], value: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= value);
    after > 0 && ranges.get(after - 1).is_some_and(|(_, last)| value <= *last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net() -> impl Strategy<Value = IpNet> {
        let v4 = (0u32..64, 24u8..=32).prop_map(|(bits, length)| {
            IpNet::new(IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 | (bits * 8))), length)
                .unwrap()
                .trunc()
        });
        let v6 = (0u128..64, 118u8..=128).prop_map(|(bits, length)| {
            IpNet::new(IpAddr::V6(std::net::Ipv6Addr::from((0xfd00 << 112) | (bits * 16))), length)
                .unwrap()
                .trunc()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn ranges_contain_the_addresses_of_their_nets(nets in prop::collection::vec(net(), 0..12), at in 0u32..1100) {
            let ranges = NetRanges::new(&nets);
            let v4 = IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 | at));
            let v6 = IpAddr::V6(std::net::Ipv6Addr::from((0xfd00u128 << 112) | u128::from(at)));
            for address in [v4, v6] {
                prop_assert_eq!(ranges.contains(address), nets.iter().any(|net| net.contains(&address)));
            }
            prop_assert!(ranges.v4.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            prop_assert!(ranges.v6.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        }
    }

    #[test]
    fn ranges_contain_the_ends_of_the_address_space() {
        let all = NetRanges::new(&["0.0.0.0/0".parse().unwrap(), "255.255.255.255/32".parse().unwrap()]);
        assert!(all.contains("0.0.0.0".parse().unwrap()) && all.contains("255.255.255.255".parse().unwrap()));
        assert!(!all.contains("::".parse().unwrap()));
        let all = NetRanges::new(&["::/0".parse().unwrap(), "ffff::/16".parse().unwrap()]);
        assert!(all.contains("::".parse().unwrap()) && all.contains("ffff:ffff::1".parse().unwrap()));
        assert_eq!(all.v6.len(), 1);
        assert!(!NetRanges::default().contains("1.2.3.4".parse().unwrap()));
    }
}
