//! What releasing does to one block. Pure.

use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_model::ipam::{AllocationAttribute, Block};

/// Addresses that Windows hosts keep for themselves do not make a block used.
const WINDOWS_RESERVED: &str = "windows-reserved-ipam-handle";
const NODE: &str = "node";

/// The ordinals of those addresses that are in use by the node, or by nobody in particular.
pub fn held_by(block: &Block, node: &str, addresses: &BTreeSet<IpAddr>) -> BTreeSet<u32> {
    let ordinals = addresses.iter().filter_map(|address| ordinal(block, *address));
    ordinals
        .filter(|ordinal| {
            attribute(block, *ordinal).is_some_and(|attribute| {
                attribute.released_at.is_none()
                    && attribute.secondary.get(NODE).is_none_or(|name| name == node)
            })
        })
        .collect()
}

/// Sets the addresses free, or lets them cool down first; how many each handle lost.
pub fn release(
    block: &mut Block,
    ordinals: &BTreeSet<u32>,
    now: Timestamp,
    cooldown: Duration,
) -> BTreeMap<String, i64> {
    let mut handles = BTreeMap::new();
    for attribute in ordinals.iter().filter_map(|ordinal| attribute(block, *ordinal)) {
        if let Some(handle) = attribute.handle() {
            *handles.entry(handle.to_owned()).or_insert(0) += 1;
        }
    }
    let released = u32::try_from(block.attributes.len()).unwrap_or(u32::MAX);
    block.attributes.push(AllocationAttribute { released_at: Some(now), ..Default::default() });
    for ordinal in ordinals {
        if let Some(slot) = slot(block, *ordinal) {
            *slot = Some(released);
        }
    }
    collect_cold(block, now, cooldown);
    block.sequence_number = block.sequence_number.wrapping_add(1);
    handles
}

/// Takes the block from its owner.
pub fn disown(block: &mut Block) {
    block.affinity = None;
    block.affinity_claim_time = None;
    block.sequence_number = block.sequence_number.wrapping_add(1);
}

/// Whether no address is in use or cooling down.
pub fn is_empty(block: &Block) -> bool {
    (0..).zip(&block.allocations).all(|(ordinal, slot)| {
        slot.is_none()
            || attribute(block, ordinal).is_some_and(|attribute| attribute.handle() == Some(WINDOWS_RESERVED))
    })
}

/// Frees addresses that have cooled down, and drops records nothing points to any more.
fn collect_cold(block: &mut Block, now: Timestamp, cooldown: Duration) {
    let is_cold = |attribute: &AllocationAttribute| {
        attribute.released_at.is_some_and(|released| {
            // Stored times are whole seconds: without a cooldown the same second must do.
            cooldown.is_zero() || released.checked_add(cooldown).is_ok_and(|cold| cold < now)
        })
    };
    let cold: BTreeSet<u32> = (0..)
        .zip(&block.attributes)
        .filter(|(_, attribute)| is_cold(attribute))
        .map(|(index, _)| index)
        .collect();
    for (ordinal, slot) in (0..).zip(block.allocations.iter_mut()) {
        if slot.is_some_and(|index| cold.contains(&index)) {
            *slot = None;
            block.unallocated.push(ordinal);
            block.sequence_number_for_allocation.remove(&ordinal);
        }
    }
    renumber(block);
}

fn renumber(block: &mut Block) {
    let used: BTreeSet<u32> = block.allocations.iter().flatten().copied().collect();
    let new_index: BTreeMap<u32, u32> = used.iter().copied().zip(0..).collect();
    let mut index = 0;
    block.attributes.retain(|_| {
        let keep = used.contains(&index);
        index += 1;
        keep
    });
    for index in block.allocations.iter_mut().flatten() {
        if let Some(new) = new_index.get(index) {
            *index = *new;
        }
    }
}

fn ordinal(block: &Block, address: IpAddr) -> Option<u32> {
    let offset = match (block.cidr.network(), address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => u128::from(u32::from(address).checked_sub(first.into())?),
        (IpAddr::V6(first), IpAddr::V6(address)) => u128::from(address).checked_sub(first.into())?,
        _ => return None,
    };
    u32::try_from(offset)
        .ok()
        .filter(|offset| usize::try_from(*offset).is_ok_and(|n| n < block.allocations.len()))
}

