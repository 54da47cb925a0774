//! Messages with unreadable fields allow less, and name the field.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use tortie_plan::{PlanUpdate, PlannedRule, RuleAction, SetId, WorkloadId};
use tortie_policysync::proto::{self, ToDataplane, to_dataplane::Payload};
use tortie_policysync::{DecodeError, MAX_RULES_PER_DIRECTION, SyncEvent, decode_message, decode_rule};

fn rule(action: &str, change: impl FnOnce(&mut proto::Rule)) -> proto::Rule {
    let mut rule = proto::Rule { action: action.to_owned(), ..proto::Rule::default() };
    change(&mut rule);
    rule
}

fn protocol(value: proto::protocol::NumberOrName) -> Option<proto::Protocol> {
    Some(proto::Protocol { number_or_name: Some(value) })
}

/// Returns the updates of a message and the texts of its problems.
fn decode(payload: Payload) -> (Vec<PlanUpdate>, Vec<String>) {
    let decoded = decode_message(ToDataplane { sequence_number: 1, payload: Some(payload) }).unwrap();
    let problems = decoded.problems.iter().map(ToString::to_string).collect();
    match decoded.event {
        SyncEvent::Updates(updates) => (updates, problems),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unreadable_criteria_fail_closed() {
    use proto::protocol::NumberOrName;
    type Change = fn(&mut proto::Rule);
    let changes: [(&str, Change); 14] = [
        ("src_net: \"10.0.0.0/33\" is not", |rule| rule.src_net.push("10.0.0.0/33".to_owned())),
        ("not_dst_net: \"\" is not", |rule| rule.not_dst_net.push(String::new())),
        ("ip_version: \"5\" is not", |rule| rule.ip_version = 5),
        ("protocol: \"256\" is not", |rule| rule.protocol = protocol(NumberOrName::Number(256))),
        ("protocol: \"-1\" is not", |rule| rule.protocol = protocol(NumberOrName::Number(-1))),
        ("not_protocol: \"tpc\" is not", |rule| {
            rule.not_protocol = protocol(NumberOrName::Name("tpc".to_owned()));
        }),
        ("protocol is missing", |rule| rule.protocol = Some(proto::Protocol::default())),
        ("dst_ports: \"90-80\" is not", |rule| {
            rule.dst_ports.push(proto::PortRange { first: 90, last: 80 });
        }),
        ("src_ports: \"1-65536\" is not", |rule| {
            rule.src_ports.push(proto::PortRange { first: 1, last: 65_536 });
        }),
        ("icmp_type: \"300\" is not", |rule| rule.icmp = Some(proto::rule::Icmp::IcmpType(300))),
        ("src_ip_set_ids is missing", |rule| rule.src_ip_set_ids.push(String::new())),
        ("dst_ip_port_set_ids: 2 entries", |rule| {
            rule.dst_ip_port_set_ids = vec!["svc:a".to_owned(), "svc:b".to_owned()];
        }),
        ("http_match: paths is missing", |rule| {
            let paths = vec![proto::http_match::PathMatch::default()];
            rule.http_match = Some(proto::HttpMatch { methods: Vec::new(), paths });
        }),
        ("not_icmp_type_code: \"256\" is not", |rule| {
            let both = proto::IcmpTypeAndCode { r#type: 3, code: 256 };
            rule.not_icmp = Some(proto::rule::NotIcmp::NotIcmpTypeCode(both));
        }),
    ];
    for (expected, change) in changes {
        let (allow, errors) = decode_rule(&rule("Allow", change));
        assert_eq!(allow, PlannedRule::never(RuleAction::Allow), "{expected}");
        assert_eq!(errors.len(), 1, "{expected}");
        assert!(errors[0].to_string().starts_with(expected), "{} instead of {expected}", errors[0]);
        let (deny, errors) = decode_rule(&rule("deny", change));
        assert_eq!(deny, PlannedRule::new(RuleAction::Deny), "{expected}");
        assert_eq!(errors.len(), 1, "{expected}");
    }
}

#[test]
fn unknown_actions_deny() {
    for text in ["", "accept"] {
        let (decoded, errors) = decode_rule(&rule(text, |_| {}));
        assert_eq!(decoded, PlannedRule::new(RuleAction::Deny));
        assert!(
            matches!(&errors[..], [DecodeError::Invalid { field: "action", value, .. }] if value == text)
        );
    }
    for (text, action) in
        [("PASS", RuleAction::Pass), ("next-tier", RuleAction::Pass), ("Log", RuleAction::Log)]
    {
        assert_eq!(decode_rule(&rule(text, |_| {})), (PlannedRule::new(action), Vec::new()));
    }
}

#[test]
fn half_readable_ports_do_not_narrow_denials() {
    let (decoded, errors) = decode_rule(&rule("deny", |rule| {
        rule.dst_ports.push(proto::PortRange { first: 80, last: 80 });
        rule.dst_named_port_ip_set_ids.push(String::new());
    }));
    assert_eq!(decoded, PlannedRule::new(RuleAction::Deny));
    assert_eq!(errors, [DecodeError::Missing { field: "dst_named_port_ip_set_ids" }]);
}

#[test]
fn sets_with_unreadable_members_become_unknown() {
    let set = SetId::new("s:a");
    for (r#type, member) in [
        (2, "10.0.0.300"),
        (2, "10.0.0.1,tcp:80"),
        (1, "10.0.0.1"),
        (1, "10.0.0.1,tcp:65536"),
        (1, "10.0.0.1,tpc:1"),
    ] {
        let update = proto::IpSetUpdate { id: "s:a".to_owned(), members: vec![member.to_owned()], r#type };
        let (updates, problems) = decode(Payload::IpsetUpdate(update));
        assert_eq!(updates, [PlanUpdate::Set(set.clone(), None)], "{member}");
        assert!(problems[0].starts_with(&format!("set s:a: members: {member:?} is not")), "{problems:?}");
    }
    let delta = proto::IpSetDeltaUpdate {
        id: "s:a".to_owned(),
        added_members: vec!["10.0.0.1".to_owned()],
        removed_members: vec!["x".to_owned()],
    };
    let (updates, problems) = decode(Payload::IpsetDeltaUpdate(delta));
    assert_eq!((updates, problems.len()), (vec![PlanUpdate::Set(set, None)], 1));
}

#[test]
fn unreadable_endpoints_become_unknown() {
    let wire_id = proto::WorkloadEndpointId {
        orchestrator_id: "k8s".to_owned(),
        workload_id: "shop/web".to_owned(),
        endpoint_id: "eth0".to_owned(),
    };
    let id = WorkloadId {
        orchestrator: "k8s".to_owned(),
        workload: "shop/web".to_owned(),
        endpoint: "eth0".to_owned(),
    };
    let policy =
        proto::PolicyId { name: "a".to_owned(), namespace: String::new(), kind: "Policy".to_owned() };
    let tier = proto::TierInfo { ingress_policies: vec![policy], ..proto::TierInfo::default() };
    for endpoint in [
        proto::WorkloadEndpoint { ipv4_nets: vec!["10.0.0".to_owned()], ..Default::default() },
        proto::WorkloadEndpoint { tiers: vec![tier], ..Default::default() },
    ] {
        let update = proto::WorkloadEndpointUpdate { id: Some(wire_id.clone()), endpoint: Some(endpoint) };
        let (updates, problems) = decode(Payload::WorkloadEndpointUpdate(update));
        assert_eq!(updates, [PlanUpdate::WorkloadPolicy(id.clone(), None)]);
        assert!(problems[0].starts_with("endpoint k8s/shop/web/eth0: "), "{problems:?}");
    }
}

#[test]
fn objects_without_names_are_errors() {
    let payloads = [
        Payload::IpsetRemove(proto::IpSetRemove::default()),
        Payload::ActivePolicyUpdate(proto::ActivePolicyUpdate::default()),
        Payload::ActiveProfileUpdate(proto::ActiveProfileUpdate::default()),
        Payload::WorkloadEndpointUpdate(proto::WorkloadEndpointUpdate::default()),
        Payload::NamespaceUpdate(proto::NamespaceUpdate::default()),
        Payload::ServiceAccountRemove(proto::ServiceAccountRemove::default()),
    ];
    for payload in payloads {
        let outcome = decode_message(ToDataplane { sequence_number: 1, payload: Some(payload) });
        assert!(matches!(outcome, Err(DecodeError::Missing { .. })), "{outcome:?}");
    }
    let other = decode_message(ToDataplane { sequence_number: 1, payload: None }).unwrap();
    assert_eq!(other.event, SyncEvent::Other);
}

#[test]
fn too_many_rules_deny_everything() {
    let rules = vec![rule("allow", |_| {}); MAX_RULES_PER_DIRECTION + 1];
    let update = proto::ActiveProfileUpdate {
        id: Some(proto::ProfileId { name: "kns.a".to_owned() }),
        profile: Some(proto::Profile { inbound_rules: rules, outbound_rules: Vec::new() }),
    };
    let (updates, problems) = decode(Payload::ActiveProfileUpdate(update));
    let [PlanUpdate::Profile(_, Some(profile))] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!(profile.ingress, [PlannedRule::new(RuleAction::Deny)]);
    assert_eq!(problems, ["profile/kns.a ingress rule 1: rules: 65537 entries; at most 65536 are accepted"]);
}
