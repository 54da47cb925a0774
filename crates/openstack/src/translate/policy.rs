//! Security groups as NetworkPolicies.

use super::TranslateError;
use crate::OpenStackRegion;
use crate::names::compose_policy_name;
use crate::neutron::{RuleProtocol, SecurityGroup, SecurityGroupRule};
use ipnet::IpNet;
use tortie_model::kinds::{Action, EntityRule, ICMPFields, NetworkPolicy, NetworkPolicySpec, Rule};
use tortie_model::names::check_dotted;
use tortie_model::scalar::{Port, Protocol};
use tortie_model::{FieldError, ObjectMeta, ValidationError};

/// Neutron's value for an unset number.
const UNSET: i64 = -1;
const ANY_PROTOCOL_NAMES: [&str; 4] = ["any", "-1", "0", ""];
/// Names of protocols that Neutron accepts, without the two names of ICMP that Calico knows too.
const PROTOCOL_NUMBERS: [(&str, u8); 23] = [
    ("ah", 51),
    ("dccp", 33),
    ("egp", 8),
    ("esp", 50),
    ("gre", 47),
    ("hopopt", 0),
    ("icmpv6", 58),
    ("igmp", 2),
    ("ipip", 4),
    ("ipv6-encap", 41),
    ("ipv6-frag", 44),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("ipv6-route", 43),
    ("ospf", 89),
    ("pgm", 113),
    ("rsvp", 46),
    ("sctp", 132),
    ("tcp", 6),
    ("udp", 17),
    ("udplite", 136),
    ("vrrp", 112),
    ("ip", 0),
];

/// The policy of a security group, and the rules that it lacks.
#[derive(Debug)]
pub struct PolicyTranslation {
    pub policy: NetworkPolicy,
    /// Reasons why rules are not part of the policy. Neutron's rules only allow traffic, so the traffic of these
    /// rules stays denied.
    pub rejected: Vec<String>,
}

/// Returns the policy of a security group.
pub fn translate_group(
    group: &SecurityGroup,
    region: &OpenStackRegion,
) -> Result<PolicyTranslation, TranslateError> {
    check_dotted(&group.id).map_err(|reason| TranslateError::Invalid {
        object: format!("security group {}", group.id),
        error: ValidationError {
            errors: vec![FieldError {
                name: "id".into(),
                value: group.id.clone(),
                reason: reason.to_string(),
            }],
        },
    })?;
    let mut spec = NetworkPolicySpec { selector: select_group(&group.id), ..NetworkPolicySpec::default() };
    let mut rejected = Vec::new();
    // Neutron returns rules in any order; a stable one avoids needless writes. All of them allow, so it has no effect.
    let mut rules: Vec<&SecurityGroupRule> = group.security_group_rules.iter().collect();
    rules.sort_by(|a, b| a.id.cmp(&b.id));
    for rule in rules {
        let list = match rule.direction.as_str() {
            "ingress" => &mut spec.ingress,
            "egress" => &mut spec.egress,
            other => {
                rejected
                    .push(format!("rule {}: direction is {other:?}: expected ingress or egress", rule.id));
                continue;
            }
        };
        match translate_rule(rule).and_then(check_rule) {
            Ok(rule) => list.push(rule),
            Err(reason) => rejected.push(format!("rule {}: {reason}", rule.id)),
        }
    }
    let metadata = ObjectMeta {
        name: compose_policy_name(&group.id),
        namespace: region.namespace(),
        ..ObjectMeta::default()
    };
    Ok(PolicyTranslation { policy: NetworkPolicy::new(metadata, spec), rejected })
}

fn select_group(id: &str) -> String {
    format!("has(sg.projectcalico.org/openstack-{id})")
}

fn translate_rule(rule: &SecurityGroupRule) -> Result<Rule, String> {
    let version = match rule.ethertype.as_str() {
        "IPv4" => 4,
        "IPv6" => 6,
        other => return Err(format!("ethertype is {other:?}: expected IPv4 or IPv6")),
    };
    if let Some(group) = &rule.remote_address_group_id {
        return Err(format!("remote_address_group_id is {group:?}: address groups are not supported"));
    }
    let protocol = translate_protocol(rule.protocol.as_ref(), version)?;
    let mut peer = EntityRule::default();
    if let Some(group) = &rule.remote_group_id {
        peer.selector = select_group(group);
    }
    if let Some(prefix) = &rule.remote_ip_prefix {
        peer.nets.push(mask_prefix(prefix)?);
    }
    let mut translated = Rule { action: Action::Allow, ip_version: Some(version), ..Rule::default() };
    let mut ports = Vec::new();
    if protocol.as_ref().is_some_and(Protocol::is_icmp) {
        translated.icmp = translate_icmp(rule);
    } else {
        ports.extend(translate_ports(rule)?);
    }
    translated.protocol = protocol;
    if rule.direction == "ingress" {
        translated.source = peer;
        translated.destination.ports = ports;
    } else {
        translated.destination = EntityRule { ports, ..peer };
    }
    Ok(translated)
}

