//! Policies and profiles as a node enforces them: selectors have become address sets, everything else is a plain match.

use crate::set::SetId;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// Which resource a policy comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyKind {
    NetworkPolicy,
    GlobalNetworkPolicy,
    StagedNetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    KubernetesNetworkPolicy,
    KubernetesClusterNetworkPolicy,
}

impl PolicyKind {
    /// Computed and counted, but never enforced.
    pub fn is_staged(self) -> bool {
        use PolicyKind::*;
        matches!(self, StagedNetworkPolicy | StagedGlobalNetworkPolicy | StagedKubernetesNetworkPolicy)
    }

    const ALL: [PolicyKind; 7] = [
        PolicyKind::NetworkPolicy,
        PolicyKind::GlobalNetworkPolicy,
        PolicyKind::StagedNetworkPolicy,
        PolicyKind::StagedGlobalNetworkPolicy,
        PolicyKind::StagedKubernetesNetworkPolicy,
        PolicyKind::KubernetesNetworkPolicy,
        PolicyKind::KubernetesClusterNetworkPolicy,
    ];

    pub fn from_short_name(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.short_name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::NetworkPolicy => "NetworkPolicy",
            PolicyKind::GlobalNetworkPolicy => "GlobalNetworkPolicy",
            PolicyKind::StagedNetworkPolicy => "StagedNetworkPolicy",
            PolicyKind::StagedGlobalNetworkPolicy => "StagedGlobalNetworkPolicy",
            PolicyKind::StagedKubernetesNetworkPolicy => "StagedKubernetesNetworkPolicy",
            PolicyKind::KubernetesNetworkPolicy => "KubernetesNetworkPolicy",
            PolicyKind::KubernetesClusterNetworkPolicy => "KubernetesClusterNetworkPolicy",
        }
    }

    pub fn short_name(self) -> &'static str {
        match self {
            PolicyKind::NetworkPolicy => "np",
            PolicyKind::GlobalNetworkPolicy => "gnp",
            PolicyKind::StagedNetworkPolicy => "snp",
            PolicyKind::StagedGlobalNetworkPolicy => "sgnp",
            PolicyKind::StagedKubernetesNetworkPolicy => "sknp",
            PolicyKind::KubernetesNetworkPolicy => "knp",
            PolicyKind::KubernetesClusterNetworkPolicy => "kcnp",
        }
    }
}

/// Who a policy is. Its `Display` is the short form of the reference: `np/shop/allow-web`, `gnp/deny-all`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyId {
    pub kind: PolicyKind,
    /// Empty for global kinds.
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyId { kind, namespace, name } = self;
        match namespace.as_str() {
            "" => write!(f, "{}/{name}", kind.short_name()),
            namespace => write!(f, "{}/{namespace}/{name}", kind.short_name()),
        }
    }
}

/// One policy that concerns an endpoint of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub tier: String,
    /// Canonical selector of the endpoints it applies to; for people, the matching is done.
    pub selector: String,
    pub ingress: Vec<Rule>,
    pub egress: Vec<Rule>,
}

/// Rules that apply after all policies. A profile that does not exist stands in the plan as one that denies everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub ingress: Vec<Rule>,
    pub egress: Vec<Rule>,
}

/// As the endpoint sees it: towards it or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Policy {
    pub fn rules(&self, direction: Direction) -> &[Rule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

impl Profile {
    pub fn rules(&self, direction: Direction) -> &[Rule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    Allow,
    Deny,
    /// Says so in the log and goes on with the next rule.
    Log,
    /// Leaves the tier; in a profile, the profile.
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpVersion {
    V4,
    V6,
}

/// All that is written must match; what is empty or absent does not restrict. Rules are per family: lists of nets
/// apply to the packets of their own family only, and a rule whose list has none of a packet's family does not match
/// it, not even when the list is a negated one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub action: Action,
    /// Given, or implied by the name of a protocol.
    pub ip_version: Option<IpVersion>,
    /// IP protocol numbers.
    pub protocol: Option<u8>,
    pub not_protocol: Option<u8>,
    /// Of ICMP for IPv4 packets, of ICMPv6 for IPv6 packets; the negated one does not match other protocols either.
    pub icmp: Option<Icmp>,
    pub not_icmp: Option<Icmp>,
    pub source: Side,
    pub destination: Side,
    /// For the L7 component; the kernel treats the rule as if this were not there.
    pub http: Option<Http>,
    /// Notes of the author.
    pub annotations: BTreeMap<String, String>,
}

impl Rule {
    /// A rule that matches everything.
    pub fn new(action: Action) -> Rule {
        Rule {
            action,
            ip_version: None,
            protocol: None,
            not_protocol: None,
            icmp: None,
            not_icmp: None,
            source: Side::default(),
            destination: Side::default(),
            http: None,
            annotations: BTreeMap::new(),
        }
    }

    /// A rule that matches nothing. It stands for one that cannot be expressed, so that those behind it keep their index.
    pub fn never(action: Action) -> Rule {
        let source = Side { nets: vec![IpNet::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED))], ..Side::default() };
        Rule { ip_version: Some(IpVersion::V6), source, ..Rule::new(action) }
    }

    /// All sets that it names.
    pub fn sets(&self) -> impl Iterator<Item = &SetId> {
        [&self.source, &self.destination].into_iter().flat_map(|side| {
            let lists = [&side.sets, &side.not_sets, &side.named_ports, &side.not_named_ports];
            lists.into_iter().flatten().chain(&side.service)
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Icmp {
    pub r#type: u8,
    pub code: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// One end of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// The address is in one of these, if there are any.
    pub nets: Vec<IpNet>,
    pub not_nets: Vec<IpNet>,
    /// The address is in every one of these sets.
    pub sets: Vec<SetId>,
    pub not_sets: Vec<SetId>,
    /// The port is in one of these ranges, or address, protocol and port are in one of the sets of named ports; if
    /// there are any of either.
    pub ports: Vec<PortRange>,
    pub named_ports: Vec<SetId>,
    pub not_ports: Vec<PortRange>,
    pub not_named_ports: Vec<SetId>,
    /// Address, protocol and port are in this set of a service's endpoints.
    pub service: Option<SetId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Http {
    pub methods: Vec<String>,
    pub paths: Vec<HttpPath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpPath {
    Exact(String),
    Prefix(String),
}