fn slot(block: &mut Block, ordinal: u32) -> Option<&mut Option<u32>> {
    block.allocations.get_mut(usize::try_from(ordinal).ok()?)
}

fn attribute(block: &Block, ordinal: u32) -> Option<&AllocationAttribute> {
    let index = block.allocations.get(usize::try_from(ordinal).ok()?).copied().flatten()?;
    block.attributes.get(usize::try_from(index).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn block() -> Block {
        serde_json::from_value(json!({
            "cidr": "10.65.3.8/29", "affinity": "host:n1", "affinity_claim_time": "2026-03-01T10:20:30Z",
            "allocations": [0, null, 1, 2, 1, null, null, null], "unallocated": [5, 6, 7, 1],
            "attributes": [
                {"handle_id": "pod-a", "secondary": {"node": "n1", "pod": "a"}},
                {"handle_id": "pod-b\r\ngarbage", "secondary": {"node": "n2", "pod": "b"}},
                {"releasedAt": "2026-03-01T11:00:00Z"},
            ],
            "sequenceNumber": 1_772_360_430_123_456_793_u64,
            "sequenceNumberForAllocation": {"0": 1, "2": 2, "3": 3, "4": 4}, "deleted": false,
        }))
        .unwrap()
    }

    fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    const LATER: &str = "2026-03-01T11:00:10Z";

    #[test]
    fn only_the_nodes_own_addresses_count() {
        let all = addresses(&["10.65.3.8", "10.65.3.9", "10.65.3.10", "10.65.3.11", "10.65.3.16", "fd00::8"]);
        assert_eq!(held_by(&block(), "n1", &all), BTreeSet::from([0]));
        assert_eq!(held_by(&block(), "n2", &all), BTreeSet::from([2]));
    }

    #[test]
    fn without_cooldown_addresses_are_free_at_once() {
        let mut block = block();
        let before = block.sequence_number;
        let lost = release(&mut block, &BTreeSet::from([2, 4]), LATER.parse().unwrap(), Duration::ZERO);
        assert_eq!(lost, BTreeMap::from([("pod-b".to_owned(), 2)]));
        assert_eq!(block.allocations, [Some(0), None, None, None, None, None, None, None]);
        // What was cooling down went with them.
        assert_eq!(block.unallocated, [5, 6, 7, 1, 2, 3, 4]);
        assert_eq!(block.attributes.len(), 1);
        assert_eq!(block.sequence_number_for_allocation, BTreeMap::from([(0, 1)]));
        assert_eq!(block.sequence_number, before + 1);
        release(&mut block, &BTreeSet::from([0]), LATER.parse().unwrap(), Duration::ZERO);
        assert!(is_empty(&block) && block.attributes.is_empty());
    }

    #[test]
    fn with_cooldown_addresses_wait() {
        let mut block = block();
        release(&mut block, &BTreeSet::from([0]), LATER.parse().unwrap(), Duration::from_secs(30));
        assert_eq!(block.allocations[0], Some(2));
        assert_eq!(block.attributes[2].released_at, Some(LATER.parse().unwrap()));
        assert_eq!(block.attributes[2].handle_id, None);
        assert_eq!(block.unallocated, [5, 6, 7, 1]);
        assert!(!is_empty(&block));
    }

    #[test]
    fn damaged_blocks_do_no_harm() {
        let mut block = block();
        block.allocations[0] = Some(99);
        assert!(held_by(&block, "n1", &addresses(&["10.65.3.8"])).is_empty());
        release(&mut block, &BTreeSet::from([0, 500]), LATER.parse().unwrap(), Duration::ZERO);
        assert!(!is_empty(&block));
    }

    #[test]
    fn addresses_windows_keeps_do_not_count() {
        let mut block = block();
        block.allocations = vec![Some(0), None];
        block.attributes =
            vec![AllocationAttribute { handle_id: Some(WINDOWS_RESERVED.to_owned()), ..Default::default() }];
        assert!(is_empty(&block));
    }
}
