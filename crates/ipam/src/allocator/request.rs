//! Requests to the allocator and their results.

use crate::IpamError;
use crate::owner::{AddressHolder, HostReserved};
use crate::pool::AddressUse;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// A request for a number of addresses per family.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignRequest {
    pub holder: AddressHolder,
    pub v4: u32,
    pub v6: u32,
    /// Restricts the request to these pools; empty for any suitable pool.
    pub v4_pools: Vec<IpNet>,
    pub v6_pools: Vec<IpNet>,
    pub intended: AddressUse,
    /// Labels of the workload's namespace; empty without a namespace.
    pub namespace_labels: BTreeMap<String, String>,
    /// Maximum number of blocks that the host may own, per family and within the suitable pools.
    pub max_blocks: Option<u32>,
    /// Addresses that the host reserves for itself in each block it claims.
    pub reserved: Option<HostReserved>,
    /// Maximum number of addresses per family of the handle. Addresses that the handle already has count as the result.
    pub max_per_handle: Option<u32>,
}

/// A request for one specific address.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecificRequest {
    pub address: IpAddr,
    pub holder: AddressHolder,
    /// If set, the pool must allow this use.
    pub intended: Option<AddressUse>,
    pub reserved: Option<HostReserved>,
    pub max_per_handle: Option<u32>,
}

/// Result for one family. Fewer addresses than requested are not an error: the caller decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignedAddresses {
    pub version: u8,
    pub requested: u32,
    /// Addresses with the prefix length of their block.
    pub addresses: Vec<IpNet>,
    /// Reasons why fewer addresses were assigned than requested.
    pub messages: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DualStackAssignment {
    pub v4: AssignedAddresses,
    pub v6: AssignedAddresses,
}

/// A failed request. Addresses may have been assigned before the failure; the caller has to release them.
#[derive(Debug)]
pub struct AssignError {
    pub error: IpamError,
    pub assigned: DualStackAssignment,
}

impl AssignRequest {
    /// Creates a request for a workload, from any suitable pool.
    pub fn new(holder: AddressHolder, v4: u32, v6: u32) -> AssignRequest {
        AssignRequest {
            holder,
            v4,
            v6,
            v4_pools: Vec::new(),
            v6_pools: Vec::new(),
            intended: AddressUse::Workload,
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
    pub fn new(address: IpAddr, holder: AddressHolder) -> SpecificRequest {
        SpecificRequest { address, holder, intended: None, reserved: None, max_per_handle: None }
    }
}

impl AssignedAddresses {
    pub(super) fn new(version: u8, requested: u32) -> AssignedAddresses {
        AssignedAddresses { version, requested, ..AssignedAddresses::default() }
    }

    pub fn missing(&self) -> u32 {
        let have = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        self.requested.saturating_sub(have)
    }

    /// Returns the message for the user if fewer addresses were assigned than requested.
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

impl DualStackAssignment {
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
