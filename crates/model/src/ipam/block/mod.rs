//! Operations on one IPAM block: allocating and releasing addresses, and ending the cooldown of released
//! ones.
//!
//! Blocks come from a store that other programs write too. No block content makes this code panic, and an
//! address is allocated only if the block records it as free twice: by an empty allocation and by its entry
//! in the queue of free addresses.

use super::owner::{AddressHolder, BlockOwner, HostReserved, WINDOWS_RESERVED_HANDLE, attribute};
use super::reservation::ReservedRanges;
use super::{AddressBlock, AllocationAttribute, space};
use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Map;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Reasons why an operation on a block failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("{address} is not in the block")]
    NotInBlock { address: IpAddr },
    #[error("resource already exists: {address} with error: the address is already assigned")]
    AlreadyAssigned { address: IpAddr },
    #[error(
        "update conflict: {address}: its allocation has sequence number {found}, the request was for {given}"
    )]
    BadSequenceNumber { address: IpAddr, found: u64, given: u64 },
    #[error("update conflict: {address}: it belongs to handle '{found}', the request was for '{given}'")]
    BadHandle { address: IpAddr, found: String, given: String },
}

/// One allocated address, as a block records it.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressAllocation<'a> {
    pub address: IpAddr,
    pub block: &'a AddressBlock,
    /// Absent if the block is corrupt.
    pub record: Option<&'a AllocationAttribute>,
    pub sequence_number: u64,
}

/// An address to release, with optional preconditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    pub address: IpAddr,
    /// Release the address only if it belongs to this handle.
    pub handle: Option<String>,
    /// Release the address only if it was allocated by the write with this sequence number.
    pub sequence_number: Option<u64>,
}

impl ReleaseRequest {
    pub fn of(address: IpAddr) -> ReleaseRequest {
        ReleaseRequest { address, handle: None, sequence_number: None }
    }
}

impl AddressAllocation<'_> {
    pub fn handle(&self) -> Option<&str> {
        self.record.and_then(AllocationAttribute::handle)
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.record.and_then(|record| record.secondary.get(name)).map(String::as_str)
    }

    pub fn is_cooling_down(&self) -> bool {
        self.record.is_some_and(|record| record.released_at.is_some())
    }
}

/// The result of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseResult {
    pub addresses: Vec<IpAddr>,
    /// Addresses of the request that are free, cooling down, or not in the block at all.
    pub unallocated: Vec<IpAddr>,
    /// The number of addresses released per handle.
    pub handles: BTreeMap<String, u32>,
}

/// Returns a newly claimed block in which everything is free except the addresses that the host reserves for
/// itself.
pub fn fresh(
    cidr: IpNet,
    owner: &BlockOwner,
    reserved: Option<&HostReserved>,
    now: Timestamp,
) -> AddressBlock {
    let size = u32::try_from(space::size(&cidr)).unwrap_or(u32::MAX);
    let mut block = AddressBlock {
        cidr,
        affinity: Some(owner.to_string()),
        affinity_claim_time: Some(whole_seconds(now)),
        allocations: vec![None; size as usize],
        unallocated: (0..size).collect(),
        attributes: Vec::new(),
        sequence_number: u64::try_from(now.as_nanosecond()).unwrap_or(0),
        sequence_number_for_allocation: BTreeMap::new(),
        deleted: false,
        other: Map::new(),
    };
    if let Some(reserved) = reserved {
        let note = BTreeMap::from([(attribute::NOTE_ATTRIBUTE.to_owned(), reserved.note.clone())]);
        let holder = AddressHolder::new(Some(&reserved.handle), note);
        let kept: Vec<u32> = (0..size).filter(|n| *n < reserved.first || size - n <= reserved.last).collect();
        hand_out(&mut block, &kept, &holder);
    }
    block
}

/// Frees addresses that were released longer ago than the cooldown, and removes unreferenced attribute
/// records.
pub fn thaw(block: &mut AddressBlock, cooldown_seconds: u32, now: Timestamp) {
    let cooldown = jiff::SignedDuration::from_secs(i64::from(cooldown_seconds));
    for ordinal in 0..block.allocations.len() {
        let record = block.allocations[ordinal].and_then(|index| block.attributes.get(index as usize));
        let released_at = record.and_then(|record| record.released_at);
        if released_at.is_some_and(|at| cooldown.is_zero() || now.duration_since(at) > cooldown) {
            let ordinal_number = ordinal as u32;
            block.allocations[ordinal] = None;
            block.unallocated.push(ordinal_number);
            block.sequence_number_for_allocation.remove(&ordinal_number);
        }
    }
    forget_unused_records(block);
}

/// Returns the number of addresses that can be allocated now.
pub fn free(block: &AddressBlock, reservations: &ReservedRanges) -> usize {
    block.unallocated.iter().filter(|ordinal| is_available(block, **ordinal, reservations)).count()
}

