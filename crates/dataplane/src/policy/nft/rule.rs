//! nf_tables rules as values: the conditions on a packet and the actions. Covers every expression that is sent to the
//! kernel.

use super::flow::{FlowLabel, LABEL_BYTES};
use std::net::{IpAddr, Ipv4Addr};
use tortie_plan::{LogLimit, PacketRate, PortInterval};

/// A property of a packet that can be compared or looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NftField {
    InInterface,
    OutInterface,
    /// Index of the ingress interface; 0 for packets from the host itself.
    InIndex,
    Family,
    Protocol,
    Source(NftFamily),
    Destination(NftFamily),
    SourcePort,
    DestinationPort,
    IcmpType,
    IcmpCode,
    TcpFlags,
    Connection,
    ConnectionStatus,
    Mark,
    /// Address type of the destination, as seen from the ingress interface.
    DestinationType,
    /// Address type of the source, for example an address of the host itself.
    SourceType,
    /// Address type of the source with regard to the egress interface alone.
    SourceTypeThere,
    /// Index of the ingress interface if the route to the packet's source uses the same interface; otherwise 0.
    ReturnInterface,
    /// The address that the sender of an ARP packet claims.
    ArpSender,
    /// The label of the connection; in keys without its first word.
    Label,
    /// Destination port of the connection before DNAT; type and code for ICMP, 0 for protocols without ports.
    OriginalPort,
    /// Type and code of an ICMP packet.
    IcmpHead,
    /// Zero in place of a port.
    NoPort,
    /// A constant in place of the label.
    Constant(FlowLabel),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NftFamily {
    V4,
    V6,
}

impl NftFamily {
    pub const BOTH: [NftFamily; 2] = [NftFamily::V4, NftFamily::V6];

    pub fn digit(self) -> char {
        match self {
            NftFamily::V4 => '4',
            NftFamily::V6 => '6',
        }
    }

    pub fn icmp(self) -> u8 {
        match self {
            NftFamily::V4 => 1,
            NftFamily::V6 => 58,
        }
    }
}

impl From<IpAddr> for NftFamily {
    fn from(address: IpAddr) -> NftFamily {
        if address.is_ipv4() { NftFamily::V4 } else { NftFamily::V6 }
    }
}

impl NftField {
    /// Returns the length in bytes.
    pub fn length(self) -> usize {
        match self {
            NftField::InInterface | NftField::OutInterface => 16,
            NftField::Source(NftFamily::V6) | NftField::Destination(NftFamily::V6) => 16,
            NftField::Source(NftFamily::V4) | NftField::Destination(NftFamily::V4) => 4,
            NftField::InIndex | NftField::Connection | NftField::ConnectionStatus | NftField::Mark => 4,
            NftField::DestinationType | NftField::SourceType | NftField::SourceTypeThere => 4,
            NftField::ReturnInterface | NftField::ArpSender => 4,
            NftField::SourcePort | NftField::DestinationPort | NftField::OriginalPort => 2,
            NftField::IcmpHead | NftField::NoPort => 2,
            NftField::Label | NftField::Constant(_) => LABEL_BYTES,
            NftField::Family
            | NftField::Protocol
            | NftField::IcmpType
            | NftField::IcmpCode
            | NftField::TcpFlags => 1,
        }
    }
}

