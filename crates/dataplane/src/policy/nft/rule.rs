//! Rules as values: what a packet must be, and what is done to it then. Everything the kernel is sent, as our own types.

use std::net::{IpAddr, Ipv4Addr};
use tortie_plan::{LogLimit, PacketRate, PortRange};

/// Something of a packet that can be compared or looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Field {
    InInterface,
    OutInterface,
    /// Index of the interface it came in by; 0 when the host made it.
    InIndex,
    Family,
    Protocol,
    Source(Family),
    Destination(Family),
    SourcePort,
    DestinationPort,
    IcmpType,
    IcmpCode,
    TcpFlags,
    Connection,
    ConnectionStatus,
    Mark,
    /// What the destination is to the host that the packet came to, seen from the link it came by.
    DestinationType,
    /// What the source is to the host: one of its own addresses, for one.
    SourceType,
    /// The same, of the interface that the packet leaves by alone.
    SourceTypeThere,
    /// Index of the interface that the packet came in by, if what is sent to its source leaves by the same; else 0.
    ReturnInterface,
    /// The address that the sender of an ARP packet claims.
    ArpSender,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }

    pub fn icmp(self) -> u8 {
        match self {
            Family::V4 => 1,
            Family::V6 => 58,
        }
    }

    pub fn of(address: std::net::IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

impl Field {
    /// Length in bytes.
    pub fn length(self) -> usize {
        match self {
            Field::InInterface | Field::OutInterface => 16,
            Field::Source(Family::V6) | Field::Destination(Family::V6) => 16,
            Field::Source(Family::V4) | Field::Destination(Family::V4) => 4,
            Field::InIndex | Field::Connection | Field::ConnectionStatus | Field::Mark => 4,
            Field::DestinationType | Field::SourceType | Field::SourceTypeThere => 4,
            Field::ReturnInterface | Field::ArpSender => 4,
            Field::SourcePort | Field::DestinationPort => 2,
            Field::Family | Field::Protocol | Field::IcmpType | Field::IcmpCode | Field::TcpFlags => 1,
        }
    }
}

/// Values are as the kernel holds them: network order, but host order for marks and states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Test {
    Is(Vec<u8>),
    /// The first bytes are these.
    Begins(Vec<u8>),
    /// One of these bits is set.
    Any(u32),
    /// All of these bits are set.
    All(u32),
    /// One of these ranges has it; ends included, in order, apart from each other.
    Within(Vec<(Vec<u8>, Vec<u8>)>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Match {
    Field {
        field: Field,
        negated: bool,
        test: Test,
    },
    /// The fields together are in a named set.
    Lookup {
        fields: Vec<Field>,
        negated: bool,
        set: String,
    },
}

impl Match {
    pub fn new(field: Field, test: Test) -> Match {
        Match::Field { field, negated: false, test }
    }

    pub fn is(field: Field, value: impl Into<Vec<u8>>) -> Match {
        Match::new(field, Test::Is(value.into()))
    }

    pub fn lookup(fields: impl Into<Vec<Field>>, set: impl Into<String>) -> Match {
        Match::Lookup { fields: fields.into(), negated: false, set: set.into() }
    }

    pub fn family(family: Family) -> Match {
        const NFPROTO_IPV4: u8 = 2;
        const NFPROTO_IPV6: u8 = 10;
        let number = match family {
            Family::V4 => NFPROTO_IPV4,
            Family::V6 => NFPROTO_IPV6,
        };
        Match::is(Field::Family, [number])
    }

    pub fn interface_begins(field: Field, prefix: &str) -> Match {
        Match::new(field, Test::Begins(prefix.as_bytes().to_vec()))
    }

    pub fn connection(states: u32) -> Match {
        Match::new(Field::Connection, Test::Any(states))
    }

    pub fn mark(bits: u32) -> Match {
        Match::new(Field::Mark, Test::Any(bits))
    }

    pub fn not(self) -> Match {
        match self {
            Match::Field { field, negated, test } => Match::Field { field, negated: !negated, test },
            Match::Lookup { fields, negated, set } => Match::Lookup { fields, negated: !negated, set },
        }
    }
}

/// Bits of the connection's state.
pub(crate) mod state {
    pub const INVALID: u32 = 1;
    pub const ESTABLISHED: u32 = 2;
    pub const RELATED: u32 = 4;
    pub const NEW: u32 = 8;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Count,
    /// Goes on with the next rule when there are too many.
    Limit(LogLimit),
    /// Goes on with this rule only when there are too many.
    Over(PacketRate),
    /// Goes on with this rule only for connections beyond so many that are there. The kernel counts them at the rule.
    ConnectionsOver(u32),
    /// A line in the kernel's log with the prefix that is set, and a copy, with the identity of the rule, to whoever
    /// listens to the group.
    Log {
        prefix: String,
        rule: String,
    },
    SetMark(u32),
    ClearMark(u32),
    /// No connection tracking.
    Untrack,
    /// The source becomes the address of the interface that the packet leaves by.
    Masquerade {
        ports: Option<PortRange>,
    },
    /// The source becomes this address.
    TranslateSource {
        address: IpAddr,
        ports: Option<PortRange>,
    },
    /// The destination becomes this address and port.
    TranslateDestination {
        address: Ipv4Addr,
        port: u16,
    },
    /// The address becomes what a map has for the fields, if it has anything.
    TranslateBy {
        end: NatEnd,
        family: Family,
        fields: Vec<Field>,
        map: String,
    },
    /// The differentiated services code point of the packet.
    SetDscp(Family, u8),
    /// Segments become as large as the route allows, at most. For packets with SYN.
    ClampMss,
    /// On to the chain that a map has for the field, if it has one.
    Dispatch {
        field: Field,
        map: String,
    },
    Accept,
    Drop,
    Reject,
    /// Ends a TCP connection.
    Reset,
    Return,
    Jump(String),
    Goto(String),
}

/// Which address of a packet is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NatEnd {
    Source,
    Destination,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    /// For people.
    pub comment: String,
    pub matches: Vec<Match>,
    pub actions: Vec<Action>,
}

impl Rule {
    pub fn new(matches: Vec<Match>, actions: Vec<Action>) -> Rule {
        Rule { comment: String::new(), matches, actions }
    }

    pub fn says(mut self, comment: impl Into<String>) -> Rule {
        self.comment = comment.into();
        self
    }

    /// Says whether the kernel has this rule and no other: kept beside the comment, compared when looking.
    pub fn fingerprint(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// An interface's name as the kernel compares it.
pub(crate) fn interface(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(Field::InInterface.length(), 0);
    bytes
}
