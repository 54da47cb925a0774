//! Address arithmetic: the block of an address, the address of an ordinal, the number of blocks in a pool.
//!
//! All computations use 128 bits for both families, so that large IPv6 networks need no special case.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the IP version: 4 or 6.
pub fn version(net: &IpNet) -> u8 {
    match net {
        IpNet::V4(_) => 4,
        IpNet::V6(_) => 6,
    }
}

pub fn version_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

/// Returns the number of addresses in a network; for the whole of IPv6 one less than the true number.
pub fn size(net: &IpNet) -> u128 {
    1u128.checked_shl(u32::from(net.max_prefix_len() - net.prefix_len())).unwrap_or(u128::MAX)
}

/// Returns the address as a number.
pub fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn from_bits(bits: u128, like: &IpNet) -> Option<IpAddr> {
    match like {
        IpNet::V4(_) => u32::try_from(bits).ok().map(|bits| IpAddr::V4(Ipv4Addr::from(bits))),
        IpNet::V6(_) => Some(IpAddr::V6(Ipv6Addr::from(bits))),
    }
}

/// Returns the first and last address as numbers.
pub fn bounds(net: &IpNet) -> (u128, u128) {
    (bits(net.network()), bits(net.broadcast()))
}

/// Returns the offset of an address from the first address of its block.
pub fn ordinal(block: &IpNet, address: IpAddr) -> Option<u32> {
    if !block.contains(&address) {
        return None;
    }
    bits(address).checked_sub(bits(block.network())).and_then(|offset| u32::try_from(offset).ok())
}

/// Returns the address at an offset from the first address of its block.
pub fn address(block: &IpNet, ordinal: u32) -> Option<IpAddr> {
    let ordinal = u128::from(ordinal);
    if ordinal >= size(block) {
        return None;
    }
    bits(block.network()).checked_add(ordinal).and_then(|bits| from_bits(bits, block))
}

/// Returns the single-address network of an address.
pub fn host_net(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Returns the network of the given prefix length that contains an address.
pub fn block_of(address: IpAddr, block_prefix: u8) -> Option<IpNet> {
    IpNet::new(address, block_prefix).ok().map(|net| net.trunc())
}

/// Returns the number of blocks in a pool; 0 if a block would be larger than the pool.
pub fn block_count(pool: &IpNet, block_prefix: u8) -> u128 {
    match block_prefix.checked_sub(pool.prefix_len()) {
        Some(bits) if block_prefix <= pool.max_prefix_len() => {
            1u128.checked_shl(u32::from(bits)).unwrap_or(u128::MAX)
        }
        _ => 0,
    }
}

/// Returns the block at an index in its pool.
pub fn nth_block(pool: &IpNet, block_prefix: u8, index: u128) -> Option<IpNet> {
    if index >= block_count(pool, block_prefix) {
        return None;
    }
    let shift = u32::from(pool.max_prefix_len().checked_sub(block_prefix)?);
    let offset = if shift >= 128 { 0 } else { index << shift };
    let first = from_bits(bits(pool.network()).checked_add(offset)?, pool)?;
    IpNet::new(first, block_prefix).ok()
}

/// Returns the first and last block index of a pool that a network covers. A network whose size differs from
/// the pool's block size covers several indexes or shares one with others.
pub fn block_span(pool: &IpNet, block_prefix: u8, net: &IpNet) -> Option<(u128, u128)> {
    if version(pool) != version(net) || block_count(pool, block_prefix) == 0 {
        return None;
    }
    let (pool_first, pool_last) = bounds(pool);
    let (first, last) = bounds(net);
    if last < pool_first || first > pool_last {
        return None;
    }
    let shift = u32::from(pool.max_prefix_len().checked_sub(block_prefix)?);
    let bounds = [first.max(pool_first), last.min(pool_last)];
    let [first, last] = bounds.map(|bits| (bits - pool_first).checked_shr(shift).unwrap_or(0));
    Some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn sizes() {
        assert_eq!(size(&net("10.0.0.0/26")), 64);
        assert_eq!(size(&net("10.0.0.0/32")), 1);
        assert_eq!(size(&net("fd00::/122")), 64);
        assert_eq!(size(&net("::/0")), u128::MAX);
        assert_eq!(block_count(&net("10.0.0.0/8"), 26), 262_144);
        assert_eq!(block_count(&net("fd00::/48"), 122), 1 << 74);
        assert_eq!(block_count(&net("10.0.0.0/28"), 26), 0);
        assert_eq!(block_count(&net("10.0.0.0/28"), 60), 0);
        assert_eq!(block_count(&net("::/0"), 128), u128::MAX);
    }

    #[test]
    fn ordinals_and_addresses() {
        let block = net("10.65.3.64/26");
        assert_eq!(ordinal(&block, "10.65.3.70".parse().unwrap()), Some(6));
        assert_eq!(ordinal(&block, "10.65.3.63".parse().unwrap()), None);
        assert_eq!(ordinal(&block, "fd00::1".parse().unwrap()), None);
        assert_eq!(address(&block, 63), Some("10.65.3.127".parse().unwrap()));
        assert_eq!(address(&block, 64), None);
        assert_eq!(address(&net("255.255.255.255/32"), 0), Some("255.255.255.255".parse().unwrap()));
    }

    #[test]
    fn spans_of_other_sizes() {
        let pool = net("10.0.0.0/24");
        assert_eq!(block_span(&pool, 26, &net("10.0.0.64/26")), Some((1, 1)));
        assert_eq!(block_span(&pool, 26, &net("10.0.0.128/25")), Some((2, 3)));
        assert_eq!(block_span(&pool, 26, &net("10.0.0.200/29")), Some((3, 3)));
        assert_eq!(block_span(&pool, 26, &net("10.0.0.0/8")), Some((0, 3)));
        assert_eq!(block_span(&pool, 26, &net("10.0.1.0/26")), None);
        assert_eq!(block_span(&pool, 26, &net("fd00::/122")), None);
        assert_eq!(block_span(&net("::/0"), 0, &net("::/0")), Some((0, 0)));
    }

    proptest! {
        #[test]
        fn a_block_is_where_its_addresses_say(
            v6 in any::<bool>(), base in any::<u128>(), pool_prefix in 0u8..=128, extra in 0u8..=128, index in any::<u128>(),
        ) {
            let (address, longest) = if v6 {
                (IpAddr::V6(base.into()), 128)
            } else {
                (IpAddr::V4((base as u32).into()), 32)
            };
            let pool_prefix = pool_prefix.min(longest);
            let block_prefix = pool_prefix.saturating_add(extra).min(longest);
            let pool = IpNet::new(address, pool_prefix).unwrap().trunc();
            let index = index % block_count(&pool, block_prefix);
            let block = nth_block(&pool, block_prefix, index).unwrap();
            prop_assert!(pool.contains(&block));
            prop_assert_eq!(block_span(&pool, block_prefix, &block), Some((index, index)));
            prop_assert_eq!(block_of(block.broadcast(), block_prefix), Some(block));
        }
    }
}
