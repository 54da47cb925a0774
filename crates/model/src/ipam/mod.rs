//! Stored types of IP address management that are not resources: blocks, affinities, handles and settings.
//! Operations on a block are in [`block`], address arithmetic in [`space`].
//!
//! Decoding is lenient, because older and newer versions write the same keys: lists may be missing or `null`,
//! and unknown fields are kept and written back.

pub mod block;
pub mod owner;
pub mod reservation;
pub mod space;
mod tunnel;

pub use tunnel::TunnelType;

use crate::key::AffinityType;
use crate::scalar::is_default;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block of addresses with its allocations: the unit of compare-and-swap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddressBlock {
    pub cidr: IpNet,
    /// `host:<node>` or `virtual:<name>`; see [`AddressBlock::owner`].
    #[serde(default)]
    pub affinity: Option<String>,
    /// Absent on blocks of older versions and on blocks without affinity.
    #[serde(default, with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    pub affinity_claim_time: Option<Timestamp>,
    /// One entry per address: an index into `attributes`, or `None` if the address is free.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub allocations: Vec<Option<u32>>,
    /// Ordinals of free addresses, in the order in which they are allocated.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub unallocated: Vec<u32>,
    /// Shared between versions of a block: a change copies the list, not the records.
    #[serde(default, deserialize_with = "null_is_empty", serialize_with = "empty_is_null")]
    pub attributes: Vec<Arc<AllocationAttribute>>,
    /// Starts as the creation time in nanoseconds and is incremented with each write.
    #[serde(default, rename = "sequenceNumber")]
    pub sequence_number: u64,
    /// By ordinal: the sequence number of the block when the address was allocated.
    #[serde(default, rename = "sequenceNumberForAllocation", with = "by_ordinal")]
    pub sequence_number_for_allocation: BTreeMap<u32, u64>,
    #[serde(default)]
    pub deleted: bool,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The owner of an allocated address, or the time of its release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocationAttribute {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub secondary: BTreeMap<String, String>,
    /// The second owner during the live migration of a virtual machine.
    #[serde(
        default,
        rename = "alternateOwnerAttrs",
        deserialize_with = "null_is_empty",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub alternate_owner: BTreeMap<String, String>,
    /// Set while the address is cooling down.
    #[serde(default, rename = "releasedAt", with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The state of a claim on a block. Only a confirmed claim proves ownership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AffinityState {
    /// Older writers left the state empty.
    #[default]
    #[serde(alias = "")]
    Confirmed,
    Pending,
    PendingDeletion,
}

/// A claim on a block; the key contains the owner and the block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockAffinity {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub state: AffinityState,
    #[serde(default)]
    pub deleted: bool,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The number of addresses that a handle has in each block. The counts may be too high, never too low.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AddressHandle {
    /// By the block's CIDR.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub block: BTreeMap<String, i64>,
    #[serde(default)]
    pub deleted: bool,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The settings of the allocator. [`IpamConfig::default`] applies if the object does not exist, which differs
/// from a stored object without fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IpamConfig {
    #[serde(default, skip_serializing_if = "is_default")]
    pub strict_affinity: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub auto_allocate_blocks: bool,
    /// 0 means that this setting imposes no limit.
    #[serde(default, rename = "maxBlocksPerHost", skip_serializing_if = "is_default")]
    pub max_blocks_per_host: u32,
    /// Enabled unless the value is `Disabled`.
    #[serde(default, rename = "kubeVirtVMAddressPersistence", skip_serializing_if = "Option::is_none")]
    pub kubevirt_vm_address_persistence: Option<String>,
    #[serde(default, rename = "ipCooldownSeconds", skip_serializing_if = "is_default")]
    pub ip_cooldown_seconds: u32,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl AddressBlock {
    /// Returns the owner of the block, if it has one.
    pub fn owner(&self) -> Option<(AffinityType, &str)> {
        let (affinity, owner) = self.affinity.as_deref()?.split_once(':')?;
        Some((affinity.parse().ok()?, owner))
    }
}

impl AddressHandle {
    /// Adds addresses of a block to the count.
    pub fn add(&mut self, cidr: IpNet, count: u32) {
        let total = self.block.entry(cidr.to_string()).or_default();
        *total = total.saturating_add(i64::from(count));
    }

    /// Subtracts addresses of a block, removing the block when none are left. Returns whether the block was
    /// present.
    pub fn subtract(&mut self, cidr: IpNet, count: u32) -> bool {
        let cidr = cidr.to_string();
        let Some(left) = self.block.get_mut(&cidr) else { return false };
        *left = left.saturating_sub(i64::from(count));
        if *left <= 0 {
            self.block.remove(&cidr);
        }
        true
    }
}

impl AllocationAttribute {
    /// Returns the handle without the garbage that some Windows writers append: everything from the first
    /// carriage return on.
    pub fn handle(&self) -> Option<&str> {
        self.handle_id.as_deref().and_then(|id| id.split('\r').next())
    }
}

impl Default for IpamConfig {
    fn default() -> Self {
        IpamConfig {
            strict_affinity: false,
            auto_allocate_blocks: true,
            max_blocks_per_host: 0,
            kubevirt_vm_address_persistence: None,
            ip_cooldown_seconds: 0,
            other: Map::new(),
        }
    }
}

fn null_is_empty<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn empty_is_null<T: Serialize, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { serializer.serialize_none() } else { list.serialize(serializer) }
}

mod whole_seconds {
    use super::*;

    pub fn serialize<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| format!("{time:.0}")).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}

