//! Selection of a block in a pool: the position at which a host starts, and the next free block from there.
//!
//! The search is circular from a start that depends on the host, so that hosts rarely compete for the same block.
//! Existing blocks are sorted once and skipped as ranges, so the cost depends on the number of existing blocks, not on
//! the size of the pool.

use crate::pool::AllocationPool;
use crate::reservation::ReservedRanges;
use crate::space;
use ipnet::IpNet;

/// Returns the 32-bit FNV-1 hash of a host name, which seeds the search.
pub fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

/// Returns the index at which the search starts in a pool of `count` blocks.
pub fn start(seed: u64, count: u128) -> u128 {
    if count == 0 {
        return 0;
    }
    let high = u128::from(splitmix(seed));
    let low = u128::from(splitmix(seed ^ 0x9e37_79b9_7f4a_7c15));
    ((high << 64) | low) % count
}

/// Returns the seed of a host's search in a pool. With blocks of a single address, affinity has no value and the time
/// is mixed in to spread the hosts.
pub fn seed(host: &str, pool: &AllocationPool, nanoseconds: i128) -> u64 {
    if pool.block_prefix == pool.cidr.max_prefix_len() {
        (nanoseconds as u64) ^ u64::from(fnv1(host))
    } else {
        u64::from(fnv1(host))
    }
}

/// Returns the first block of the pool that neither exists nor is entirely reserved.
pub fn unclaimed<'a>(
    pool: &AllocationPool,
    existing: impl IntoIterator<Item = &'a IpNet>,
    reservations: &ReservedRanges,
    start: u128,
) -> Option<IpNet> {
    let count = pool.block_count();
    let start = if start < count { start } else { 0 };
    let existing =
        existing.into_iter().filter_map(|net| space::block_span(&pool.cidr, pool.block_prefix, net));
    let mut taken: Vec<(u128, u128)> = existing.chain(list_reserved_spans(pool, reservations)).collect();
    taken.sort_unstable();
    let index = find_first_gap(&taken, start, count).or_else(|| find_first_gap(&taken, 0, start))?;
    space::nth_block(&pool.cidr, pool.block_prefix, index)
}

/// Returns the blocks of a pool in search order.
pub fn in_order<'a, T>(
    pool: &AllocationPool,
    blocks: &'a [T],
    cidr: impl Fn(&T) -> &IpNet,
    start: u128,
) -> Vec<&'a T> {
    let count = pool.block_count();
    let mut found: Vec<(u128, &T)> = blocks
        .iter()
        .filter_map(|block| {
            let (index, _) = space::block_span(&pool.cidr, pool.block_prefix, cidr(block))?;
            let distance = if index >= start { index - start } else { index.saturating_add(count - start) };
            Some((distance, block))
        })
        .collect();
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().map(|(_, block)| block).collect()
}

/// Returns the index ranges of blocks that are entirely reserved.
fn list_reserved_spans(pool: &AllocationPool, reservations: &ReservedRanges) -> Vec<(u128, u128)> {
    let (pool_first, pool_last) = space::bounds(&pool.cidr);
    let shift = u32::from(pool.cidr.max_prefix_len().saturating_sub(pool.block_prefix));
    let block = 1u128.checked_shl(shift).unwrap_or(u128::MAX);
    reservations
        .within(&pool.cidr)
        .filter_map(|(first, last)| {
            let from = first.max(pool_first) - pool_first;
            let begin = from.checked_add(block - 1)? >> shift;
            let end = last.min(pool_last).checked_sub(pool_first)?.checked_add(1)? >> shift;
            (begin < end).then(|| (begin, end - 1))
        })
        .collect()
}

/// Returns the first number in `from..until` that no span covers. Spans are sorted.
fn find_first_gap(taken: &[(u128, u128)], from: u128, until: u128) -> Option<u128> {
    let mut next = from;
    for &(begin, end) in taken {
        if begin > next {
            break;
        }
        if end >= next {
            next = end.checked_add(1)?;
        }
    }
    (next < until).then_some(next)
}