fn translate_protocol(protocol: Option<&RuleProtocol>, version: i64) -> Result<Option<Protocol>, String> {
    let name = match protocol {
        None | Some(RuleProtocol::Number(UNSET | 0)) => return Ok(None),
        Some(RuleProtocol::Number(number)) => {
            let number =
                u8::try_from(*number).map_err(|_| format!("protocol is {number}: expected 0 to 255"))?;
            return Ok(Some(Protocol::Number(number)));
        }
        Some(RuleProtocol::Name(name)) => name.to_ascii_lowercase(),
    };
    if ANY_PROTOCOL_NAMES.contains(&name.as_str()) {
        return Ok(None);
    }
    if name == "ipv6-icmp" || name == "icmp" && version == 6 {
        return Ok(Some(Protocol::Name("ICMPv6".to_owned())));
    }
    if name == "icmp" {
        return Ok(Some(Protocol::Name("ICMP".to_owned())));
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(Protocol::Number(number)));
    }
    match PROTOCOL_NUMBERS.iter().find(|(known, _)| *known == name) {
        // Neutron's names of protocol 0 mean any protocol.
        Some((_, 0)) => Ok(None),
        Some((_, number)) => Ok(Some(Protocol::Number(*number))),
        None => Ok(Some(Protocol::Name(name.to_ascii_uppercase()))),
    }
}

fn set_number(value: Option<i64>) -> Option<i64> {
    value.filter(|number| *number != UNSET)
}

