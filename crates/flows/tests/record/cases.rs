//! Single flows: their ends, verdicts, traces and counters.

use super::*;
use PolicyDirection::{Egress, Ingress};
use Reporter::{Dst, Src};

const WEB: &str = "np/shop/web";

#[test]
fn both_sides_report_with_own_directions() {
    let mut node = TestNode::default();
    let key = key(A, B, 80, open_decision());
    assert_eq!(node.wanted(&first_packet(&key, 4000)).0, [address(A), address(B)]);
    let flows = node.handle(&first_packet(&key, 4000));
    assert!(node.wanted(&first_packet(&key, 4000)).0.is_empty(), "its record exists");
    for (side, hit) in [(Src, "Profile kns.shop Allow 0"), (Dst, "Profile kns.shop Allow 0")] {
        let flow = of_side(&flows, side);
        let key = flow.key.as_ref().unwrap();
        assert_eq!((key.source_name.as_str(), key.source_namespace.as_str()), ("a-*", "shop"));
        assert_eq!((key.dest_name.as_str(), key.dest_port, key.proto.as_str()), ("b-*", 80, "tcp"));
        assert_eq!((action(flow), describe_hits(flow, false)), (Action::Allow, vec![hit.to_owned()]));
        assert_eq!(
            describe_hits(flow, true),
            [hit],
            "without staged policies the pending verdict is the same"
        );
        assert_eq!(flow.num_connections_started, 1);
        assert_eq!((flow.source_labels[0].as_str(), flow.dest_labels[0].as_str()), ("app=a", "app=b"));
    }
    let flows = node.handle(&ended(&key, 4000, 5, 3));
    let (source, destination) = (of_side(&flows, Src), of_side(&flows, Dst));
    assert_eq!((source.packets_out, source.packets_in, source.bytes_out), (5, 3, 500));
    assert_eq!((destination.packets_in, destination.packets_out, destination.bytes_out), (5, 3, 300));
    assert_eq!((source.num_connections_started, source.num_connections_completed), (0, 1));
    assert_eq!((node.recorder.stats().agreements, node.recorder.stats().disagreements), (1, 0));
}

#[test]
fn denied_by_the_destination_was_allowed_by_the_source() {
    let mut node = TestNode::default();
    let policy = PlannedPolicy { ingress: vec![to_port(RuleAction::Deny, 80)], ..PlannedPolicy::default() };
    node.set_policies(&[(WEB, &[])]);
    node.plan.policies.insert(policy_id(WEB), Arc::new(policy));
    for workload in node.plan.workload_policies.values_mut() {
        workload.tiers[0].egress = [].into();
    }
    let decision = FlowDecision {
        allowed: false,
        egress: Some(rule_cause("profile/kns.shop", Egress, 0)),
        ingress: Some(rule_cause(WEB, Ingress, 0)),
        ..FlowDecision::default()
    };
    let key = key(A, B, 80, decision);
    let flows = node.handle(&first_packet(&key, 4000));
    assert_eq!(action(of_side(&flows, Src)), Action::Allow);
    let denied = of_side(&flows, Dst);
    assert_eq!((action(denied), denied.packets_in, denied.num_connections_started), (Action::Deny, 1, 0));
    assert_eq!(describe_hits(denied, false), ["CalicoNetworkPolicy web Deny 0"]);
    assert_eq!(node.recorder.stats().disagreements, 0);
}

#[test]
fn the_end_of_a_tier_names_its_last_policy() {
    let mut node = TestNode::default();
    node.set_policies(&[
        ("np/shop/first", &[to_port(RuleAction::Allow, 1)]),
        (WEB, &[to_port(RuleAction::Allow, 2)]),
        ("snp/shop/staged", &[]),
    ]);
    let end = FlowCause::TierEnd { tier: "default".into(), direction: Egress };
    let decision = FlowDecision { egress: Some(end), ..FlowDecision::default() };
    let flows = node.handle(&first_packet(&key(A, OUTSIDE, 80, decision), 4000));
    assert_eq!(flows.len(), 1, "the destination never saw the packet");
    let flow = of_side(&flows, Src);
    assert_eq!(describe_hits(flow, false), ["EndOfTier default after web Deny -1"]);
    let key = flow.key.as_ref().unwrap();
    assert_eq!(
        (key.dest_name.as_str(), key.dest_namespace.as_str(), key.action()),
        ("pub", "-", Action::Deny)
    );
    assert_eq!(flow.packets_out, 1);
}

