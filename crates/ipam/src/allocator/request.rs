//! What is asked of the allocator, and what it answers.

use crate::Error;
use crate::owner::{Holder, HostReserved};
use crate::pool::Use;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Any addresses, so many of each family.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub holder: Holder,
    pub v4: u32,
    pub v6: u32,
    /// Only from these pools; empty for any that suits.
    pub v4_pools: Vec<IpNet>,
    pub v6_pools: Vec<IpNet>,
    pub intended: Use,
    /// Of the namespace the address is for; empty if there is none.
    pub namespace_labels: BTreeMap<String, String>,
    /// The most blocks the host may own, of this family and in these pools.
    pub max_blocks: Option<u32>,
    /// Addresses the host keeps for itself in each block it claims.
    pub reserved: Option<HostReserved>,
    /// The most addresses of one family the handle may have; those it has already count as the answer.
    pub max_per_handle: Option<u32>,
}

/// One address and no other.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecificRequest {
    pub address: IpAddr,
    pub holder: Holder,
    /// The pool must allow this use, if given.
    pub intended: Option<Use>,
    pub reserved: Option<HostReserved>,
    pub max_per_handle: Option<u32>,
}

/// The answer for one family. Fewer addresses than asked for is not an error: the caller decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    pub version: u8,
    pub requested: u32,
    /// With the prefix length of the block.
    pub addresses: Vec<IpNet>,
    /// Why there are not more.
    pub messages: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    pub v4: Assigned,
    pub v6: Assigned,
}

/// A request that failed, perhaps after some addresses had been assigned: they are the caller's to give back.
#[derive(Debug)]
pub struct AssignError {
    pub error: Error,
    pub assigned: Assignments,
}

impl Request {
    /// For a workload, from any pool that suits.
    pub fn new(holder: Holder, v4: u32, v6: u32) -> Request {
        Request {
            holder,
            v4,
            v6,
            v4_pools: Vec::new(),
            v6_pools: Vec::new(),
            intended: Use::Workload,
            namespace_labels: BTreeMap::new(),
            max_blocks: None,
            reserved: None,
            max_per_handle: None,
        }
    }

    pub(super) fn count(&self, version: u8) -> u32 {
        if version == 4 { self.v4 } else { self.v6 }
    }

    pub(super) fn pools(&self, version: u8) -> &[IpNet] {
        if version == 4 { &self.v4_pools } else { &self.v6_pools }
    }
}

impl SpecificRequest {
    pub fn new(address: IpAddr, holder: Holder) -> SpecificRequest {
        SpecificRequest { address, holder, intended: None, reserved: None, max_per_handle: None }
    }
}

impl Assigned {
    pub(super) fn new(version: u8, requested: u32) -> Assigned {
        Assigned { version, requested, ..Assigned::default() }
    }

    pub fn missing(&self) -> u32 {
        let have = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        self.requested.saturating_sub(have)
    }

    /// What to tell the user when there are fewer addresses than asked for.
    pub fn shortfall(&self) -> Option<String> {
        (self.missing() > 0).then(|| {
            format!(
                "Assigned {} out of {} requested IPv{} addresses; {}",
                self.addresses.len(),
                self.requested,
                self.version,
                self.messages.join("; ")
            )
        })
    }
}

impl Assignments {
    pub fn addresses(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.v4.addresses.iter().chain(&self.v6.addresses).copied()
    }
}

impl fmt::Display for AssignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for AssignError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
