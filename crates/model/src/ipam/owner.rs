//! Owners of blocks and holders of addresses.

use crate::key::AffinityType;
use std::collections::BTreeMap;
use std::fmt;

/// Attribute names, shared with all other programs that use the same blocks.
pub mod attribute {
    pub const POD_ATTRIBUTE: &str = "pod";
    pub const NAMESPACE_ATTRIBUTE: &str = "namespace";
    pub const NODE_ATTRIBUTE: &str = "node";
    pub const TIMESTAMP_ATTRIBUTE: &str = "timestamp";
    pub const TYPE_ATTRIBUTE: &str = "type";
    pub const NOTE_ATTRIBUTE: &str = "note";
}

/// Handle of the addresses at both ends of each block that Windows hosts reserve for themselves.
pub const WINDOWS_RESERVED_HANDLE: &str = "windows-reserved-ipam-handle";

/// A host, or another owner of blocks such as the load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockOwner {
    pub affinity: AffinityType,
    pub name: String,
}

impl BlockOwner {
    pub fn host(name: &str) -> BlockOwner {
        BlockOwner { affinity: AffinityType::Host, name: name.to_owned() }
    }
}

/// Formats the owner as in a block's affinity: `host:rack1-n7`.
impl fmt::Display for BlockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.affinity, self.name)
    }
}

/// The handle and attributes that are recorded for an allocated address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressHolder {
    pub handle: Option<String>,
    pub attributes: BTreeMap<String, String>,
}

impl AddressHolder {
    /// Truncates the handle at a carriage return, as all readers do.
    pub fn new(handle: Option<&str>, attributes: BTreeMap<String, String>) -> AddressHolder {
        let handle = handle.and_then(|handle| handle.split('\r').next()).filter(|handle| !handle.is_empty());
        AddressHolder { handle: handle.map(str::to_owned), attributes }
    }
}

/// Addresses that the host reserves for itself at both ends of each block it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReserved {
    pub first: u32,
    pub last: u32,
    pub handle: String,
    pub note: String,
}

impl HostReserved {
    /// Returns the addresses that a Windows host reserves.
    pub fn windows() -> HostReserved {
        HostReserved {
            first: 3,
            last: 1,
            handle: WINDOWS_RESERVED_HANDLE.to_owned(),
            note: "windows host rsvd".to_owned(),
        }
    }

    /// Returns the longest prefix whose blocks have more addresses than are reserved.
    pub fn longest_prefix(&self, address_bits: u8) -> u8 {
        let kept = self.first.saturating_add(self.last);
        let bits = u8::try_from(u32::BITS - kept.leading_zeros()).unwrap_or(u8::MAX);
        address_bits.saturating_sub(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_blocks_are_at_most_29_long() {
        assert_eq!(HostReserved::windows().longest_prefix(32), 29);
        let none = HostReserved { first: 0, last: 0, ..HostReserved::windows() };
        assert_eq!(none.longest_prefix(128), 128);
    }

    #[test]
    fn garbage_after_a_handle_is_cut() {
        assert_eq!(
            AddressHolder::new(Some("net.abc\r\n"), BTreeMap::new()).handle.as_deref(),
            Some("net.abc")
        );
        assert_eq!(AddressHolder::new(Some("\r"), BTreeMap::new()).handle, None);
    }

    #[test]
    fn owners_read_as_blocks_name_them() {
        assert_eq!(BlockOwner::host("rack1-n7").to_string(), "host:rack1-n7");
    }
}
