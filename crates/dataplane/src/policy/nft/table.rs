//! The table as a value: chains with their rules, sets and maps with their elements.

use super::flow::LABEL_BYTES;
use super::rule::{NftFamily, NftField, NftRule};
use crate::error::DataplaneError;
use crate::failure::KernelObject;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// Hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainHook {
    pub point: HookPoint,
    pub priority: i32,
    pub kind: ChainKind,
}

/// Type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainKind {
    Filter,
    /// Evaluated only for the first packet of a connection; its translation applies to all packets of the connection.
    Nat,
}

impl ChainHook {
    pub fn filter(point: HookPoint, priority: i32) -> ChainHook {
        ChainHook { point, priority, kind: ChainKind::Filter }
    }

    pub fn nat(point: HookPoint, priority: i32) -> ChainHook {
        ChainHook { point, priority, kind: ChainKind::Nat }
    }
}

impl ChainKind {
    pub fn wire(self) -> nlink::netlink::nftables::ChainType {
        match self {
            ChainKind::Filter => nlink::netlink::nftables::ChainType::Filter,
            ChainKind::Nat => nlink::netlink::nftables::ChainType::Nat,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookPoint {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
    /// Hooks of a table of the ARP family.
    ArpInput,
    ArpOutput,
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookPoint::Prerouting => "prerouting",
            HookPoint::Input | HookPoint::ArpInput => "input",
            HookPoint::Forward => "forward",
            HookPoint::Output | HookPoint::ArpOutput => "output",
            HookPoint::Postrouting => "postrouting",
        })
    }
}

/// The families in which we have a table, each named `tortie`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFamily {
    /// Policy.
    Inet,
    /// Restricts the addresses that workloads may claim on their links.
    Arp,
}

impl TableFamily {
    pub fn points(self) -> &'static [HookPoint] {
        match self {
            TableFamily::Inet => &[
                HookPoint::Prerouting,
                HookPoint::Input,
                HookPoint::Forward,
                HookPoint::Output,
                HookPoint::Postrouting,
            ],
            TableFamily::Arp => &[HookPoint::ArpInput, HookPoint::ArpOutput],
        }
    }

    pub fn wire(self) -> nlink::netlink::nftables::Family {
        match self {
            TableFamily::Inet => nlink::netlink::nftables::Family::Inet,
            TableFamily::Arp => nlink::netlink::nftables::Family::Arp,
        }
    }

    pub fn object(self) -> KernelObject {
        match self {
            TableFamily::Inet => KernelObject::Table { name: "inet tortie" },
            TableFamily::Arp => KernelObject::Table { name: "arp tortie" },
        }
    }

    /// Returns the error of a request that concerns this table.
    pub fn error(self, error: &nlink::Error) -> DataplaneError {
        DataplaneError::kernel(self.object(), error)
    }
}

impl HookPoint {
    pub fn number(self) -> u32 {
        match self {
            HookPoint::Prerouting | HookPoint::ArpInput => 0,
            HookPoint::Input | HookPoint::ArpOutput => 1,
            HookPoint::Forward => 2,
            HookPoint::Output => 3,
            HookPoint::Postrouting => 4,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftChain {
    pub hook: Option<ChainHook>,
    pub rules: Vec<NftRule>,
}

/// Key and lookup type of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetType {
    /// Exact addresses.
    Addresses(NftFamily),
    /// Ranges of addresses.
    Nets(NftFamily),
    /// Address, protocol and port.
    Ports(NftFamily),
    /// Names of interfaces.
    Interfaces,
    /// Interface and exact address.
    Sources(NftFamily),
    /// Interface and range of addresses.
    SourceNets(NftFamily),
    /// Map from interface name to chain.
    Chains,
    /// Map from protocol and port to chain.
    PortChains,
    /// Map from address to address.
    Translations(NftFamily),
    /// Map from source and destination address to address.
    PairTranslations(NftFamily),
    /// Keys of flows with a counter each, which rules add: addresses, protocol, port and label. The elements are not
    /// part of the desired state.
    Flows { family: NftFamily, size: u32 },
}

/// A data type of `nft`, and its length in bytes within a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPart {
    pub kind: u32,
    pub length: usize,
}

impl KeyPart {
    fn address(family: NftFamily) -> KeyPart {
        match family {
            NftFamily::V4 => KeyPart { kind: 7, length: 4 },
            NftFamily::V6 => KeyPart { kind: 8, length: 16 },
        }
    }
}

impl SetType {
    pub fn key(self) -> Vec<KeyPart> {
        let interface = KeyPart { kind: 41, length: 16 };
        let protocol = KeyPart { kind: 12, length: 1 };
        let port = KeyPart { kind: 13, length: 2 };
        match self {
            SetType::Addresses(family) | SetType::Nets(family) | SetType::Translations(family) => {
                vec![KeyPart::address(family)]
            }
            SetType::PairTranslations(family) => vec![KeyPart::address(family); 2],
            SetType::Ports(family) => vec![KeyPart::address(family), protocol, port],
            SetType::PortChains => vec![protocol, port],
            SetType::Interfaces | SetType::Chains => vec![interface],
            SetType::Flows { family, .. } => {
                let address = KeyPart::address(family);
                // `nft` 1.0 crashes if the type is a label; it shows this one as an address.
                let label = KeyPart { kind: 8, length: LABEL_BYTES };
                vec![address, address, protocol, port, label]
            }
            SetType::Sources(family) | SetType::SourceNets(family) => {
                vec![interface, KeyPart::address(family)]
            }
        }
    }