fn splitmix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pool(cidr: &str, size: u8) -> AllocationPool {
        crate::pool::from_json(json!({"spec": {"cidr": cidr, "blockSize": size}})).unwrap()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn the_seed_is_the_one_others_use() {
        assert_eq!(fnv1("rack1-n7"), 3_427_547_347);
        assert_eq!(fnv1(""), 0x811c_9dc5);
    }

    #[test]
    fn each_host_has_its_own_constant_start() {
        let starts: std::collections::BTreeSet<u128> =
            (0..100).map(|n| start(u64::from(fnv1(&format!("node-{n}"))), 1 << 74)).collect();
        assert_eq!(starts.len(), 100);
        assert_eq!(start(7, 1), 0);
        assert_eq!(start(7, 0), 0);
        assert_eq!(start(7, 1000), start(7, 1000));
    }

    #[test]
    fn the_walk_goes_round() {
        let pool = pool("10.0.0.0/24", 26);
        let none = ReservedRanges::default();
        let existing = [net("10.0.0.128/26"), net("10.0.0.192/26")];
        assert_eq!(unclaimed(&pool, &existing, &none, 2), Some(net("10.0.0.0/26")));
        assert_eq!(unclaimed(&pool, &existing, &none, 1), Some(net("10.0.0.64/26")));
        let reserved = ReservedRanges::new([net("10.0.0.0/27"), net("10.0.0.32/27")]);
        assert_eq!(unclaimed(&pool, &existing, &reserved, 2), Some(net("10.0.0.64/26")));
        let all = ReservedRanges::new([net("10.0.0.0/25")]);
        assert_eq!(unclaimed(&pool, &existing, &all, 2), None);
    }

    #[test]
    fn a_vast_pool_is_not_walked() {
        let pool = pool("fd00::/32", 122);
        let start = start(1, pool.block_count());
        let first = unclaimed(&pool, &[], &ReservedRanges::default(), start).unwrap();
        let second = unclaimed(&pool, &[first], &ReservedRanges::default(), start).unwrap();
        assert!(pool.cidr.contains(&first) && pool.cidr.contains(&second) && first != second);
    }

    #[test]
    fn blocks_come_in_the_order_of_the_walk() {
        let pool = pool("10.0.0.0/24", 26);
        let blocks = [net("10.0.0.0/26"), net("10.0.0.192/26"), net("10.1.0.0/26"), net("10.0.0.64/26")];
        let ordered: Vec<String> =
            in_order(&pool, &blocks, |net| net, 1).into_iter().map(ToString::to_string).collect();
        assert_eq!(ordered, ["10.0.0.64/26", "10.0.0.192/26", "10.0.0.0/26"]);
    }

    proptest! {
        #[test]
        fn the_first_gap_equals_that_of_a_walk(
            taken in proptest::collection::btree_set(0u128..64, 0..64),
            reserved in proptest::collection::vec(0u32..1024, 0..8),
            start in 0u128..64,
        ) {
            let pool = pool("10.0.0.0/22", 28);
            let existing: Vec<IpNet> =
                taken.iter().map(|index| space::nth_block(&pool.cidr, 28, *index).unwrap()).collect();
            let reservations = ReservedRanges::new(reserved.iter().map(|offset| {
                let length = 20 + (offset % 12) as u8;
                IpNet::new(space::address(&pool.cidr, *offset).unwrap(), length).unwrap().trunc()
            }));
            let walked = (0..64)
                .map(|step| (start + step) % 64)
                .filter(|index| !taken.contains(index))
                .filter_map(|index| space::nth_block(&pool.cidr, 28, index))
                .find(|block| !reservations.covers(block));
            prop_assert_eq!(unclaimed(&pool, &existing, &reservations, start), walked);
        }
    }
}