fn translate_icmp(rule: &SecurityGroupRule) -> Option<ICMPFields> {
    let fields =
        ICMPFields { r#type: set_number(rule.port_range_min), code: set_number(rule.port_range_max) };
    (fields != ICMPFields::default()).then_some(fields)
}

fn translate_ports(rule: &SecurityGroupRule) -> Result<Option<Port>, String> {
    let (first, last) = match (set_number(rule.port_range_min), rule.port_range_max) {
        (None, _) if rule.port_range_min.is_some() || rule.port_range_max.is_none() => return Ok(None),
        (first, last) => (first.or(last), last.or(first)),
    };
    let parse = |port: Option<i64>| port.and_then(|port| u16::try_from(port).ok());
    let range = parse(first).zip(parse(last)).and_then(|(first, last)| Port::range(first, last).ok());
    range.map(Some).ok_or_else(|| {
        let print = |port: Option<i64>| port.map_or_else(|| "null".to_owned(), |port| port.to_string());
        format!(
            "ports are {} to {}: expected two ports in order",
            print(rule.port_range_min),
            print(rule.port_range_max)
        )
    })
}

/// Returns the prefix without host bits, which Calico rejects.
fn mask_prefix(prefix: &str) -> Result<String, String> {
    let net: IpNet =
        prefix.parse().map_err(|_| format!("remote_ip_prefix is {prefix:?}: expected an IP network"))?;
    Ok(net.trunc().to_string())
}

/// Checks one rule with the rules of policies.
fn check_rule(rule: Rule) -> Result<Rule, String> {
    let metadata = ObjectMeta { name: "rule".to_owned(), ..ObjectMeta::default() };
    let spec = NetworkPolicySpec { ingress: vec![rule], ..NetworkPolicySpec::default() };
    let mut policy = NetworkPolicy::new(metadata, spec);
    policy.set_defaults();
    policy.validate().map_err(|error| error.to_string())?;
    policy.spec.ingress.pop().ok_or_else(|| "the rule is empty".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn translate(rules: Value) -> (Value, Vec<String>) {
        let group =
            serde_json::from_value(json!({"id": "sg1", "name": "web", "security_group_rules": rules}))
                .unwrap();
        let PolicyTranslation { policy, rejected } =
            translate_group(&group, &OpenStackRegion::default()).unwrap();
        (policy.to_value(), rejected)
    }

    /// Returns the only rule of a direction that a rule of Neutron becomes.
    fn translate_one(rule: Value) -> Result<Value, String> {
        let (policy, mut rejected) = translate(json!([rule]));
        match rejected.pop() {
            Some(reason) => Err(reason),
            None => Ok(policy["spec"]["ingress"][0].clone()),
        }
    }

    #[test]
    fn groups_become_policies() {
        let (policy, rejected) = translate(json!([
            {"id": "r1", "direction": "egress", "ethertype": "IPv4", "protocol": null},
            {"id": "r2", "direction": "ingress", "ethertype": "IPv6", "remote_group_id": "sg2"},
            {"id": "r3", "direction": "egress", "ethertype": "IPv4", "protocol": "tcp", "port_range_min": 80,
                "port_range_max": 90, "remote_ip_prefix": "10.0.0.0/8"},
        ]));
        assert_eq!(policy["metadata"], json!({"name": "ossg.default.sg1", "namespace": "openstack"}));
        assert_eq!(
            policy["spec"],
            json!({
                "ingress": [{"action": "Allow", "ipVersion": 6,
                    "source": {"selector": "has(sg.projectcalico.org/openstack-sg2)"}}],
                "egress": [
                    {"action": "Allow", "ipVersion": 4},
                    {"action": "Allow", "ipVersion": 4, "protocol": 6,
                        "destination": {"nets": ["10.0.0.0/8"], "ports": ["80:90"]}},
                ],
                "selector": "has(sg.projectcalico.org/openstack-sg1)",
            })
        );
        assert!(rejected.is_empty(), "{rejected:?}");
    }

    #[test]
    fn protocols_follow_the_table() {
        for (ethertype, protocol, expected) in [
            ("IPv4", json!(null), Value::Null),
            ("IPv4", json!(-1), Value::Null),
            ("IPv4", json!("any"), Value::Null),
            ("IPv4", json!("0"), Value::Null),
            ("IPv4", json!("icmp"), json!("ICMP")),
            ("IPv6", json!("icmp"), json!("ICMPv6")),
            ("IPv6", json!("ipv6-icmp"), json!("ICMPv6")),
            ("IPv6", json!("icmpv6"), json!(58)),
            ("IPv4", json!("tcp"), json!(6)),
            ("IPv4", json!("TCP"), json!(6)),
            ("IPv4", json!("vrrp"), json!(112)),
            ("IPv4", json!("112"), json!(112)),
            ("IPv4", json!(47), json!(47)),
        ] {
            let rule = json!({"direction": "ingress", "ethertype": ethertype, "protocol": protocol});
            assert_eq!(translate_one(rule).unwrap()["protocol"], expected, "{ethertype} {protocol}");
        }
    }

    #[test]
    fn ports_are_numbers_or_ranges() {
        for (min, max, expected) in [
            (json!(80), json!(80), json!([80])),
            (json!(80), json!(90), json!(["80:90"])),
            (json!(null), json!(null), Value::Null),
            (json!(-1), json!(-1), Value::Null),
        ] {
            let rule = json!({"direction": "ingress", "ethertype": "IPv4", "protocol": "udp",
                "port_range_min": min, "port_range_max": max});
            assert_eq!(translate_one(rule).unwrap()["destination"]["ports"], expected, "{min} {max}");
        }
    }

    #[test]
    fn icmp_rules_have_type_and_code() {
        for (min, max, expected) in [
            (json!(8), json!(0), json!({"type": 8, "code": 0})),
            (json!(8), json!(null), json!({"type": 8})),
            (json!(8), json!(-1), json!({"type": 8})),
            (json!(null), json!(null), Value::Null),
        ] {
            let rule = json!({"direction": "ingress", "ethertype": "IPv4", "protocol": "icmp",
                "port_range_min": min, "port_range_max": max});
            assert_eq!(translate_one(rule).unwrap()["icmp"], expected, "{min} {max}");
        }
    }

    #[test]
    fn rejected_rules_leave_the_others() {
        let good = json!({"id": "good", "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp"});
        for (field, value) in [
            ("direction", json!("sideways")),
            ("ethertype", json!("IPX")),
            ("protocol", json!("no-such")),
            ("protocol", json!(300)),
            ("port_range_max", json!(70_000)),
            ("remote_ip_prefix", json!("10.0.0/8")),
            ("remote_ip_prefix", json!("fd00::/64")),
            ("remote_address_group_id", json!("ag1")),
        ] {
            let mut bad = json!({"id": "bad", "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "port_range_min": 1});
            bad[field] = value.clone();
            let (policy, rejected) = translate(json!([bad, good]));
            assert_eq!(policy["spec"]["ingress"].as_array().unwrap().len(), 1, "{field} {value}");
            assert_eq!(rejected.len(), 1, "{field} {value}");
            assert!(rejected[0].contains("rule bad"), "{rejected:?}");
        }
    }

    #[test]
    fn the_order_of_rules_is_stable() {
        let one = json!({"id": "r1", "direction": "egress", "ethertype": "IPv4"});
        let two = json!({"id": "r2", "direction": "egress", "ethertype": "IPv6"});
        assert_eq!(translate(json!([one, two])).0, translate(json!([two, one])).0);
    }

    #[test]
    fn prefixes_lose_their_host_bits() {
        let rule = json!({"direction": "ingress", "ethertype": "IPv4", "remote_ip_prefix": "10.1.2.3/8"});
        assert_eq!(translate_one(rule).unwrap()["source"]["nets"], json!(["10.0.0.0/8"]));
    }
}