/// Returns whether the block has no allocations other than the host's reserved addresses. Addresses that are
/// cooling down count as allocated.
pub fn is_empty(block: &AddressBlock) -> bool {
    block.allocations.iter().flatten().all(|index| {
        block
            .attributes
            .get(*index as usize)
            .is_some_and(|record| record.handle() == Some(WINDOWS_RESERVED_HANDLE))
    })
}

pub fn belongs_to(block: &AddressBlock, owner: &BlockOwner) -> bool {
    block.owner() == Some((owner.affinity, owner.name.as_str()))
}

/// Allocates up to `count` addresses from the head of the queue, skipping reserved ones.
pub fn allocate(
    block: &mut AddressBlock,
    count: usize,
    holder: &AddressHolder,
    reservations: &ReservedRanges,
) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    let free = block.unallocated.iter().copied();
    let free = free.filter(|ordinal| is_available(block, *ordinal, reservations) && seen.insert(*ordinal));
    let ordinals: Vec<u32> = free.take(count).collect();
    hand_out(block, &ordinals, holder)
}

/// Allocates this address, even if it is reserved.
pub fn allocate_address(
    block: &mut AddressBlock,
    address: IpAddr,
    holder: &AddressHolder,
) -> Result<(), BlockError> {
    let ordinal = space::ordinal(&block.cidr, address).ok_or(BlockError::NotInBlock { address })?;
    let free = block.allocations.get(ordinal as usize).is_some_and(Option::is_none)
        && block.unallocated.contains(&ordinal);
    if !free {
        return Err(BlockError::AlreadyAssigned { address });
    }
    hand_out(block, &[ordinal], holder);
    Ok(())
}

/// Releases addresses: all of them if every precondition holds, otherwise none.
pub fn release(
    block: &mut AddressBlock,
    wanted: &[ReleaseRequest],
    now: Timestamp,
) -> Result<ReleaseResult, BlockError> {
    let mut released = ReleaseResult::default();
    let mut ordinals = BTreeSet::new();
    for ReleaseRequest { address, handle, sequence_number } in wanted {
        let ordinal = space::ordinal(&block.cidr, *address);
        let record = ordinal.and_then(|ordinal| record_of(block, ordinal));
        if let Some(given) = *sequence_number {
            let found = ordinal.and_then(|ordinal| block.sequence_number_for_allocation.get(&ordinal));
            let found = found.copied().unwrap_or(0);
            if found != given {
                return Err(BlockError::BadSequenceNumber { address: *address, found, given });
            }
        }
        let (Some(ordinal), Some(record)) = (ordinal, record.filter(|r| r.released_at.is_none())) else {
            released.unallocated.push(*address);
            continue;
        };
        let found = record.handle().unwrap_or_default();
        if let Some(given) = handle.as_deref()
            && given != found
        {
            return Err(BlockError::BadHandle {
                address: *address,
                found: found.to_owned(),
                given: given.to_owned(),
            });
        }
        if ordinals.insert(ordinal) {
            released.addresses.push(*address);
            if !found.is_empty() {
                *released.handles.entry(found.to_owned()).or_default() += 1;
            }
        }
    }
    cool_down(block, &ordinals, now);
    Ok(released)
}

/// Releases every address of a handle.
pub fn release_handle(block: &mut AddressBlock, handle: &str, now: Timestamp) -> Vec<IpAddr> {
    let ordinals: BTreeSet<u32> = held_by(block, handle).collect();
    cool_down(block, &ordinals, now);
    ordinals.into_iter().filter_map(|ordinal| space::address(&block.cidr, ordinal)).collect()
}

/// Returns every allocated address of a block, including those that are cooling down.
pub fn allocations(block: &AddressBlock) -> impl Iterator<Item = AddressAllocation<'_>> {
    (0u32..).zip(&block.allocations).filter_map(|(ordinal, index)| {
        Some(AddressAllocation {
            address: space::address(&block.cidr, ordinal)?,
            block,
            record: block.attributes.get((*index)? as usize).map(Arc::as_ref),
            sequence_number: block.sequence_number_for_allocation.get(&ordinal).copied().unwrap_or(0),
        })
    })
}

/// Returns the inconsistencies of a block.
pub fn faults(block: &AddressBlock, now: Timestamp) -> Vec<String> {
    let mut faults = Vec::new();
    let size = space::size(&block.cidr);
    if block.allocations.len() as u128 != size {
        faults.push(format!("has {} allocations for {size} addresses", block.allocations.len()));
    }
    let mut used = BTreeSet::new();
    for (ordinal, index) in block.allocations.iter().enumerate() {
        let Some(index) = *index else { continue };
        if index as usize >= block.attributes.len() {
            faults.push(format!("allocation {ordinal} refers to attribute {index}, which does not exist"));
        }
        used.insert(index as usize);
    }
    for (index, record) in block.attributes.iter().enumerate() {
        if !used.contains(&index) {
            faults.push(format!("attribute {index} is not referred to"));
        }
        if record.released_at.is_some_and(|at| at > now) {
            faults.push(format!("attribute {index} was released in the future"));
        }
    }
    let mut free = BTreeSet::new();
    for ordinal in &block.unallocated {
        if !free.insert(*ordinal) {
            faults.push(format!("ordinal {ordinal} is twice in the list of free addresses"));
        }
        match block.allocations.get(*ordinal as usize) {
            None => faults.push(format!("free ordinal {ordinal} is out of range")),
            Some(Some(_)) => faults.push(format!("ordinal {ordinal} is both free and allocated")),
            Some(None) => {}
        }
    }
    let allocated = block.allocations.iter().flatten().count();
    if (allocated + block.unallocated.len()) as u128 != size {
        faults.push(format!(
            "{allocated} allocated and {} free do not make {size} addresses",
            block.unallocated.len()
        ));
    }
    faults
}

