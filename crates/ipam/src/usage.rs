//! Utilisation of pools and blocks.

use crate::reservation::ReservedRanges;
use crate::{block, space};
use ipnet::IpNet;
use tortie_model::ipam::AddressBlock;

/// Numbers of addresses. Reserved addresses may also be in use; free addresses are neither reserved nor in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressUsage {
    pub total: u128,
    /// Includes addresses in cooldown.
    pub in_use: u128,
    pub reserved: u128,
    pub free: u128,
}

pub fn of_block(block: &AddressBlock, reservations: &ReservedRanges) -> AddressUsage {
    let total = space::size(&block.cidr);
    AddressUsage {
        total,
        in_use: total.saturating_sub(block.unallocated.len() as u128),
        reserved: reservations.count_in(&block.cidr),
        free: block::free(block, reservations) as u128,
    }
}

/// Returns the utilisation of a pool from the blocks in it. Space without blocks counts as free unless it is reserved.
pub fn of_pool<'a>(
    cidr: &IpNet,
    blocks: impl IntoIterator<Item = &'a AddressBlock>,
    reservations: &ReservedRanges,
) -> AddressUsage {
    let total = space::size(cidr);
    let reserved = reservations.count_in(cidr);
    let mut usage = AddressUsage { total, in_use: 0, reserved, free: total.saturating_sub(reserved) };
    for block in blocks {
        let inside = of_block(block, reservations);
        usage.in_use += inside.in_use;
        let open = inside.total.saturating_sub(inside.reserved);
        usage.free = usage.free.saturating_sub(open).saturating_add(inside.free);
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::{AddressHolder, BlockOwner};

    #[test]
    fn pools_count_blocks_and_the_space_between() {
        let now = "2026-03-01T10:20:30Z".parse().unwrap();
        let mut block = block::fresh("10.0.0.0/29".parse().unwrap(), &BlockOwner::host("n"), None, now);
        let none = ReservedRanges::default();
        block::allocate(&mut block, 3, &AddressHolder::default(), &none);
        let reservations =
            ReservedRanges::new(["10.0.0.2/31".parse().unwrap(), "10.0.0.240/28".parse().unwrap()]);
        assert_eq!(
            of_block(&block, &reservations),
            AddressUsage { total: 8, in_use: 3, reserved: 2, free: 4 }
        );
        let pool = "10.0.0.0/24".parse().unwrap();
        assert_eq!(
            of_pool(&pool, [&block], &reservations),
            AddressUsage { total: 256, in_use: 3, reserved: 18, free: 236 }
        );
        let vast = of_pool(&"::/0".parse().unwrap(), [], &none);
        assert_eq!(vast.free, u128::MAX);
    }
}