#[test]
fn services_are_those_before_dnat() {
    let mut node = TestNode::default();
    let service = ServiceIdentity { namespace: "shop".into(), name: "web".into() };
    node.book.services.insert(address("10.96.0.10"), service);
    for (port, original, expected) in [
        (8080, "10.96.0.10", ("web", "shop", 80)),
        (8081, "10.96.0.11", ("10.96.0.11", "-", 80)),
        (8082, B, ("-", "-", 0)),
    ] {
        let key = key(A, B, port, open_decision());
        let FlowEvent::Opened(mut opening) = first_packet(&key, 4000) else { unreachable!() };
        opening.connection.original_destination = Some((address(original), 80));
        let event = FlowEvent::Opened(opening);
        assert_eq!(node.wanted(&event).1, [address(original)]);
        let flows = node.handle(&event);
        let key = of_side(&flows, Dst).key.clone().unwrap();
        let found =
            (key.dest_service_name.as_str(), key.dest_service_namespace.as_str(), key.dest_service_port);
        assert_eq!(found, expected);
        assert_eq!((key.dest_name.as_str(), key.dest_port), ("b-*", i64::from(port)));
    }
}

#[test]
fn services_may_be_known_after_the_opening() {
    let mut node = TestNode::default();
    let key = key(OUTSIDE, B, 8080, FlowDecision { egress: None, ..open_decision() });
    let service_of = |flows: &[Flow]| of_side(flows, Dst).key.as_ref().unwrap().dest_service_name.clone();
    assert_eq!(service_of(&node.handle(&first_packet(&key, 4000))), "-");
    let FlowEvent::Live(mut record) = live(&key, 4000, 5, 5) else { unreachable!() };
    record.connection.original_destination = Some((address("10.96.0.11"), 80));
    let event = FlowEvent::Live(record);
    assert_eq!(node.wanted(&event), (vec![], vec![address("10.96.0.11")]));
    assert_eq!(service_of(&node.handle(&event)), "10.96.0.11");
    assert_eq!(service_of(&node.handle(&counted(&key, 2))), "10.96.0.11");
}

#[test]
fn staged_policies_make_a_pending_verdict() {
    let mut node = TestNode::default();
    let key = key(OUTSIDE, B, 80, FlowDecision { egress: None, ..open_decision() });
    node.handle(&first_packet(&key, 4000));
    let before = node.handle(&live(&key, 4000, 10, 10));
    assert_eq!(describe_hits(of_side(&before, Dst), true), ["Profile kns.shop Allow 0"]);
    node.set_policies(&[("snp/shop/next", &[to_port(RuleAction::Deny, 80)])]);
    let changed = node.reevaluate();
    let flow = of_side(&changed, Dst);
    assert_eq!(describe_hits(flow, true), ["StagedNetworkPolicy next Deny 0"]);
    assert_eq!((flow.packets_in, flow.num_connections_live, flow.num_connections_started), (0, 0, 0));
    assert_eq!(node.reevaluate(), [], "nothing has changed since");
    let after = node.handle(&live(&key, 4000, 12, 10));
    let flow = of_side(&after, Dst);
    assert_eq!((action(flow), flow.packets_in), (Action::Allow, 2));
    assert_eq!(describe_hits(flow, false), ["Profile kns.shop Allow 0"]);
    assert_eq!(describe_hits(flow, true), ["StagedNetworkPolicy next Deny 0"]);
    let new = node.handle(&counted(&key, 2));
    assert_eq!(describe_hits(of_side(&new, Dst), true), ["StagedNetworkPolicy next Deny 0"]);
    assert_eq!(of_side(&new, Dst).num_connections_started, 1, "the first of the two was recorded before");
}

#[test]
fn keys_wait_for_the_policy_of_the_kernel() {
    let mut node = TestNode::default();
    let decision = FlowDecision { ingress: Some(rule_cause(WEB, Ingress, 0)), ..FlowDecision::default() };
    let key = key(OUTSIDE, B, 80, decision);
    assert_eq!(node.handle(&first_packet(&key, 4000)), [], "the kernel is ahead of the plan");
    assert_eq!(node.handle(&counted(&key, 7)), []);
    assert_eq!(node.tick(1), []);
    node.set_policies(&[(WEB, &[to_port(RuleAction::Deny, 80)])]);
    let flows = node.tick(1);
    assert_eq!(of_side(&flows, Dst).packets_in, 7);
    let stats = node.recorder.stats();
    assert_eq!((stats.agreements, stats.disagreements, stats.denied), (1, 0, 7));
}

#[test]
fn disagreements_are_counted_with_the_rule_of_the_kernel() {
    let mut node = TestNode::default();
    let decision = FlowDecision { ingress: Some(rule_cause(WEB, Ingress, 3)), ..FlowDecision::default() };
    let key = key(OUTSIDE, B, 80, decision);
    node.handle(&first_packet(&key, 4000));
    assert_eq!(node.tick(9), []);
    let flows = node.tick(1);
    let flow = of_side(&flows, Dst);
    assert_eq!((action(flow), flow.packets_in), (Action::Deny, 1));
    assert_eq!(describe_hits(flow, false), ["CalicoNetworkPolicy web Deny 3"]);
    let stats = node.recorder.stats();
    assert_eq!((stats.agreements, stats.disagreements), (0, 1));
    let text = stats.last_disagreement.as_deref().unwrap();
    assert!(
        text.contains("198.51.100.7 to 10.0.0.2 tcp/80: the kernel denied (ingress: np/shop/web"),
        "{text}"
    );
    assert!(text.contains("the evaluation allowed (ingress: profile/kns.shop ingress rule 1)"), "{text}");
}

