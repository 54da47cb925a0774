//! Converts ClusterNetworkPolicies (policy.networking.k8s.io/v1alpha2) to Calico global policies in the tiers
//! `kube-admin` and `kube-baseline`.
//!
//! Rules that this version cannot express fail closed: an Accept rule is omitted, any other rule denies
//! everything in its direction.

use super::ports::{PortsByProtocol, RuleDirection, ports_by_protocol, rules};
use super::selectors::{of_namespaces, of_pods};
use crate::kinds::{
    Action, EntityRule, GlobalNetworkPolicySpec, LabelSelector, PolicyType, Rule, RuleMetadata,
};
use crate::scalar::{CalicoFloat, Port};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClusterNetworkPolicySpec {
    pub tier: String,
    pub priority: i32,
    pub subject: PolicySubject,
    pub ingress: Vec<PolicyRule>,
    pub egress: Vec<PolicyRule>,
}

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

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PolicyRule {
    name: String,
    action: String,
    #[serde(alias = "to")]
    from: Vec<PolicyRulePeer>,
    /// Absent: every protocol.
    protocols: Option<Vec<ProtocolMatch>>,
}

/// Exactly one field is set; if none is, the peer uses a field that this version does not know.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PolicyRulePeer {
    namespaces: Option<LabelSelector>,
    pods: Option<NamespacedPods>,
    networks: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProtocolMatch {
    tcp: Option<DestinationMatch>,
    udp: Option<DestinationMatch>,
    sctp: Option<DestinationMatch>,
    destination_named_port: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DestinationMatch {
    destination_port: Option<PortMatch>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PortMatch {
    number: Option<u16>,
    range: Option<PortMatchRange>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PortMatchRange {
    start: u16,
    end: u16,
}

/// Converts a policy. Returns `None` if it has no effect: an unknown tier, no subject, or no rules.
pub fn global_network_policy(spec: &ClusterNetworkPolicySpec) -> Option<GlobalNetworkPolicySpec> {
    let tier = match spec.tier.as_str() {
        "Admin" => "kube-admin",
        "Baseline" => "kube-baseline",
        _ => return None,
    };
    let subject = match (&spec.subject.namespaces, &spec.subject.pods) {
        (Some(namespaces), None) => select_pods(namespaces, &LabelSelector::default()),
        (None, Some(pods)) => select_pods(&pods.namespace_selector, &pods.pod_selector),
        _ => return None,
    };
    let mut types = Vec::new();
    types.extend((!spec.ingress.is_empty()).then_some(PolicyType::Ingress));
    types.extend((!spec.egress.is_empty()).then_some(PolicyType::Egress));
    (!types.is_empty()).then(|| GlobalNetworkPolicySpec {
        tier: tier.to_owned(),
        order: Some(CalicoFloat(f64::from(spec.priority))),
        selector: subject.selector,
        namespace_selector: subject.namespace_selector,
        types,
        ingress: spec.ingress.iter().flat_map(|rule| convert(rule, RuleDirection::Ingress)).collect(),
        egress: spec.egress.iter().flat_map(|rule| convert(rule, RuleDirection::Egress)).collect(),
        ..GlobalNetworkPolicySpec::default()
    })
}

fn convert(rule: &PolicyRule, towards: RuleDirection) -> Vec<Rule> {
    let action = match rule.action.as_str() {
        "Accept" => Some(Action::Allow),
        "Deny" => Some(Action::Deny),
        "Pass" => Some(Action::Pass),
        _ => None,
    };
    let metadata = (!rule.name.is_empty())
        .then(|| RuleMetadata { annotations: BTreeMap::from([("name".to_owned(), rule.name.clone())]) });
    let peers: Option<Vec<EntityRule>> = rule.from.iter().map(|peer| entity(peer, towards)).collect();
    let peers = peers.filter(|peers| !peers.is_empty());
    match (action, peers, by_protocol(rule.protocols.as_deref())) {
        (Some(action), Some(peers), Some(protocols)) => {
            rules(&action, metadata.as_ref(), &protocols, &peers, towards)
        }
        (Some(Action::Allow), ..) => Vec::new(),
        _ => vec![Rule { action: Action::Deny, metadata, ..Rule::default() }],
    }
}

fn select_pods(namespaces: &LabelSelector, pods: &LabelSelector) -> EntityRule {
    EntityRule {
        selector: of_pods(pods),
        namespace_selector: of_namespaces(namespaces),
        ..EntityRule::default()
    }
}

fn entity(peer: &PolicyRulePeer, towards: RuleDirection) -> Option<EntityRule> {
    match (&peer.namespaces, &peer.pods, peer.networks.as_slice()) {
        (Some(namespaces), None, []) => Some(select_pods(namespaces, &LabelSelector::default())),
        (None, Some(pods), []) => Some(select_pods(&pods.namespace_selector, &pods.pod_selector)),
        (None, None, networks) if towards == RuleDirection::Egress && !networks.is_empty() => {
            Some(EntityRule { nets: networks.to_vec(), ..EntityRule::default() })
        }
        _ => None,
    }
}

/// Groups the ports by protocol. Named ports do not specify a protocol.
fn by_protocol(matches: Option<&[ProtocolMatch]>) -> Option<PortsByProtocol> {
    let Some(matches) = matches else { return Some(vec![(None, Vec::new())]) };
    let mut protocols: BTreeMap<&str, Option<Vec<Port>>> = BTreeMap::new();
    let mut named = Vec::new();
    for one in matches {
        let name = &one.destination_named_port;
        let (protocol, destination) = match (&one.tcp, &one.udp, &one.sctp, name.is_empty()) {
            (Some(tcp), None, None, true) => ("TCP", tcp),
            (None, Some(udp), None, true) => ("UDP", udp),
            (None, None, Some(sctp), true) => ("SCTP", sctp),
            (None, None, None, false) => {
                named.push(Port::Named(name.clone()));
                continue;
            }
            _ => return None,
        };
        let listed = protocols.entry(protocol).or_insert_with(|| Some(Vec::new()));
        match &destination.destination_port {
            None => *listed = None,
            Some(port) => {
                let port = match (port.number, &port.range) {
                    (Some(number), None) => Port::Number(number),
                    (None, Some(range)) => Port::range(range.start, range.end).ok()?,
                    _ => return None,
                };
                listed.as_mut().into_iter().for_each(|ports| ports.push(port.clone()));
            }
        }
    }
    let mut all = ports_by_protocol(protocols);
    if !named.is_empty() {
        all.push((None, named));
    }
    // An empty list does not mean every protocol.
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    const PODS: &str = "projectcalico.org/orchestrator == 'k8s'";

    fn converted(spec: Json) -> Option<Json> {
        let spec: ClusterNetworkPolicySpec = serde_json::from_value(spec).unwrap();
        global_network_policy(&spec).map(|spec| serde_json::to_value(spec).unwrap())
    }

    fn with_egress(rule: Json) -> Json {
        let spec = json!({"tier": "Admin", "priority": 7, "subject": {"namespaces": {}}, "egress": [rule]});
        converted(spec).unwrap()["egress"].take()
    }

    #[test]
    fn tiers_subjects_and_priorities() {
        let rule = json!([{"name": "r", "action": "Pass", "from": [{"namespaces": {}}]}]);
        let policy = converted(json!({"tier": "Baseline", "priority": 12, "subject": {"namespaces":
            {"matchLabels": {"a": "b"}}}, "ingress": rule}));
        let all = json!({"selector": PODS, "namespaceSelector": "all()"});
        assert_eq!(
            policy.unwrap(),
            json!({"tier": "kube-baseline", "order": 12, "selector": PODS, "namespaceSelector": "a == 'b'",
                "types": ["Ingress"],
                "ingress": [{"action": "Pass", "source": all, "metadata": {"annotations": {"name": "r"}}}]})
        );
        let pods = json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"x": "y"}}}});
        let policy =
            converted(json!({"tier": "Admin", "priority": 0, "subject": pods, "ingress": rule})).unwrap();
        assert_eq!(policy["selector"], format!("{PODS} && x == 'y'"));
        assert_eq!((&policy["tier"], &policy["order"]), (&json!("kube-admin"), &json!(0)));
    }

    #[test]
    fn what_means_nothing_is_nothing() {
        let rule = json!([{"action": "Deny", "from": [{"namespaces": {}}]}]);
        for spec in [
            json!({"tier": "Other", "subject": {"namespaces": {}}, "ingress": rule}),
            json!({"tier": "Admin", "subject": {}, "ingress": rule}),
            json!({"tier": "Admin", "ingress": rule}),
            json!({"tier": "Admin", "subject": {"namespaces": {}}}),
        ] {
            assert_eq!(converted(spec.clone()), None, "{spec}");
        }
    }

    #[test]
    fn ports_and_networks() {
        let nets = json!([{"networks": ["10.0.0.0/8", "fd00::/8"]}]);
        let expected = |protocol: Option<&str>, ports: Json| {
            let mut rule = json!({"action": "Allow", "destination": {"nets": ["10.0.0.0/8", "fd00::/8"]}});
            if let Some(protocol) = protocol {
                rule["protocol"] = protocol.into();
            }
            if ports.as_array().is_some_and(|ports| !ports.is_empty()) {
                rule["destination"]["ports"] = ports;
            }
            rule
        };
        for (protocols, rules) in [
            (json!(null), vec![expected(None, json!([]))]),
            (json!([{"tcp": {}}]), vec![expected(Some("TCP"), json!([]))]),
            (
                json!([{"tcp": {"destinationPort": {"number": 80}}}, {"tcp": {"destinationPort": {"range": {"start": 81, "end": 90}}}}]),
                vec![expected(Some("TCP"), json!(["80:90"]))],
            ),
            (
                json!([{"udp": {"destinationPort": {"number": 53}}}, {"sctp": {}}, {"destinationNamedPort": "web"}]),
                vec![
                    expected(Some("SCTP"), json!([])),
                    expected(Some("UDP"), json!([53])),
                    expected(None, json!(["web"])),
                ],
            ),
        ] {
            let rule = json!({"action": "Accept", "to": nets, "protocols": protocols});
            assert_eq!(with_egress(rule), Json::from(rules), "{protocols}");
        }
    }

    #[test]
    fn what_cannot_be_expressed_fails_closed() {
        let fine = json!([{"namespaces": {}}]);
        for (peers, protocols) in [
            (json!([{"nodes": {}}]), json!(null)),
            (json!([{"domainNames": ["example.com"]}]), json!(null)),
            (json!([]), json!(null)),
            (json!([{"namespaces": {}}, {}]), json!(null)),
            (fine.clone(), json!([{}])),
            (fine.clone(), json!([])),
            (fine.clone(), json!([{"tcp": {"destinationPort": {}}}])),
            (fine, json!([{"tcp": {"destinationPort": {"range": {"start": 9, "end": 3}}}}])),
        ] {
            for (action, expected) in [
                ("Accept", json!(null)),
                ("Deny", json!([{"action": "Deny"}])),
                ("Pass", json!([{"action": "Deny"}])),
                ("Forward", json!([{"action": "Deny"}])),
            ] {
                let rule = json!({"action": action, "to": peers, "protocols": protocols});
                assert_eq!(with_egress(rule.clone()), expected, "{rule}");
            }
        }
        // Networks are not peers of ingress.
        let spec = json!({"tier": "Admin", "subject": {"namespaces": {}},
            "ingress": [{"action": "Pass", "from": [{"networks": ["10.0.0.0/8"]}]}]});
        assert_eq!(converted(spec).unwrap()["ingress"], json!([{"action": "Deny"}]));
    }
}
