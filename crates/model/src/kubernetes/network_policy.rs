//! Converts Kubernetes NetworkPolicies (networking.k8s.io/v1), and their staged form, to Calico policies.

use super::ports::{PortsByProtocol, RuleDirection, ports_by_protocol, rules};
use super::selectors::{of_namespaces, of_pods};
use crate::kinds::{
    Action, DEFAULT_TIER, EntityRule, KubernetesPeer, KubernetesPort, KubernetesProtocol, NetworkPolicySpec,
    PolicyType, Rule, StagedKubernetesNetworkPolicySpec,
};
use crate::scalar::{CalicoFloat, Port, StringEnum};
use std::collections::BTreeMap;

/// The order of derived policies in their tier.
pub const DERIVED_POLICY_ORDER: f64 = 1000.0;

/// Converts a Kubernetes NetworkPolicy. Staged policies have the same fields and use the same type.
pub fn network_policy(spec: &StagedKubernetesNetworkPolicySpec) -> NetworkPolicySpec {
    let types = match spec.policy_types.as_slice() {
        // kube-apiserver sets this default; older objects lack it.
        [] => vec![PolicyType::Ingress],
        types => types.to_vec(),
    };
    NetworkPolicySpec {
        tier: DEFAULT_TIER.to_owned(),
        order: Some(CalicoFloat(DERIVED_POLICY_ORDER)),
        selector: selector(spec),
        ingress: ingress(spec),
        egress: egress(spec),
        types,
        ..NetworkPolicySpec::default()
    }
}

/// Returns the selector of the pods in its namespace that a policy applies to.
pub fn selector(spec: &StagedKubernetesNetworkPolicySpec) -> String {
    of_pods(&spec.pod_selector)
}

pub fn ingress(spec: &StagedKubernetesNetworkPolicySpec) -> Vec<Rule> {
    spec.ingress.iter().flat_map(|rule| expand(&rule.ports, &rule.from, RuleDirection::Ingress)).collect()
}

pub fn egress(spec: &StagedKubernetesNetworkPolicySpec) -> Vec<Rule> {
    spec.egress.iter().flat_map(|rule| expand(&rule.ports, &rule.to, RuleDirection::Egress)).collect()
}

fn expand(ports: &[KubernetesPort], peers: &[KubernetesPeer], towards: RuleDirection) -> Vec<Rule> {
    // An invalid port invalidates its rule only, not the policy.
    let Some(protocols) = by_protocol(ports) else { return Vec::new() };
    let everybody = [EntityRule::default()];
    let peers: Vec<EntityRule> = peers.iter().map(entity).collect();
    let peers = if peers.is_empty() { &everybody[..] } else { &peers[..] };
    rules(&Action::Allow, None, &protocols, peers, towards)
}

/// Groups the ports by protocol, sorted by protocol name; an empty list of ports means all ports.
fn by_protocol(ports: &[KubernetesPort]) -> Option<PortsByProtocol> {
    if ports.is_empty() {
        return Some(vec![(None, Vec::new())]);
    }
    let mut protocols: BTreeMap<&str, Option<Vec<Port>>> = BTreeMap::new();
    for port in ports {
        let name = port.protocol.as_ref().filter(|p| !p.is_unset()).map_or("TCP", KubernetesProtocol::as_str);
        let listed = protocols.entry(name).or_insert_with(|| Some(Vec::new()));
        match (&port.port, port.end_port) {
            (None, _) => *listed = None,
            (Some(Port::Number(first)), Some(last)) => {
                let range = Port::range(*first, u16::try_from(last).ok()?).ok()?;
                listed.as_mut().into_iter().for_each(|ports| ports.push(range.clone()));
            }
            (Some(port), _) => listed.as_mut().into_iter().for_each(|ports| ports.push(port.clone())),
        }
    }
    Some(ports_by_protocol(protocols))
}

