//! Converts ClusterNetworkPolicies (policy.networking.k8s.io/v1alpha2) to Calico global policies in the tiers
//! `kube-admin` and `kube-baseline`.

use super::cluster_policy_rules::{
    ADMIN_TIER, BASELINE_TIER, ClusterPolicy, PolicyRule, PolicySubject, PortCriterion, PortGroups,
    decode_rules,
};
use crate::kinds::{Action, GlobalNetworkPolicySpec};
use crate::scalar::Port;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClusterNetworkPolicySpec {
    tier: String,
    priority: i32,
    subject: PolicySubject,
    #[serde(deserialize_with = "decode_rules")]
    ingress: Vec<PolicyRule<ProtocolMatch>>,
    #[serde(deserialize_with = "decode_rules")]
    egress: Vec<PolicyRule<ProtocolMatch>>,
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
        "Admin" => ADMIN_TIER,
        "Baseline" => BASELINE_TIER,
        _ => return None,
    };
    let policy = ClusterPolicy {
        tier,
        order: Some(spec.priority),
        subject: &spec.subject,
        ingress: &spec.ingress,
        egress: &spec.egress,
        parse_action,
    };
    policy.convert()
}

fn parse_action(action: &str) -> Option<Action> {
    match action {
        "Accept" => Some(Action::Allow),
        "Deny" => Some(Action::Deny),
        "Pass" => Some(Action::Pass),
        _ => None,
    }
}

impl PortCriterion for ProtocolMatch {
    fn add_to(&self, groups: &mut PortGroups) -> Option<()> {
        let name = &self.destination_named_port;
        let (protocol, destination) = match (&self.tcp, &self.udp, &self.sctp, name.is_empty()) {
            (Some(tcp), None, None, true) => ("TCP", tcp),
            (None, Some(udp), None, true) => ("UDP", udp),
            (None, None, Some(sctp), true) => ("SCTP", sctp),
            (None, None, None, false) => {
                groups.add_named_port(name);
                return Some(());
            }
            _ => return None,
        };
        let Some(port) = &destination.destination_port else {
            groups.add_all_ports(protocol);
            return Some(());
        };
        let port = match (port.number, &port.range) {
            (Some(number), None) => Port::Number(number),
            (None, Some(range)) => Port::range(range.start, range.end).ok()?,
            _ => return None,
        };
        groups.add_port(protocol, port);
        Some(())
    }
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
            (json!([{"nodes": {}, "namespaces": {}}]), json!(null)),
            (json!([{"nodes": {}}]), json!([{"destinationNamedPort": "web"}])),
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
        for peer in [json!({"networks": ["10.0.0.0/8"]}), json!({"nodes": {}})] {
            let spec = json!({"tier": "Admin", "subject": {"namespaces": {}},
                "ingress": [{"action": "Pass", "from": [peer]}]});
            assert_eq!(converted(spec).unwrap()["ingress"], json!([{"action": "Deny"}]), "{peer}");
        }
    }

    #[test]
    fn rules_that_cannot_be_decoded_fail_closed() {
        let broken = |action: &str| json!({"name": "r", "action": action, "to": [{"networks": 5}]});
        let named = json!({"annotations": {"name": "r"}});
        for (action, expected) in [
            ("Accept", json!(null)),
            ("Deny", json!([{"action": "Deny", "metadata": named}])),
            ("Pass", json!([{"action": "Deny", "metadata": named}])),
        ] {
            assert_eq!(with_egress(broken(action)), expected);
        }
        let wide = json!({"action": "Accept", "to": [{"nodes": {}}],
            "protocols": [{"tcp": {"destinationPort": {"number": 70_000}}}]});
        assert_eq!(with_egress(wide), json!(null));
        // The other rules of the policy stay in force.
        let spec = json!({"tier": "Admin", "subject": {"namespaces": {}}, "ingress": "all",
            "egress": [broken("Accept"), {"action": "Pass", "to": [{"networks": ["10.0.0.0/8"]}]}]});
        let policy = converted(spec).unwrap();
        assert_eq!(policy["ingress"], json!([{"action": "Deny"}]));
        let pass = json!([{"action": "Pass", "destination": {"nets": ["10.0.0.0/8"]}}]);
        assert_eq!((&policy["egress"], &policy["types"]), (&pass, &json!(["Ingress", "Egress"])));
    }

    #[test]
    fn nodes_are_peers_of_egress() {
        let peers = json!([{"nodes": {"matchLabels": {"zone": "a"}}}, {"nodes": {}}]);
        let rule = json!({"action": "Deny", "to": peers, "protocols": [{"tcp": {}}]});
        let selectors =
            ["projectcalico.org/kind == 'Node' && zone == 'a'", "projectcalico.org/kind == 'Node'"];
        let expected = selectors
            .map(|nodes| json!({"action": "Deny", "protocol": "TCP", "destination": {"selector": nodes}}));
        assert_eq!(with_egress(rule), json!(expected));
    }
}
