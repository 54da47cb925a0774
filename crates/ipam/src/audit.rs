//! Consistency check of the IPAM data: of each block, and of blocks, handles and addresses in use against each other.

use crate::pool::AllocationPool;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::ipam::block::{allocations, faults};
use tortie_model::ipam::{AddressBlock, AddressHandle};

/// Inconsistencies found. Addresses are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFindings {
    /// Allocated, but not in use by any workload or tunnel.
    pub not_in_use: Vec<IpAddr>,
    /// In use, but not in any enabled pool.
    pub outside_pools: Vec<IpAddr>,
    /// In use and in a pool, but not allocated.
    pub not_allocated: Vec<IpAddr>,
    /// Handles without an address in any block.
    pub leaked_handles: Vec<String>,
    pub matched_handles: usize,
    /// Handles that blocks reference but that do not exist. Not counted as a problem, since releasing works without
    /// them.
    pub missing_handles: Vec<String>,
    /// Faults per block CIDR.
    pub faults: BTreeMap<String, Vec<String>>,
}

impl AuditFindings {
    pub fn problems(&self) -> usize {
        self.not_in_use.len()
            + self.outside_pools.len()
            + self.not_allocated.len()
            + self.leaked_handles.len()
            + self.faults.len()
    }
}

/// Compares blocks, pools, handles and the addresses in use.
pub fn compare(
    blocks: &[AddressBlock],
    pools: &[AllocationPool],
    handles: &BTreeMap<String, AddressHandle>,
    in_use: &BTreeSet<IpAddr>,
    now: Timestamp,
) -> AuditFindings {
    let mut findings = AuditFindings::default();
    let mut allocated = BTreeSet::new();
    let mut named = BTreeSet::new();
    for block in blocks {
        for allocation in allocations(block) {
            allocated.insert(allocation.address);
            named.extend(allocation.handle().filter(|handle| !handle.is_empty()).map(str::to_owned));
            let windows = allocation.handle() == Some(crate::owner::WINDOWS_RESERVED_HANDLE);
            if !in_use.contains(&allocation.address) && !windows && !allocation.is_cooling_down() {
                findings.not_in_use.push(allocation.address);
            }
        }
        let wrong = faults(block, now);
        if !wrong.is_empty() {
            findings.faults.insert(block.cidr.to_string(), wrong);
        }
    }
    findings.not_in_use.sort_unstable();
    for address in in_use.iter().filter(|address| !allocated.contains(address)) {
        match crate::pool::containing(pools, *address, true) {
            Some(_) => findings.not_allocated.push(*address),
            None => findings.outside_pools.push(*address),
        }
    }
    for id in handles.keys() {
        if named.contains(id) {
            findings.matched_handles += 1;
        } else {
            findings.leaked_handles.push(id.clone());
        }
    }
    findings.missing_handles = named.into_iter().filter(|id| !handles.contains_key(id)).collect();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block;
    use crate::owner::{AddressHolder, BlockOwner, HostReserved};
    use crate::reservation::ReservedRanges;
    use std::sync::Arc;

    fn now() -> Timestamp {
        "2026-03-01T10:20:30Z".parse().unwrap()
    }

    fn filled(count: usize) -> AddressBlock {
        let mut block = block::fresh("10.0.0.0/29".parse().unwrap(), &BlockOwner::host("n"), None, now());
        let holder = AddressHolder::new(Some("h"), BTreeMap::new());
        block::allocate(&mut block, count, &holder, &ReservedRanges::default());
        block
    }

    fn broken(spoil: impl FnOnce(&mut AddressBlock)) -> Vec<String> {
        let mut block = filled(2);
        spoil(&mut block);
        faults(&block, now())
    }

    #[test]
    fn a_sound_block_has_no_faults() {
        assert_eq!(broken(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_named() {
        let future: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        for (fault, text) in [
            (broken(|b| b.allocations[0] = Some(5)), "refers to attribute 5"),
            (broken(|b| b.attributes.push(Arc::default())), "attribute 1 is not referred to"),
            (broken(|b| b.unallocated.push(7)), "ordinal 7 is twice"),
            (broken(|b| b.unallocated.push(90)), "free ordinal 90 is out of range"),
            (broken(|b| b.unallocated.push(0)), "ordinal 0 is both free and allocated"),
            (broken(|b| b.unallocated.truncate(1)), "2 allocated and 1 free do not make 8 addresses"),
            (broken(|b| b.allocations.truncate(3)), "has 3 allocations for 8 addresses"),
            (
                broken(|b| Arc::make_mut(&mut b.attributes[0]).released_at = Some(future)),
                "was released in the future",
            ),
        ] {
            assert!(fault.iter().any(|fault| fault.contains(text)), "{text}: {fault:?}");
        }
    }

    #[test]
    fn everything_is_held_against_everything() {
        let pool =
            serde_json::json!({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/24", "blockSize": 29}});
        let pools = [crate::pool::from_json(pool).unwrap()];
        let windows = HostReserved::windows();
        let other =
            block::fresh("10.0.0.8/29".parse().unwrap(), &BlockOwner::host("w"), Some(&windows), now());
        let handles = ["h", "lost"].map(|id| (id.to_owned(), AddressHandle::default()));
        let in_use = ["10.0.0.1", "10.0.0.5", "10.9.0.1"].map(|ip| ip.parse().unwrap());
        let findings =
            compare(&[filled(2), other], &pools, &BTreeMap::from(handles), &BTreeSet::from(in_use), now());
        assert_eq!(findings.not_in_use, ["10.0.0.0".parse::<IpAddr>().unwrap()]);
        assert_eq!(findings.not_allocated, ["10.0.0.5".parse::<IpAddr>().unwrap()]);
        assert_eq!(findings.outside_pools, ["10.9.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(findings.leaked_handles, ["lost"]);
        assert_eq!(findings.matched_handles, 1);
        assert_eq!(findings.missing_handles, ["windows-reserved-ipam-handle"]);
        assert_eq!(findings.problems(), 4);
    }
}