    /// Returns the data type of the values if this is a map to values.
    pub fn value(self) -> Option<KeyPart> {
        match self {
            SetType::Translations(family) | SetType::PairTranslations(family) => {
                Some(KeyPart::address(family))
            }
            _ => None,
        }
    }

    pub fn is_map(self) -> bool {
        self.leads_to_chains() || self.value().is_some()
    }

    /// Whether this is a map to chains.
    pub fn leads_to_chains(self) -> bool {
        matches!(self, SetType::Chains | SetType::PortChains)
    }

    /// Whether rules add the elements.
    pub fn is_dynamic(self) -> bool {
        matches!(self, SetType::Flows { .. })
    }

    pub fn is_ranges(self) -> bool {
        matches!(self, SetType::Nets(_) | SetType::SourceNets(_))
    }
}

/// An element of a set. Keys of several parts are padded to registers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NftElement {
    pub key: Box<[u8]>,
    pub data: ElementData,
}

/// Data of an element besides its key. There are hundreds of thousands of elements, so it has to be small: only sets
/// have ranges, and only maps have values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementData {
    None,
    /// The last key of a range.
    Last(Box<[u8]>),
    Goto(Box<str>),
    Jump(Box<str>),
    Value(Box<[u8]>),
}

impl NftElement {
    pub fn key(key: Vec<u8>) -> NftElement {
        NftElement { key: key.into(), data: ElementData::None }
    }

    pub fn goto(key: Vec<u8>, chain: &str) -> NftElement {
        NftElement { key: key.into(), data: ElementData::Goto(chain.into()) }
    }

    pub fn jump(key: Vec<u8>, chain: &str) -> NftElement {
        NftElement { key: key.into(), data: ElementData::Jump(chain.into()) }
    }

    pub fn translation(key: Vec<u8>, value: Vec<u8>) -> NftElement {
        NftElement { key: key.into(), data: ElementData::Value(value.into()) }
    }

    pub fn range(first: Vec<u8>, last: Vec<u8>) -> NftElement {
        NftElement { key: first.into(), data: ElementData::Last(last.into()) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftSet {
    pub kind: SetType,
    pub elements: BTreeSet<NftElement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftTable {
    pub chains: BTreeMap<String, NftChain>,
    pub sets: BTreeMap<String, NftSet>,
}

/// Rounds a field length up to whole registers.
pub fn padded(length: usize) -> usize {
    length.div_ceil(4) * 4
}

pub fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns the address that a key consists of.
pub fn parse_address(key: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(key).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(key).map(IpAddr::from)).ok()
}

/// Joins several fields into a key.
pub fn join(parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::new();
    for part in parts {
        key.extend_from_slice(part);
        key.resize(padded(key.len()), 0);
    }
    key
}

/// Returns the number of four-byte registers that a field occupies.
pub fn slots(field: NftField) -> usize {
    padded(field.length()) / 4
}
