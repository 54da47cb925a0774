//! The parts that all versions of cluster policies of policy.networking.k8s.io share: subjects, peers, and the
//! conversion of one rule.
//!
//! Rules that cannot be expressed or decoded fail closed: a rule that allows is omitted, any other rule denies everything
//! in its direction.

use super::ports::{PortsByProtocol, RuleDirection, ports_by_protocol, rules};
use super::selectors::{of_namespaces, of_nodes, of_pods};
use crate::kinds::{
    Action, EntityRule, GlobalNetworkPolicySpec, LabelSelector, PolicyType, Rule, RuleMetadata,
};
use crate::scalar::{CalicoFloat, Port};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use std::collections::BTreeMap;

pub(super) const ADMIN_TIER: &str = "kube-admin";
pub(super) const BASELINE_TIER: &str = "kube-baseline";

/// The pods that a policy applies to. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PolicySubject {
    namespaces: Option<LabelSelector>,
    pods: Option<NamespacedPods>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NamespacedPods {
    namespace_selector: LabelSelector,
    pod_selector: LabelSelector,
}

/// A rule whose port criteria are of the type `P`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, bound = "P: DeserializeOwned")]
pub struct PolicyRule<P> {
    name: String,
    action: String,
    #[serde(alias = "to")]
    from: Vec<PolicyRulePeer>,
    /// Absent: every protocol.
    #[serde(alias = "ports")]
    protocols: Option<Vec<P>>,
}

/// Exactly one field is set; if none is, the peer uses a field that this version does not know.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PolicyRulePeer {
    namespaces: Option<LabelSelector>,
    pods: Option<NamespacedPods>,
    nodes: Option<LabelSelector>,
    networks: Vec<String>,
}

/// Criteria for protocols and destination ports in one version of the API.
pub(super) trait PortCriterion: DeserializeOwned {
    /// Adds the ports that the criterion matches. Returns `None` if it cannot be expressed.
    fn add_to(&self, groups: &mut PortGroups) -> Option<()>;
}

/// Ports grouped by protocol. Named ports do not specify a protocol.
#[derive(Debug, Default)]
pub(super) struct PortGroups {
    /// `None`: all ports of the protocol.
    protocols: BTreeMap<&'static str, Option<Vec<Port>>>,
    named: Vec<Port>,
}

/// The rules of a policy, and everything else that its version defines differently.
pub(super) struct ClusterPolicy<'a, P> {
    pub tier: &'static str,
    /// `None`: after all policies of the tier that have an order.
    pub order: Option<i32>,
    pub subject: &'a PolicySubject,
    pub ingress: &'a [PolicyRule<P>],
    pub egress: &'a [PolicyRule<P>],
    /// Returns the action of a rule; `None` if the version does not have it.
    pub parse_action: fn(&str) -> Option<Action>,
}

impl PortGroups {
    /// Groups the ports of all criteria. Returns `None` if a criterion cannot be expressed or the list is empty: an empty
    /// list does not mean every protocol.
    fn collect<P: PortCriterion>(criteria: &[P]) -> Option<PortsByProtocol> {
        let mut groups = PortGroups::default();
        for criterion in criteria {
            criterion.add_to(&mut groups)?;
        }
        let mut all = ports_by_protocol(groups.protocols);
        if !groups.named.is_empty() {
            all.push((None, groups.named));
        }
        (!all.is_empty()).then_some(all)
    }

    pub fn add_port(&mut self, protocol: &'static str, port: Port) {
        if let Some(ports) = self.protocols.entry(protocol).or_insert_with(|| Some(Vec::new())) {
            ports.push(port);
        }
    }

    pub fn add_all_ports(&mut self, protocol: &'static str) {
        self.protocols.insert(protocol, None);
    }

    pub fn add_named_port(&mut self, name: &str) {
        self.named.push(Port::Named(name.to_owned()));
    }
}

impl<P> Default for PolicyRule<P> {
    fn default() -> Self {
        PolicyRule { name: String::new(), action: String::new(), from: Vec::new(), protocols: None }
    }
}

/// Decodes rules one by one. A rule that cannot be decoded keeps its name and action but has no peers, so that its
/// conversion fails closed; so does a value that is not a list.
pub(super) fn decode_rules<'de, D, P>(deserializer: D) -> Result<Vec<PolicyRule<P>>, D::Error>
where
    D: Deserializer<'de>,
    P: DeserializeOwned,
{
    Ok(match Json::deserialize(deserializer)? {
        Json::Null => Vec::new(),
        Json::Array(rules) => rules.iter().map(decode_rule).collect(),
        _ => vec![PolicyRule::default()],
    })
}

