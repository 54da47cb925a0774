//! The CRD schemas reject invalid objects without help from the admission policies.

use super::*;

#[track_caller]
fn schema_refuses(kind: &str, spec: Value, message: &str) {
    let value = object(kind, spec);
    let found = refusals(&json_schema(Kind::from_name(kind).unwrap()), &value);
    assert!(found.len() == 1 && found[0].contains(message), "{value}: expected {message}, got {found:?}");
}

#[test]
fn rules_of_one_field() {
    let rule = |rule: Value| json!({"ingress": [rule]});
    schema_refuses(NP, rule(json!({})), "action is missing");
    schema_refuses(NP, rule(json!({"action": "Nod"})), "is not in");
    schema_refuses(NP, rule(json!({"action": "Allow", "ipVersion": 5})), "is not in");
    schema_refuses(
        NP,
        rule(json!({"action": "Allow", "protocol": "ICMP", "icmp": {"type": 255}})),
        "out of 0..254",
    );
    schema_refuses(NP, rule(json!({"action": "Allow", "source": {"services": {}}})), "name is missing");
    schema_refuses(NP, json!({"selector": format!("x == '{}'", "x".repeat(1025))}), "out of");
    schema_refuses(NP, json!({"types": []}), "out of 1..2");
    schema_refuses(NP, json!({"order": "high"}), "not of type");
    schema_refuses("Tier", json!({"defaultAction": "Allow"}), "is not in");
}

#[test]
fn rules_of_several_fields() {
    for (spec, message) in [
        (json!({"preDNAT": true}), "preDNAT needs applyOnForward"),
        (json!({"doNotTrack": true}), "doNotTrack needs applyOnForward"),
        (json!({"doNotTrack": true, "preDNAT": true, "applyOnForward": true}), "cannot both be true"),
        (json!({"preDNAT": true, "applyOnForward": true, "types": ["Egress"]}), "type Egress"),
        (json!({"preDNAT": true, "applyOnForward": true, "egress": [{"action": "Allow"}]}), "egress rules"),
        (
            json!({"egress": [{"action": "Allow", "http": {"methods": ["GET"]}}]}),
            "http cannot be used in egress",
        ),
        (json!({"egress": [{"action": "Allow", "source": {"services": {"name": "a"}}}]}), "in their source"),
        (
            json!({"ingress": [{"action": "Allow", "destination": {"services": {"name": "a"}}}]}),
            "in their destination",
        ),
        (
            json!({"egress": [{"action": "Allow", "destination": {"services": {"name": "a"}}}]}),
            "need a namespace",
        ),
        (
            json!({"ingress": [{"action": "Allow", "source": {"services": {"name": "a"}}}]}),
            "need a namespace",
        ),
        (json!({"ingress": [{"action": "Deny", "http": {}}]}), "only valid on Allow"),
        (json!({"ingress": [{"action": "Allow", "protocol": 17, "http": {}}]}), "protocol TCP"),
        (json!({"ingress": [{"action": "Allow", "protocol": "TCP", "icmp": {}}]}), "must be ICMP or ICMPv6"),
        (json!({"ingress": [{"action": "Allow", "icmp": {}}]}), "must be ICMP or ICMPv6"),
        (json!({"ingress": [{"action": "Allow", "protocol": "ICMP", "ipVersion": 6}]}), "needs ipVersion 4"),
        (json!({"ingress": [{"action": "Allow", "protocol": 58, "ipVersion": 4}]}), "needs ipVersion 6"),
        (json!({"ingress": [{"action": "Allow", "notICMP": {"code": 1}}]}), "code needs type"),
        (
            json!({"ingress": [{"action": "Allow", "http": {"paths": [{}]}}]}),
            "exactly one of exact and prefix",
        ),
        (
            json!({"ingress": [{"action": "Allow", "source": {"nets": ["10.0.0.0/8"], "services": {"name": "a", "namespace": "b"}}}]}),
            "cannot be combined",
        ),
        (
            json!({"egress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [1], "services": {"name": "a", "namespace": "b"}}}]}),
            "brings its own ports",
        ),
    ] {
        schema_refuses(GNP, spec.clone(), message);
        schema_refuses("StagedGlobalNetworkPolicy", spec, message);
    }
    for kind in ["StagedGlobalNetworkPolicy", "StagedNetworkPolicy"] {
        schema_refuses(
            kind,
            json!({"stagedAction": "Delete", "selector": "all()"}),
            "stagedAction is Delete",
        );
    }
    let spec = json!({"stagedAction": "Delete", "ingress": [{}]});
    schema_refuses("StagedKubernetesNetworkPolicy", spec, "stagedAction is Delete");
}

#[test]
fn built_in_tiers_stay_as_they_are() {
    let schema = json_schema(Kind::Tier);
    for tier in crate::kinds::BUILT_IN_TIERS {
        let object = |order: f64| json!({"metadata": {"name": tier.name}, "spec": {"order": order, "defaultAction": tier.default_action}});
        assert_eq!(refusals(&schema, &object(tier.order)), Vec::<String>::new());
        assert_eq!(refusals(&schema, &object(5.0)).len(), 1);
    }
}