fn entity(peer: &KubernetesPeer) -> EntityRule {
    if let Some(block) = &peer.ip_block {
        return EntityRule {
            nets: vec![block.cidr.clone()],
            not_nets: block.except.clone(),
            ..EntityRule::default()
        };
    }
    let namespace_selector = peer.namespace_selector.as_ref().map(of_namespaces).unwrap_or_default();
    let pods = peer.pod_selector.clone().unwrap_or_default();
    EntityRule { selector: of_pods(&pods), namespace_selector, ..EntityRule::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    const PODS: &str = "projectcalico.org/orchestrator == 'k8s'";

    fn converted(spec: Json) -> Json {
        let spec: StagedKubernetesNetworkPolicySpec = serde_json::from_value(spec).unwrap();
        serde_json::to_value(network_policy(&spec)).unwrap()
    }

    #[test]
    fn a_policy_without_rules_closes_what_it_selects() {
        assert_eq!(
            converted(json!({"podSelector": {}})),
            json!({"tier": "default", "order": 1000, "selector": PODS, "types": ["Ingress"]})
        );
        let both = converted(
            json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Egress", "Ingress"]}),
        );
        assert_eq!(both["selector"], format!("{PODS} && app == 'db'"));
        assert_eq!(both["types"], json!(["Egress", "Ingress"]));
    }

    #[test]
    fn an_empty_rule_allows_everything() {
        let spec =
            json!({"podSelector": {}, "ingress": [{}], "egress": [{}], "policyTypes": ["Ingress", "Egress"]});
        let policy = converted(spec);
        assert_eq!(policy["ingress"], json!([{"action": "Allow"}]));
        assert_eq!(policy["egress"], json!([{"action": "Allow"}]));
    }

    #[test]
    fn peers_are_selected_in_their_namespaces() {
        for (peer, expected) in [
            (json!({"podSelector": {}}), json!({"selector": PODS})),
            (
                json!({"podSelector": {"matchLabels": {"a": "b"}}}),
                json!({"selector": format!("{PODS} && a == 'b'")}),
            ),
            (json!({"namespaceSelector": {}}), json!({"selector": PODS, "namespaceSelector": "all()"})),
            (
                json!({"namespaceSelector": {"matchLabels": {"team": "x"}}, "podSelector": {"matchLabels": {"a": "b"}}}),
                json!({"selector": format!("{PODS} && a == 'b'"), "namespaceSelector": "team == 'x'"}),
            ),
            (json!({"ipBlock": {"cidr": "10.0.0.0/8"}}), json!({"nets": ["10.0.0.0/8"]})),
            (
                json!({"ipBlock": {"cidr": "fd00::/8", "except": ["fd00:1::/32", "fd00:2::/32"]}}),
                json!({"nets": ["fd00::/8"], "notNets": ["fd00:1::/32", "fd00:2::/32"]}),
            ),
        ] {
            let policy = converted(json!({"ingress": [{"from": [peer]}], "egress": [{"to": [peer]}]}));
            assert_eq!(policy["ingress"], json!([{"action": "Allow", "source": expected}]), "{peer}");
            assert_eq!(policy["egress"], json!([{"action": "Allow", "destination": expected}]), "{peer}");
        }
    }

    #[test]
    fn ports_become_the_fewest_ranges_of_their_protocol() {
        for (ports, expected) in [
            (json!([{}]), json!([{"action": "Allow", "protocol": "TCP"}])),
            (json!([{"protocol": "UDP"}]), json!([{"action": "Allow", "protocol": "UDP"}])),
            (
                json!([{"port": 80}, {"port": 81}, {"port": 90, "endPort": 95}, {"port": 96}, {"port": "web"}]),
                json!([{"action": "Allow", "protocol": "TCP", "destination": {"ports": ["web", "80:81", "90:96"]}}]),
            ),
            (json!([{"port": 80}, {"protocol": "TCP"}]), json!([{"action": "Allow", "protocol": "TCP"}])),
            (
                json!([{"port": 53, "protocol": "UDP"}, {"port": 9, "protocol": "SCTP"}, {"port": 7}]),
                json!([
                    {"action": "Allow", "protocol": "SCTP", "destination": {"ports": [9]}},
                    {"action": "Allow", "protocol": "TCP", "destination": {"ports": [7]}},
                    {"action": "Allow", "protocol": "UDP", "destination": {"ports": [53]}},
                ]),
            ),
            // A rule with an invalid port is omitted.
            (json!([{"port": 90, "endPort": 80}]), json!(null)),
            (json!([{"port": 90, "endPort": 70000}]), json!(null)),
        ] {
            let policy = converted(json!({"ingress": [{"ports": ports}], "egress": [{"ports": ports}]}));
            assert_eq!(policy.get("ingress").cloned().unwrap_or_default(), expected, "{ports}");
            assert_eq!(policy.get("egress").cloned().unwrap_or_default(), expected, "{ports}");
        }
    }

    #[test]
    fn one_rule_for_each_protocol_and_peer() {
        let policy = converted(json!({"ingress": [{
            "ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}],
            "from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}],
        }, {"from": [{"namespaceSelector": {}}]}]}));
        assert_eq!(policy["ingress"].as_array().unwrap().len(), 5);
    }
}