/// Calico sorts ordinals as text: 0, 1, 10, 2.
mod by_ordinal {
    use super::*;

    pub fn serialize<S: Serializer>(map: &BTreeMap<u32, u64>, serializer: S) -> Result<S::Ok, S::Error> {
        let sorted: BTreeMap<String, u64> =
            map.iter().map(|(ordinal, n)| (ordinal.to_string(), *n)).collect();
        sorted.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u32, u64>, D::Error> {
        let map: Option<BTreeMap<String, u64>> = Option::deserialize(deserializer)?;
        let entries = map.unwrap_or_default().into_iter();
        entries.map(|(text, n)| Ok((text.parse().map_err(serde::de::Error::custom)?, n))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = concat!(
        r#"{"cidr":"10.65.3.8/29","affinity":"host:rack1-n7","affinity_claim_time":"2026-03-01T10:20:30Z","#,
        r#""allocations":[0,null,1,2,null,null,null,null],"unallocated":[4,5,6,7,1],"attributes":["#,
        r#"{"handle_id":"k8s-pod-network.6f1d0a","secondary":{"namespace":"prod","node":"rack1-n7","pod":"web-0","#,
        r#""timestamp":"2026-03-01 10:20:31.123456789 +0000 UTC"}},"#,
        r#"{"handle_id":"vxlan-tunnel-addr-rack1-n7","secondary":{"node":"rack1-n7","type":"vxlanTunnelAddress"}},"#,
        r#"{"releasedAt":"2026-03-01T11:00:00Z"}],"sequenceNumber":1772360430123456793,"#,
        r#""sequenceNumberForAllocation":{"0":1772360430123456789,"2":1772360430123456790,"3":1772360430123456792},"#,
        r#""deleted":false}"#
    );

    fn read<'a, T: Deserialize<'a>>(text: &'a str) -> T {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn round_trips<T: Serialize + for<'a> Deserialize<'a>>(text: &str) {
        assert_eq!(serde_json::to_string(&read::<T>(text)).unwrap(), text);
    }

    #[test]
    fn written_values_are_byte_identical() {
        round_trips::<AddressBlock>(BLOCK);
        round_trips::<BlockAffinity>(r#"{"state":"confirmed","deleted":false}"#);
        round_trips::<BlockAffinity>(r#"{"state":"pendingDeletion","deleted":false}"#);
        round_trips::<AddressHandle>(r#"{"block":{"10.65.3.8/29":1},"deleted":false}"#);
        round_trips::<IpamConfig>(concat!(
            r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":4,"#,
            r#""kubeVirtVMAddressPersistence":"Enabled","ipCooldownSeconds":30}"#
        ));
    }

    #[test]
    fn a_block_reads_as_what_it_says() {
        let block: AddressBlock = read(BLOCK);
        assert_eq!(block.owner(), Some((AffinityType::Host, "rack1-n7")));
        assert_eq!(block.sequence_number, 1772360430123456793);
        assert_eq!(block.sequence_number_for_allocation[&3], 1772360430123456792);
        assert_eq!(block.attributes[0].handle(), Some("k8s-pod-network.6f1d0a"));
        assert_eq!(block.attributes[2].released_at, Some("2026-03-01T11:00:00Z".parse().unwrap()));
    }

    #[test]
    fn a_fresh_block_has_null_attributes() {
        let mut block: AddressBlock = read(r#"{"cidr":"10.65.3.0/31"}"#);
        block.allocations = vec![None; 2];
        block.unallocated = vec![0, 1];
        assert_eq!(
            serde_json::to_string(&block).unwrap(),
            concat!(
                r#"{"cidr":"10.65.3.0/31","affinity":null,"allocations":[null,null],"unallocated":[0,1],"#,
                r#""attributes":null,"sequenceNumber":0,"sequenceNumberForAllocation":{},"deleted":false}"#
            )
        );
    }

    #[test]
    fn old_and_odd_values_are_accepted() {
        let sparse: AddressBlock = read(concat!(
            r#"{"cidr":"10.65.3.0/31","affinity":null,"affinity_claim_time":null,"allocations":null,"#,
            r#""unallocated":null,"attributes":null,"sequenceNumberForAllocation":null}"#
        ));
        assert_eq!(sparse, read(r#"{"cidr":"10.65.3.0/31"}"#));
        let attribute: AllocationAttribute = read(r#"{"handle_id":"h\r\n","secondary":null}"#);
        assert_eq!(attribute.handle(), Some("h"));
        assert_eq!(read::<BlockAffinity>(r#"{"state":""}"#).state, AffinityState::Confirmed);
        assert_eq!(read::<BlockAffinity>("{}").state, AffinityState::Confirmed);
        assert_eq!(read::<BlockAffinity>(r#"{"state":null}"#).state, AffinityState::Confirmed);
        assert!(read::<AddressHandle>(r#"{"block":null}"#).block.is_empty());
    }

    #[test]
    fn unknown_fields_are_kept() {
        round_trips::<AddressHandle>(r#"{"block":{},"deleted":false,"newer":{"n":18446744073709551615}}"#);
        round_trips::<BlockAffinity>(r#"{"state":"pending","deleted":false,"newer":[1]}"#);
    }

    #[test]
    fn an_empty_config_is_not_a_missing_one() {
        assert!(IpamConfig::default().auto_allocate_blocks);
        assert!(!read::<IpamConfig>("{}").auto_allocate_blocks);
    }

    #[test]
    fn ordinals_are_in_the_order_of_their_text() {
        let mut block: AddressBlock = read(BLOCK);
        block.sequence_number_for_allocation = BTreeMap::from([(2, 1), (10, 2), (0, 3)]);
        let text = serde_json::to_string(&block).unwrap();
        assert!(text.contains(r#""sequenceNumberForAllocation":{"0":3,"10":2,"2":1}"#), "{text}");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["[]", "{}", r#"{"cidr":"x"}"#, r#"{"cidr":"10.0.0.0/26","allocations":[-1]}"#] {
            assert!(serde_json::from_str::<AddressBlock>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<BlockAffinity>(r#"{"state":"perhaps"}"#).is_err());
    }
}
