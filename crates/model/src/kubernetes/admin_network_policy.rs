//! Converts AdminNetworkPolicies and BaselineAdminNetworkPolicies (policy.networking.k8s.io/v1alpha1) to Calico global
//! policies in the tiers `kube-admin` and `kube-baseline`, which they share with ClusterNetworkPolicies.

use super::cluster_policy_rules::{
    ADMIN_TIER, BASELINE_TIER, ClusterPolicy, PolicyRule, PolicySubject, PortCriterion, PortGroups,
    decode_rules,
};
use crate::kinds::{Action, GlobalNetworkPolicySpec};
use crate::scalar::Port;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AdminNetworkPolicySpec {
    priority: i32,
    subject: PolicySubject,
    #[serde(deserialize_with = "decode_rules")]
    ingress: Vec<PolicyRule<AdminPort>>,
    #[serde(deserialize_with = "decode_rules")]
    egress: Vec<PolicyRule<AdminPort>>,
}

/// Has no priority: a cluster has one such policy, named `default`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BaselineAdminNetworkPolicySpec {
    subject: PolicySubject,
    #[serde(deserialize_with = "decode_rules")]
    ingress: Vec<PolicyRule<AdminPort>>,
    #[serde(deserialize_with = "decode_rules")]
    egress: Vec<PolicyRule<AdminPort>>,
}

/// Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AdminPort {
    port_number: Option<AdminPortNumber>,
    port_range: Option<AdminPortRange>,
    named_port: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct AdminPortNumber {
    protocol: String,
    port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct AdminPortRange {
    protocol: String,
    start: u16,
    end: u16,
}

/// Converts an AdminNetworkPolicy. Returns `None` if it has no effect: no subject, or no rules.
pub fn from_admin_network_policy(spec: &AdminNetworkPolicySpec) -> Option<GlobalNetworkPolicySpec> {
    let policy = ClusterPolicy {
        tier: ADMIN_TIER,
        order: Some(spec.priority),
        subject: &spec.subject,
        ingress: &spec.ingress,
        egress: &spec.egress,
        parse_action: |action| match action {
            "Allow" => Some(Action::Allow),
            "Deny" => Some(Action::Deny),
            "Pass" => Some(Action::Pass),
            _ => None,
        },
    };
    policy.convert()
}

/// Converts a BaselineAdminNetworkPolicy. Returns `None` if it has no effect: no subject, or no rules.
pub fn from_baseline_policy(spec: &BaselineAdminNetworkPolicySpec) -> Option<GlobalNetworkPolicySpec> {
    let policy = ClusterPolicy {
        tier: BASELINE_TIER,
        order: None,
        subject: &spec.subject,
        ingress: &spec.ingress,
        egress: &spec.egress,
        parse_action: |action| match action {
            "Allow" => Some(Action::Allow),
            "Deny" => Some(Action::Deny),
            _ => None,
        },
    };
    policy.convert()
}

impl PortCriterion for AdminPort {
    fn add_to(&self, groups: &mut PortGroups) -> Option<()> {
        match (&self.port_number, &self.port_range, &self.named_port) {
            (Some(number), None, None) if number.port > 0 => {
                groups.add_port(parse_protocol(&number.protocol)?, Port::Number(number.port));
            }
            (None, Some(range), None) => {
                let ports = Port::range(range.start, range.end).ok()?;
                groups.add_port(parse_protocol(&range.protocol)?, ports);
            }
            (None, None, Some(name)) if !name.is_empty() => groups.add_named_port(name),
            _ => return None,
        }
        Some(())
    }
}

/// Returns the name of a protocol; the default is TCP.
fn parse_protocol(text: &str) -> Option<&'static str> {
    match text {
        "" | "TCP" => Some("TCP"),
        "UDP" => Some("UDP"),
        "SCTP" => Some("SCTP"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    const PODS: &str = "projectcalico.org/orchestrator == 'k8s'";

    fn admin(spec: Json) -> Option<Json> {
        let spec: AdminNetworkPolicySpec = serde_json::from_value(spec).unwrap();
        from_admin_network_policy(&spec).map(|spec| serde_json::to_value(spec).unwrap())
    }

    fn baseline(spec: Json) -> Option<Json> {
        let spec: BaselineAdminNetworkPolicySpec = serde_json::from_value(spec).unwrap();
        from_baseline_policy(&spec).map(|spec| serde_json::to_value(spec).unwrap())
    }

    fn with_egress(rule: Json) -> Json {
        let spec = json!({"priority": 7, "subject": {"namespaces": {}}, "egress": [rule]});
        admin(spec).unwrap()["egress"].take()
    }

    #[test]
    fn policies_belong_to_the_tiers_of_kubernetes() {
        let rule = json!([{"name": "r", "action": "Deny", "from": [{"namespaces": {}}]}]);
        let subject = json!({"namespaces": {"matchLabels": {"a": "b"}}});
        let all = json!({"selector": PODS, "namespaceSelector": "all()"});
        let mut expected = json!({"tier": "kube-admin", "order": 12, "selector": PODS,
            "namespaceSelector": "a == 'b'", "types": ["Ingress"],
            "ingress": [{"action": "Deny", "source": all, "metadata": {"annotations": {"name": "r"}}}]});
        let spec = json!({"priority": 12, "subject": subject, "ingress": rule});
        assert_eq!(admin(spec.clone()).unwrap(), expected);
        expected["tier"] = json!("kube-baseline");
        expected.as_object_mut().unwrap().remove("order");
        assert_eq!(baseline(spec).unwrap(), expected);
        for spec in [json!({"subject": {}, "ingress": rule}), json!({"subject": {"namespaces": {}}})] {
            assert_eq!((admin(spec.clone()), baseline(spec)), (None, None));
        }
    }

    #[test]
    fn ports_have_numbers_ranges_and_names() {
        let nets = json!({"nets": ["10.0.0.0/8"]});
        let expected = |protocol: &str, ports: Json| {
            let mut destination = nets.clone();
            destination["ports"] = ports;
            json!({"action": "Allow", "protocol": protocol, "destination": destination})
        };
        let named = json!({"action": "Allow", "destination": {"nets": ["10.0.0.0/8"], "ports": ["web"]}});
        for (ports, rules) in [
            (json!(null), json!([{"action": "Allow", "destination": nets}])),
            (json!([{"portNumber": {"port": 80}}]), json!([expected("TCP", json!([80]))])),
            (
                json!([{"portNumber": {"protocol": "UDP", "port": 53}}, {"namedPort": "web"},
                    {"portRange": {"protocol": "UDP", "start": 54, "end": 60}},
                    {"portRange": {"start": 1, "end": 9}}]),
                json!([expected("TCP", json!(["1:9"])), expected("UDP", json!(["53:60"])), named]),
            ),
        ] {
            let rule = json!({"action": "Allow", "to": [{"networks": ["10.0.0.0/8"]}], "ports": ports});
            assert_eq!(with_egress(rule), rules, "{ports}");
        }
    }

    #[test]
    fn nodes_are_peers_of_egress() {
        let rule = json!({"action": "Pass", "to": [{"nodes": {"matchLabels": {"zone": "a"}}}],
            "ports": [{"portNumber": {"protocol": "TCP", "port": 6443}}]});
        let nodes = "projectcalico.org/kind == 'Node' && zone == 'a'";
        let expected = json!([{"action": "Pass", "protocol": "TCP",
            "destination": {"selector": nodes, "ports": [6443]}}]);
        assert_eq!(with_egress(rule), expected);
    }

    #[test]
    fn what_cannot_be_expressed_fails_closed() {
        let fine = json!([{"namespaces": {}}]);
        for (peers, ports) in [
            (json!([{"domainNames": ["example.com"]}]), json!(null)),
            (json!([{"nodes": {}}]), json!([{"namedPort": "web"}])),
            (json!([{"nodes": {}}, {"nodes": 3}]), json!(null)),
            (json!([]), json!(null)),
            (fine.clone(), json!([])),
            (fine.clone(), json!([{}])),
            (fine.clone(), json!([{"portNumber": {"port": 0}}])),
            (fine.clone(), json!([{"portNumber": {"protocol": "ICMP", "port": 1}}])),
            (fine.clone(), json!([{"portNumber": {"port": 1}, "namedPort": "web"}])),
            (fine, json!([{"portRange": {"start": 9, "end": 3}}])),
        ] {
            for (action, expected) in [
                ("Allow", json!(null)),
                ("Deny", json!([{"action": "Deny"}])),
                ("Pass", json!([{"action": "Deny"}])),
                ("Accept", json!([{"action": "Deny"}])),
            ] {
                let rule = json!({"action": action, "to": peers, "ports": ports});
                assert_eq!(with_egress(rule.clone()), expected, "{rule}");
            }
        }
        // A baseline policy cannot pass: nothing is evaluated after it.
        let spec = json!({"subject": {"namespaces": {}},
            "ingress": [{"action": "Pass", "from": [{"namespaces": {}}]}]});
        assert_eq!(baseline(spec).unwrap()["ingress"], json!([{"action": "Deny"}]));
    }
}
