//! Policies and profiles as a node enforces them: selectors are resolved to address sets, all other conditions are
//! plain matches.

use crate::set::SetId;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// The kind of resource that a policy comes from.
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
    /// Returns whether policies of this kind are computed and counted, but never enforced.
    pub fn is_staged(self) -> bool {
        use PolicyKind::*;
        matches!(self, StagedNetworkPolicy | StagedGlobalNetworkPolicy | StagedKubernetesNetworkPolicy)
    }

    pub const ALL: [PolicyKind; 7] = [
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

/// Identifies a policy. Its `Display` is Calico's short form: `np/shop/allow-web`, `gnp/deny-all`.
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

/// One policy that applies to an endpoint of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlannedPolicy {
    pub tier: String,
    /// Canonical selector of the endpoints it applies to. For display only: the endpoints are already selected.
    pub selector: String,
    pub ingress: Vec<PlannedRule>,
    pub egress: Vec<PlannedRule>,
}

/// Rules that apply after all policies. A profile that does not exist is in the plan as one that denies everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProfileRules {
    pub ingress: Vec<PlannedRule>,
    pub egress: Vec<PlannedRule>,
}

/// Direction as seen by the endpoint: ingress is towards it, egress is from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyDirection {
    Ingress,
    Egress,
}

impl PlannedPolicy {
    pub fn rules(&self, direction: PolicyDirection) -> &[PlannedRule] {
        match direction {
            PolicyDirection::Ingress => &self.ingress,
            PolicyDirection::Egress => &self.egress,
        }
    }

    /// Returns whether a rule can be enforced only by an HTTP proxy.
    pub fn has_unproxied_rules(&self) -> bool {
        self.ingress.iter().chain(&self.egress).any(PlannedRule::needs_proxy)
    }
}

impl ProfileRules {
    pub fn rules(&self, direction: PolicyDirection) -> &[PlannedRule] {
        match direction {
            PolicyDirection::Ingress => &self.ingress,
            PolicyDirection::Egress => &self.egress,
        }
    }

    /// Returns whether a rule can be enforced only by an HTTP proxy.
    pub fn has_unproxied_rules(&self) -> bool {
        self.ingress.iter().chain(&self.egress).any(PlannedRule::needs_proxy)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleAction {
    Allow,
    Deny,
    /// Logs the packet and continues with the next rule.
    Log,
    /// Skips the rest of the tier or, in a profile, the rest of the profile.
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpVersion {
    V4,
    V6,
}

/// A rule matches if all its conditions match; empty or absent fields do not restrict it. Lists of nets apply only to
/// packets of the same family: a rule whose list has no net of the packet's family does not match, even if the list
/// is negated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlannedRule {
    pub action: RuleAction,
    /// Explicit, or implied by the name of a protocol.
    pub ip_version: Option<IpVersion>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    pub not_protocol: Option<u8>,
    /// Matches ICMP in IPv4 packets and ICMPv6 in IPv6 packets. The negated condition does not match other protocols
    /// either.
    pub icmp: Option<IcmpMatch>,
    pub not_icmp: Option<IcmpMatch>,
    pub source: RuleSide,
    pub destination: RuleSide,
    /// Conditions on requests. Only an HTTP proxy can check them. Boxed, because few rules have any.
    pub http: Option<Box<HttpMatch>>,
    /// Annotations from the author of the rule.
    pub annotations: BTreeMap<String, String>,
}

impl PlannedRule {
    /// Creates a rule that matches everything.
    pub fn new(action: RuleAction) -> PlannedRule {
        PlannedRule {
            action,
            ip_version: None,
            protocol: None,
            not_protocol: None,
            icmp: None,
            not_icmp: None,
            source: RuleSide::default(),
            destination: RuleSide::default(),
            http: None,
            annotations: BTreeMap::new(),
        }
    }

    /// Creates a rule that matches nothing. It replaces a rule that cannot be expressed, so that the rules after it
    /// keep their index.
    pub fn never(action: RuleAction) -> PlannedRule {
        let source =
            RuleSide { nets: vec![IpNet::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED))], ..RuleSide::default() };
        PlannedRule { ip_version: Some(IpVersion::V6), source, ..PlannedRule::new(action) }
    }

    /// Returns whether the rule has conditions that only an HTTP proxy can check, so that it matches no connection of
    /// an endpoint without one. At an endpoint with a proxy it matches whole connections, whose requests the proxy checks.
    pub fn needs_proxy(&self) -> bool {
        self.http.as_ref().is_some_and(|http| !http.matches_without_proxy)
    }

    /// Returns all sets that the rule references.
    pub fn sets(&self) -> impl Iterator<Item = &SetId> {
        [&self.source, &self.destination].into_iter().flat_map(|side| {
            let lists = [&side.sets, &side.not_sets, &side.named_ports, &side.not_named_ports];
            lists.into_iter().flatten().chain(&side.service)
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IcmpMatch {
    pub r#type: u8,
    pub code: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortInterval {
    pub first: u16,
    pub last: u16,
}

/// Conditions on the source or the destination of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleSide {
    /// The address is in one of these, if there are any.
    pub nets: Vec<IpNet>,
    pub not_nets: Vec<IpNet>,
    /// The address is in every one of these sets.
    pub sets: Vec<SetId>,
    pub not_sets: Vec<SetId>,
    /// The port is in one of these ranges, or address, protocol and port are in one of the sets of named ports. No
    /// restriction if both lists are empty.
    pub ports: Vec<PortInterval>,
    pub named_ports: Vec<SetId>,
    pub not_ports: Vec<PortInterval>,
    pub not_named_ports: Vec<SetId>,
    /// Address, protocol and port are in this set of a service's endpoints; if the set has no ports, the address is.
    pub service: Option<SetId>,
    /// Conditions on an authenticated peer. Boxed, and present only if proxies receive the policy.
    pub peer: Option<Box<PeerMatch>>,
}

/// The selectors of one side of a rule as their author wrote them. The kernel enforces them through sets; a proxy also
/// compares them with the authenticated identity of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerMatch {
    pub selector: String,
    pub not_selector: String,
    pub namespace_selector: String,
    /// The service account is one of these, if there are any.
    pub service_accounts: Vec<String>,
    pub service_account_selector: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HttpMatch {
    pub methods: Vec<String>,
    pub paths: Vec<HttpPathMatch>,
    /// Match connections of endpoints without a proxy regardless of methods and paths: the setting
    /// `httpRulesWithoutProxy` requests it, or the rule denies.
    pub matches_without_proxy: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HttpPathMatch {
    Exact(String),
    Prefix(String),
}