fn decode_rule<P: DeserializeOwned>(rule: &Json) -> PolicyRule<P> {
    PolicyRule::deserialize(rule).unwrap_or_else(|_| {
        let text = |field: &str| rule.get(field).and_then(Json::as_str).unwrap_or_default().to_owned();
        PolicyRule { name: text("name"), action: text("action"), ..PolicyRule::default() }
    })
}

impl<P: PortCriterion> ClusterPolicy<'_, P> {
    /// Converts the policy. Returns `None` if it has no effect: no subject, or no rules.
    pub fn convert(&self) -> Option<GlobalNetworkPolicySpec> {
        let subject = match (&self.subject.namespaces, &self.subject.pods) {
            (Some(namespaces), None) => select_pods(namespaces, &LabelSelector::default()),
            (None, Some(pods)) => select_pods(&pods.namespace_selector, &pods.pod_selector),
            _ => return None,
        };
        let mut types = Vec::new();
        types.extend((!self.ingress.is_empty()).then_some(PolicyType::Ingress));
        types.extend((!self.egress.is_empty()).then_some(PolicyType::Egress));
        if types.is_empty() {
            return None;
        }
        let ingress = self.ingress.iter().flat_map(|rule| self.convert_rule(rule, RuleDirection::Ingress));
        let egress = self.egress.iter().flat_map(|rule| self.convert_rule(rule, RuleDirection::Egress));
        Some(GlobalNetworkPolicySpec {
            tier: self.tier.to_owned(),
            order: self.order.map(|order| CalicoFloat(f64::from(order))),
            selector: subject.selector,
            namespace_selector: subject.namespace_selector,
            types,
            ingress: ingress.collect(),
            egress: egress.collect(),
            ..GlobalNetworkPolicySpec::default()
        })
    }

    fn convert_rule(&self, rule: &PolicyRule<P>, towards: RuleDirection) -> Vec<Rule> {
        let action = (self.parse_action)(&rule.action);
        let metadata = (!rule.name.is_empty())
            .then(|| RuleMetadata { annotations: BTreeMap::from([("name".to_owned(), rule.name.clone())]) });
        let peers = convert_peers(&rule.from, towards);
        let protocols = match &rule.protocols {
            Some(criteria) => PortGroups::collect(criteria),
            None => Some(vec![(None, Vec::new())]),
        };
        // Nodes have no named ports.
        let protocols = protocols.filter(|protocols| {
            let is_named = |port: &Port| matches!(port, Port::Named(_));
            let are_named = protocols.iter().flat_map(|(_, ports)| ports).any(is_named);
            !are_named || rule.from.iter().all(|peer| peer.nodes.is_none())
        });
        match (action, peers, protocols) {
            (Some(action), Some(peers), Some(protocols)) => {
                rules(&action, metadata.as_ref(), &protocols, &peers, towards)
            }
            (Some(Action::Allow), ..) => Vec::new(),
            _ => vec![Rule { action: Action::Deny, metadata, ..Rule::default() }],
        }
    }
}

fn select_pods(namespaces: &LabelSelector, pods: &LabelSelector) -> EntityRule {
    EntityRule {
        selector: of_pods(pods),
        namespace_selector: of_namespaces(namespaces),
        ..EntityRule::default()
    }
}

/// Converts peers. Returns `None` if a peer cannot be expressed or the list is empty.
fn convert_peers(peers: &[PolicyRulePeer], towards: RuleDirection) -> Option<Vec<EntityRule>> {
    let peers: Option<Vec<EntityRule>> = peers.iter().map(|peer| convert_peer(peer, towards)).collect();
    peers.filter(|peers| !peers.is_empty())
}

/// Converts a peer. Nodes and networks are peers of egress only.
fn convert_peer(peer: &PolicyRulePeer, towards: RuleDirection) -> Option<EntityRule> {
    match (&peer.namespaces, &peer.pods, &peer.nodes, peer.networks.as_slice()) {
        (Some(namespaces), None, None, []) => Some(select_pods(namespaces, &LabelSelector::default())),
        (None, Some(pods), None, []) => Some(select_pods(&pods.namespace_selector, &pods.pod_selector)),
        (None, None, Some(nodes), []) if towards == RuleDirection::Egress => {
            Some(EntityRule { selector: of_nodes(nodes), ..EntityRule::default() })
        }
        (None, None, None, networks) if towards == RuleDirection::Egress && !networks.is_empty() => {
            Some(EntityRule { nets: networks.to_vec(), ..EntityRule::default() })
        }
        _ => None,
    }
}
