//! The table as a value: chains with their rules, sets and maps with what they hold.

use super::rule::{Family, Field, Rule};
use crate::failure::KernelObject;
use std::collections::{BTreeMap, BTreeSet};

/// Where the kernel enters a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hook {
    pub point: Point,
    pub priority: i32,
    pub kind: ChainKind,
}

/// What a chain may do to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ChainKind {
    Filter,
    /// Entered by the first packet of a connection alone; what is done to that is done to all of them.
    Nat,
}

impl Hook {
    pub fn filter(point: Point, priority: i32) -> Hook {
        Hook { point, priority, kind: ChainKind::Filter }
    }

    pub fn nat(point: Point, priority: i32) -> Hook {
        Hook { point, priority, kind: ChainKind::Nat }
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
pub(crate) enum Point {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
    /// Of a table of the ARP family.
    ArpInput,
    ArpOutput,
}

/// The families that we have a table of, each named `tortie`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableFamily {
    /// Policy.
    Inet,
    /// Who may claim which address on the links of workloads.
    Arp,
}

impl TableFamily {
    pub fn points(self) -> &'static [Point] {
        match self {
            TableFamily::Inet => {
                &[Point::Prerouting, Point::Input, Point::Forward, Point::Output, Point::Postrouting]
            }
            TableFamily::Arp => &[Point::ArpInput, Point::ArpOutput],
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
}

impl Point {
    pub fn number(self) -> u32 {
        match self {
            Point::Prerouting | Point::ArpInput => 0,
            Point::Input | Point::ArpOutput => 1,
            Point::Forward => 2,
            Point::Output => 3,
            Point::Postrouting => 4,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
}

/// What a set's keys are made of and how it finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SetType {
    /// Exact addresses.
    Addresses(Family),
    /// Ranges of addresses.
    Nets(Family),
    /// Address, protocol and port.
    Ports(Family),
    /// Names of interfaces.
    Interfaces,
    /// Interface and exact address.
    Sources(Family),
    /// Interface and range of addresses.
    SourceNets(Family),
    /// From the name of an interface to a chain.
    Chains,
    /// From an address to another.
    Translations(Family),
    /// From two addresses, a source and a destination, to another.
    PairTranslations(Family),
}

/// The data types of the kernel's tools, and how many bytes each takes in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyPart {
    pub kind: u32,
    pub length: usize,
}

impl SetType {
    pub fn key(self) -> Vec<KeyPart> {
        let address = |family| match family {
            Family::V4 => KeyPart { kind: 7, length: 4 },
            Family::V6 => KeyPart { kind: 8, length: 16 },
        };
        let interface = KeyPart { kind: 41, length: 16 };
        let protocol = KeyPart { kind: 12, length: 1 };
        let port = KeyPart { kind: 13, length: 2 };
        match self {
            SetType::Addresses(family) | SetType::Nets(family) | SetType::Translations(family) => {
                vec![address(family)]
            }
            SetType::PairTranslations(family) => vec![address(family), address(family)],
            SetType::Ports(family) => vec![address(family), protocol, port],
            SetType::Interfaces | SetType::Chains => vec![interface],
            SetType::Sources(family) | SetType::SourceNets(family) => vec![interface, address(family)],
        }
    }

    /// What a map leads to, if it is one of values: the kernel's data type and its length.
    pub fn value(self) -> Option<KeyPart> {
        match self {
            SetType::Translations(family) | SetType::PairTranslations(family) => {
                SetType::Addresses(family).key().first().copied()
            }
            _ => None,
        }
    }

    pub fn is_map(self) -> bool {
        self == SetType::Chains || self.value().is_some()
    }

    pub fn is_ranges(self) -> bool {
        matches!(self, SetType::Nets(_) | SetType::SourceNets(_))
    }
}

/// One thing in a set. Keys of several parts are padded as registers are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Element {
    pub key: Box<[u8]>,
    pub data: ElementData,
}

/// What an element has beside its key. There are hundreds of thousands of elements, so it takes no more room than it must: only
/// sets have ranges and only maps have something that a key leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ElementData {
    None,
    /// The last key of a range.
    Last(Box<[u8]>),
    Goto(Box<str>),
    Value(Box<[u8]>),
}

impl Element {
    pub fn key(key: Vec<u8>) -> Element {
        Element { key: key.into(), data: ElementData::None }
    }

    pub fn goto(key: Vec<u8>, chain: &str) -> Element {
        Element { key: key.into(), data: ElementData::Goto(chain.into()) }
    }

    pub fn translation(key: Vec<u8>, value: Vec<u8>) -> Element {
        Element { key: key.into(), data: ElementData::Value(value.into()) }
    }

    pub fn range(first: Vec<u8>, last: Vec<u8>) -> Element {
        Element { key: first.into(), data: ElementData::Last(last.into()) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub kind: SetType,
    pub elements: BTreeSet<Element>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub chains: BTreeMap<String, Chain>,
    pub sets: BTreeMap<String, Set>,
}

/// A field and its length, padded to whole registers.
pub(crate) fn padded(length: usize) -> usize {
    length.div_ceil(4) * 4
}

/// The key of several fields together.
pub(crate) fn join(parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::new();
    for part in parts {
        key.extend_from_slice(part);
        key.resize(padded(key.len()), 0);
    }
    key
}

/// How many bytes a field takes in a key.
pub(crate) fn slots(field: Field) -> usize {
    padded(field.length()) / 4
}
