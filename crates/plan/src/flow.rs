//! Flow events: connections and denied packets that the kernel reports, with the identity of the deciding rule.
//! Data only; `dataplane` produces the events and `node` makes records of them.

use crate::policy::PolicyDirection;
use crate::rule_id::RuleId;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

/// How the kernel records flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowSourceSettings {
    /// New keys that the kernel records per second, for each verdict; more are only counted.
    pub new_keys_per_second: u32,
    /// Maximum number of keys for each verdict and address family; more are only counted.
    pub max_keys: u32,
    /// Time after the last packet of a key after which the kernel forgets the key.
    pub key_timeout: Duration,
    /// Interval between reads of the counters of all keys.
    pub count_interval: Duration,
    /// Interval between reads of all live connections.
    pub connection_interval: Duration,
}

impl Default for FlowSourceSettings {
    fn default() -> Self {
        FlowSourceSettings {
            new_keys_per_second: 1000,
            max_keys: 16_384,
            key_timeout: Duration::from_secs(120),
            count_interval: Duration::from_secs(5),
            connection_interval: Duration::from_secs(15),
        }
    }
}

/// The key fields of a flow that a packet has. Source ports are not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowTuple {
    pub source: IpAddr,
    /// After DNAT, unless the packet is denied before.
    pub destination: IpAddr,
    pub protocol: u8,
    /// After DNAT. Type (high byte) and code (low byte) for ICMP and ICMPv6; 0 for protocols without ports.
    pub destination_port: u16,
}

/// The reason of one decision about a packet, as far as the kernel reports it. Corresponds to
/// [`crate::evaluate::VerdictCause`], but owns its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowCause {
    Rule(RuleId),
    /// No rule matched in a tier that has a policy for this direction.
    TierEnd {
        tier: String,
        direction: PolicyDirection,
    },
    /// No rule of a profile matched, or the endpoint has no profile.
    NoProfile(PolicyDirection),
    /// The endpoint references a profile that is not in the plan.
    MissingProfile {
        profile: String,
        direction: PolicyDirection,
    },
    /// Connection tracking considers the packet invalid.
    InvalidConnection,
    /// The workload is administratively down, or closed because the kernel rejected an object that it needs.
    ClosedEndpoint,
    UnknownWorkload,
    Spoofed,
    /// Traffic between a workload and the loopback of its host.
    Loopback,
    /// Packets to link-local addresses are not forwarded.
    LinkLocal,
    /// VXLAN or IP in IP sent by a workload.
    Encapsulation,
    /// VXLAN or IP in IP sent to this node by an unknown node.
    UnknownTunnel,
    /// The host is closed to traffic of workloads that their policy allows.
    ClosedHost,
    Failsafe,
    /// The host reaches its own workloads regardless of their policies.
    HostToWorkload,
    /// The packet is forwarded to an address in a service range that no service has.
    ServiceLoop,
    /// Several decisions of one connection in one direction, because policy changed between its first packets. The
    /// number is the union of their identities.
    Mixed(u32),
    /// An identity that no present or recent rule has, for example of a rule that was changed before the node restarted.
    Unknown(u32),
}

/// The decisions about a packet. A packet has one for each endpoint of this node that it concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowDecision {
    pub allowed: bool,
    /// The endpoint that sends: a workload, or the host itself.
    pub egress: Option<FlowCause>,
    /// The endpoint that receives: a workload, or the host itself.
    pub ingress: Option<FlowCause>,
    /// The host endpoint of the interface through which the packet is forwarded into the node.
    pub host_ingress: Option<FlowCause>,
    /// The host endpoint of the interface through which the packet is forwarded out of the node.
    pub host_egress: Option<FlowCause>,
}

/// Number of a state of the policy in the kernel. It increases with every change that the node has made since it
/// started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyGeneration(pub u64);

/// Key by which the kernel aggregates packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    pub tuple: FlowTuple,
    pub decision: FlowDecision,
}

/// Both directions of a connection, as connection tracking identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionTuple {
    pub flow: FlowTuple,
    /// Source port; identifier for ICMP; 0 for protocols without ports.
    pub source_port: u16,
    /// Address and port before DNAT, if they differ.
    pub original_destination: Option<(IpAddr, u16)>,
}