#[test]
fn verdicts_without_a_rule_are_named() {
    let mut node = TestNode::default();
    let decision = FlowDecision { egress: Some(FlowCause::Spoofed), ..FlowDecision::default() };
    let key = key("10.0.0.9", OUTSIDE, 80, decision);
    let FlowEvent::Denied(mut opening) = first_packet(&key, 4000) else { unreachable!() };
    opening.interfaces = Some(FlowInterfaces { input: Some("cali-a".into()), output: Some("eth0".into()) });
    let flows = node.handle(&FlowEvent::Denied(opening));
    assert_eq!(describe_hits(of_side(&flows, Src), false), ["KindUnspecified spoofed source Deny -1"]);
    assert_eq!(node.recorder.stats().agreements, 1);
    // The interface of a new workload was not ready, although the evaluation would allow its packets.
    let decision = FlowDecision { egress: Some(FlowCause::UnknownWorkload), ..FlowDecision::default() };
    let flows = node.handle(&first_packet(&super::key(A, OUTSIDE, 80, decision), 4000));
    assert_eq!(action(of_side(&flows, Src)), Action::Deny);
    assert_eq!(describe_hits(of_side(&flows, Src), false), ["KindUnspecified unknown workload Deny -1"]);
    assert_eq!((node.recorder.stats().agreements, node.recorder.stats().disagreements), (2, 0));
}

#[test]
fn the_host_reaches_its_workloads() {
    let mut node = TestNode::default();
    let decision =
        FlowDecision { allowed: true, ingress: Some(FlowCause::HostToWorkload), ..FlowDecision::default() };
    let key = key("192.168.0.1", B, 80, decision);
    let FlowEvent::Opened(mut opening) = first_packet(&key, 4000) else { unreachable!() };
    opening.interfaces = Some(FlowInterfaces { input: None, output: Some("cali-b".into()) });
    let flows = node.handle(&FlowEvent::Opened(opening));
    assert_eq!(flows.len(), 1);
    assert_eq!(describe_hits(of_side(&flows, Dst), false), ["KindUnspecified host to its workload Allow -1"]);
    let counted = node.handle(&counted(&key, 3));
    assert_eq!(of_side(&counted, Dst).num_connections_started, 2);
    assert_eq!(node.recorder.stats().disagreements, 0);
}

#[test]
fn network_sets_and_icmp_are_described() {
    let mut node = TestNode::default();
    let identity = AddressIdentity {
        kind: IdentityKind::NetworkSet,
        namespace: String::new(),
        name: "partners".into(),
        labels: vec!["trust=low".into()],
    };
    node.book.objects.insert(address(OUTSIDE), identity);
    let mut key = key(OUTSIDE, B, 0x0800, FlowDecision { egress: None, ..open_decision() });
    key.tuple.protocol = 1;
    let flows = node.handle(&first_packet(&key, 4000));
    let key = of_side(&flows, Dst).key.clone().unwrap();
    assert_eq!((key.source_name.as_str(), key.source_namespace.as_str()), ("partners", "-"));
    assert_eq!(key.source_type(), tortie_flows::proto::EndpointType::NetworkSet);
    assert_eq!((key.proto.as_str(), key.dest_port), ("icmp", 0));
}

#[test]
fn connections_from_before_the_start_add_only_growth() {
    let mut node = TestNode::default();
    let key = key(OUTSIDE, B, 80, FlowDecision { egress: None, ..open_decision() });
    let FlowEvent::Live(mut old) = live(&key, 4000, 1000, 1000) else { unreachable!() };
    old.started = Some(UNIX_EPOCH + Duration::from_secs(START as u64 - 60));
    let flows = node.handle(&FlowEvent::Live(old));
    let flow = of_side(&flows, Dst);
    assert_eq!((flow.packets_in, flow.num_connections_live, flow.num_connections_started), (0, 1, 0));
    let flows = node.handle(&live(&key, 4000, 1005, 1001));
    assert_eq!((of_side(&flows, Dst).packets_in, of_side(&flows, Dst).packets_out), (5, 1));
}

#[test]
fn connections_without_end_are_completed() {
    let mut node = TestNode::default();
    let key = key(OUTSIDE, B, 80, FlowDecision { egress: None, ..open_decision() });
    node.handle(&live(&key, 4000, 1, 1));
    let complete = FlowEvent::LiveComplete { connections: 0 };
    assert_eq!(node.handle(&complete), []);
    assert_eq!(node.handle(&complete), [], "it may have ended while the kernel listed them");
    let flows = node.handle(&complete);
    assert_eq!(of_side(&flows, Dst).num_connections_completed, 1);
}