/// Returns the addresses of a handle.
pub fn addresses_of(block: &AddressBlock, handle: &str) -> Vec<IpAddr> {
    held_by(block, handle).filter_map(|ordinal| space::address(&block.cidr, ordinal)).collect()
}

/// Returns the attribute record of an address, including addresses that are cooling down.
pub fn record(block: &AddressBlock, address: IpAddr) -> Option<&AllocationAttribute> {
    record_of(block, space::ordinal(&block.cidr, address)?)
}

/// Increments the sequence number. Call once before each write except the first.
pub fn advance(block: &mut AddressBlock) {
    block.sequence_number = block.sequence_number.wrapping_add(1);
}

/// Removes the affinity of the block; the allocations stay.
pub fn disown(block: &mut AddressBlock) {
    block.affinity = None;
    block.affinity_claim_time = None;
}

fn held_by<'a>(block: &'a AddressBlock, handle: &'a str) -> impl Iterator<Item = u32> + 'a {
    (0u32..).zip(&block.allocations).filter_map(move |(ordinal, index)| {
        let record = block.attributes.get((*index)? as usize)?;
        (record.released_at.is_none() && record.handle() == Some(handle)).then_some(ordinal)
    })
}

fn record_of(block: &AddressBlock, ordinal: u32) -> Option<&AllocationAttribute> {
    let index = (*block.allocations.get(ordinal as usize)?)?;
    block.attributes.get(index as usize).map(Arc::as_ref)
}

fn is_available(block: &AddressBlock, ordinal: u32, reservations: &ReservedRanges) -> bool {
    block.allocations.get(ordinal as usize).is_some_and(Option::is_none)
        && space::address(&block.cidr, ordinal).is_some_and(|address| !reservations.contains(address))
}

fn hand_out(block: &mut AddressBlock, ordinals: &[u32], holder: &AddressHolder) -> Vec<IpAddr> {
    if ordinals.is_empty() {
        return Vec::new();
    }
    let taken: BTreeSet<u32> = ordinals.iter().copied().collect();
    block.unallocated.retain(|ordinal| !taken.contains(ordinal));
    let index = record_index(
        block,
        AllocationAttribute {
            handle_id: holder.handle.clone(),
            secondary: holder.attributes.clone(),
            ..AllocationAttribute::default()
        },
    );
    let cidr = block.cidr;
    for ordinal in taken {
        if let Some(allocation) = block.allocations.get_mut(ordinal as usize) {
            *allocation = Some(index);
            block.sequence_number_for_allocation.insert(ordinal, block.sequence_number);
        }
    }
    ordinals.iter().filter_map(|ordinal| space::address(&cidr, *ordinal)).collect()
}

fn cool_down(block: &mut AddressBlock, ordinals: &BTreeSet<u32>, now: Timestamp) {
    if ordinals.is_empty() {
        return;
    }
    let cooling =
        AllocationAttribute { released_at: Some(whole_seconds(now)), ..AllocationAttribute::default() };
    let index = record_index(block, cooling);
    for ordinal in ordinals {
        if let Some(allocation) = block.allocations.get_mut(*ordinal as usize) {
            *allocation = Some(index);
        }
    }
    forget_unused_records(block);
}

/// Returns the index of this record, appending the record if no equal one exists.
fn record_index(block: &mut AddressBlock, record: AllocationAttribute) -> u32 {
    let found = block.attributes.iter().position(|other| **other == record);
    let index = found.unwrap_or_else(|| {
        block.attributes.push(Arc::new(record));
        block.attributes.len() - 1
    });
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn forget_unused_records(block: &mut AddressBlock) {
    let mut used = vec![false; block.attributes.len()];
    for index in block.allocations.iter().flatten() {
        if let Some(used) = used.get_mut(*index as usize) {
            *used = true;
        }
    }
    if used.iter().all(|used| *used) {
        return;
    }
    let mut places = Vec::with_capacity(used.len());
    let mut kept = Vec::new();
    for (record, used) in std::mem::take(&mut block.attributes).into_iter().zip(used) {
        places.push(kept.len() as u32);
        if used {
            kept.push(record);
        }
    }
    block.attributes = kept;
    for index in block.allocations.iter_mut().flatten() {
        // An index beyond the records stays out of range: the block is corrupt and must remain recognisable
        // as such.
        *index = places.get(*index as usize).copied().unwrap_or(u32::MAX);
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