/// A comparison. Values have the kernel's representation: network byte order, but host byte order for marks and states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NftTest {
    Is(Vec<u8>),
    /// The value starts with these bytes.
    Begins(Vec<u8>),
    /// At least one of these bits is set.
    Any(u32),
    /// All of these bits are set.
    All(u32),
    /// The value is in one of these ranges, which are inclusive, sorted and disjoint.
    Within(Vec<(Vec<u8>, Vec<u8>)>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NftMatch {
    Field {
        field: NftField,
        negated: bool,
        test: NftTest,
    },
    /// The concatenation of the fields is in a named set.
    Lookup {
        fields: Vec<NftField>,
        negated: bool,
        set: String,
    },
}

impl NftMatch {
    pub fn new(field: NftField, test: NftTest) -> NftMatch {
        NftMatch::Field { field, negated: false, test }
    }

    pub fn is(field: NftField, value: impl Into<Vec<u8>>) -> NftMatch {
        NftMatch::new(field, NftTest::Is(value.into()))
    }

    pub fn lookup(fields: impl Into<Vec<NftField>>, set: impl Into<String>) -> NftMatch {
        NftMatch::Lookup { fields: fields.into(), negated: false, set: set.into() }
    }

    pub fn family(family: NftFamily) -> NftMatch {
        const NFPROTO_IPV4: u8 = 2;
        const NFPROTO_IPV6: u8 = 10;
        let number = match family {
            NftFamily::V4 => NFPROTO_IPV4,
            NftFamily::V6 => NFPROTO_IPV6,
        };
        NftMatch::is(NftField::Family, [number])
    }

    pub fn interface_begins(field: NftField, prefix: &str) -> NftMatch {
        NftMatch::new(field, NftTest::Begins(prefix.as_bytes().to_vec()))
    }

    pub fn connection(states: u32) -> NftMatch {
        NftMatch::new(NftField::Connection, NftTest::Any(states))
    }

    pub fn mark(bits: u32) -> NftMatch {
        NftMatch::new(NftField::Mark, NftTest::Any(bits))
    }

    pub fn not(self) -> NftMatch {
        match self {
            NftMatch::Field { field, negated, test } => NftMatch::Field { field, negated: !negated, test },
            NftMatch::Lookup { fields, negated, set } => NftMatch::Lookup { fields, negated: !negated, set },
        }
    }
}

/// Bits of the conntrack state.
pub mod state {
    pub const INVALID: u32 = 1;
    pub const ESTABLISHED: u32 = 2;
    pub const RELATED: u32 = 4;
    pub const NEW: u32 = 8;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NftAction {
    Count,
    /// Continues with this rule only up to the limit.
    Limit(LogLimit),
    /// Continues with this rule only above the rate.
    Over(PacketRate),
    /// Continues with this rule only for connections above the limit. The kernel keeps the count in the rule.
    ConnectionsOver(u32),
    /// Writes a line with the configured prefix to the kernel log, and sends a copy of the packet with the identity of
    /// the rule to the NFLOG group.
    Log {
        prefix: String,
        rule: String,
    },
    SetMark(u32),
    ClearMark(u32),
    /// Adds bits to the label of the connection. Without a connection this has no effect.
    SetLabel(FlowLabel),
    /// Adds the fields as a key to a set and continues with this rule only if the key is in the set then.
    AddKey {
        fields: Vec<NftField>,
        set: String,
    },
    /// Sends the packet to the group for flows with this prefix.
    ReportFlow(String),
    /// Disables connection tracking for the packet.
    Untrack,
    /// Sets the source to the address of the egress interface.
    Masquerade {
        ports: Option<PortInterval>,
    },
    /// Sets the source to this address.
    TranslateSource {
        address: IpAddr,
        ports: Option<PortInterval>,
    },
    /// Sets the destination to this address and port.
    TranslateDestination {
        address: Ipv4Addr,
        port: u16,
    },
    /// Sets the address to the value that a map has for the fields, if any.
    TranslateBy {
        end: NatEnd,
        family: NftFamily,
        fields: Vec<NftField>,
        map: String,
    },
    /// Sets the differentiated services code point.
    SetDscp(NftFamily, u8),
    /// Reduces the MSS to the value that the route allows. For packets with SYN.
    ClampMss,
    /// Goes or jumps to the chain that a map has for the fields, if any.
    Dispatch {
        fields: Vec<NftField>,
        map: String,
    },
    Accept,
    Drop,
    Reject,
    /// Resets a TCP connection.
    Reset,
    Return,
    Jump(String),
    Goto(String),
}

/// The address of a packet that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatEnd {
    Source,
    Destination,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NftRule {
    /// Shown to users by `nft list`.
    pub comment: String,
    pub matches: Vec<NftMatch>,
    pub actions: Vec<NftAction>,
}

impl NftRule {
    /// Returns whether the rule looks something up in a set or map.
    pub fn refers_to(&self, set: &str) -> bool {
        let looks_up =
            self.matches.iter().any(|m| matches!(m, NftMatch::Lookup { set: name, .. } if name == set));
        looks_up
            || self.actions.iter().any(|action| match action {
                NftAction::Dispatch { map, .. } | NftAction::TranslateBy { map, .. } => map == set,
                NftAction::AddKey { set: name, .. } => name == set,
                _ => false,
            })
    }

    pub fn new(matches: Vec<NftMatch>, actions: Vec<NftAction>) -> NftRule {
        NftRule { comment: String::new(), matches, actions }
    }

    pub fn says(mut self, comment: impl Into<String>) -> NftRule {
        self.comment = comment.into();
        self
    }

    /// Returns a hash by which the kernel's copy of the rule is recognised; stored in its userdata beside the comment.
    pub fn fingerprint(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns an interface name in the kernel's representation.
pub fn interface(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(NftField::InInterface.length(), 0);
    bytes
}