/// The first packet of a key. Further packets of the key are only counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowOpening {
    pub key: FlowKey,
    /// The connection of the packet.
    pub connection: ConnectionTuple,
    pub at: SystemTime,
    /// `None` if the name of an interface is not known.
    pub interfaces: Option<FlowInterfaces>,
    /// The policy in force when the event was read.
    pub generation: PolicyGeneration,
}

/// Names of the interfaces on which a packet entered and left the node; `None` for the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowInterfaces {
    pub input: Option<String>,
    pub output: Option<String>,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowCounters {
    pub packets: u64,
    pub bytes: u64,
}

/// How far a connection got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConnectionOutcome {
    /// Packets were seen in both directions, and for TCP the handshake was completed.
    Established,
    /// The receiver reset the connection, or TCP ended before its handshake was completed.
    Refused,
    /// There was no answer.
    Unanswered,
}

/// A connection with its totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRecord {
    pub connection: ConnectionTuple,
    /// The identities that its label has. `None` for ended connections, whose events have no label.
    pub decision: Option<FlowDecision>,
    /// From the side that opened the connection.
    pub sent: FlowCounters,
    pub received: FlowCounters,
    pub started: Option<SystemTime>,
    /// `None` while the connection lives.
    pub stopped: Option<SystemTime>,
    /// `None` if the kernel does not report it.
    pub outcome: Option<ConnectionOutcome>,
}

/// The part of the kernel that lost events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowLoss {
    /// Messages about first packets: the socket's buffer was full.
    Openings,
    /// Events of ended connections: the socket's buffer was full.
    Endings,
    /// Events that the receiver did not take in time.
    Receiver,
    /// A read that was incomplete or failed.
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// The first packet of an allowed key.
    Opened(FlowOpening),
    /// The first packet of a denied key.
    Denied(FlowOpening),
    /// New connections of an allowed key, or packets of a denied key, since the last such event of this key. The packet
    /// of `Opened` or `Denied` is included in the first one, which also follows if their message was lost.
    Counted {
        key: FlowKey,
        count: u64,
        generation: PolicyGeneration,
    },
    /// New connections or denied packets that no key was made for, since the last such event: more new keys than the
    /// limit, or a full set.
    Other {
        allowed: bool,
        count: u64,
    },
    Ended(ConnectionRecord),
    /// A live connection. A read of all live connections is a series of these, followed by `LiveComplete`.
    Live(ConnectionRecord),
    LiveComplete {
        connections: u64,
    },
    /// `events` is the least number that was lost.
    Lost {
        loss: FlowLoss,
        events: u64,
    },
}

impl fmt::Display for FlowCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlowCause::Rule(id) => id.fmt(f),
            FlowCause::TierEnd { tier, direction } => write!(f, "tier/{tier} {direction} end"),
            FlowCause::NoProfile(direction) => write!(f, "profiles {direction} end"),
            FlowCause::MissingProfile { profile, direction } => {
                write!(f, "profile/{profile} {direction} missing")
            }
            FlowCause::InvalidConnection => f.write_str("invalid connection state"),
            FlowCause::ClosedEndpoint => f.write_str("closed endpoint"),
            FlowCause::UnknownWorkload => f.write_str("unknown workload"),
            FlowCause::Spoofed => f.write_str("spoofed source"),
            FlowCause::Loopback => f.write_str("loopback of the host"),
            FlowCause::LinkLocal => f.write_str("link-local destination"),
            FlowCause::Encapsulation => f.write_str("encapsulation by a workload"),
            FlowCause::UnknownTunnel => f.write_str("tunnel of an unknown node"),
            FlowCause::ClosedHost => f.write_str("host closed to workloads"),
            FlowCause::Failsafe => f.write_str("failsafe port"),
            FlowCause::HostToWorkload => f.write_str("host to its workload"),
            FlowCause::ServiceLoop => f.write_str("no such service"),
            FlowCause::Mixed(identities) => write!(f, "several decisions ({identities:#010x})"),
            FlowCause::Unknown(identity) => write!(f, "unknown identity {identity:#010x}"),
        }
    }
}
