//! Generated events: sums hold in any order, and memory is bounded.

use super::*;
use proptest::prelude::*;
use tortie_flows::ring::{FlowRing, RingOptions};

/// Sources are outside the node, so that each flow has one record.
fn outside(number: u8) -> String {
    format!("203.0.113.{number}")
}

fn decision(allowed: bool) -> FlowDecision {
    let denied = rule_cause("np/shop/web", PolicyDirection::Ingress, 0);
    let open = open_decision().ingress;
    FlowDecision { allowed, ingress: if allowed { open } else { Some(denied) }, ..FlowDecision::default() }
}

#[derive(Clone, Debug)]
enum Step {
    First(u8, bool),
    Count(u8, bool, u64),
    Other(bool, u64),
    Live(u8, u16, u64),
    End(u8, u16, u64),
    Complete,
    Policy(bool),
    Tick(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6u8, any::<bool>()).prop_map(|(source, allowed)| Step::First(source, allowed)),
        (0..6u8, any::<bool>(), 1..50u64)
            .prop_map(|(source, allowed, count)| Step::Count(source, allowed, count)),
        (any::<bool>(), 1..50u64).prop_map(|(allowed, count)| Step::Other(allowed, count)),
        (0..6u8, 0..3u16, 1..100u64).prop_map(|(source, port, packets)| Step::Live(source, port, packets)),
        (0..6u8, 0..3u16, 1..100u64).prop_map(|(source, port, packets)| Step::End(source, port, packets)),
        Just(Step::Complete),
        any::<bool>().prop_map(Step::Policy),
        (1..20i64).prop_map(Step::Tick),
    ]
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Totals {
    allowed: u64,
    denied: u64,
}

fn sum(flows: &[Flow]) -> Totals {
    let mut totals = Totals::default();
    for flow in flows {
        match action(flow) {
            Action::Deny => totals.denied += (flow.packets_in + flow.packets_out) as u64,
            _ => totals.allowed += flow.num_connections_started as u64,
        }
    }
    totals
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// New connections and denied packets in the records are those that the kernel counted.
    #[test]
    fn records_sum_to_the_counts_of_the_kernel(
        steps in prop::collection::vec(step(), 0..80),
        room in prop_oneof![Just(2000usize), Just(16 << 20)],
    ) {
        let limits = RecorderLimits { max_key_bytes: room, max_connections: 4 };
        let mut node = TestNode::with_limits(limits);
        let mut out = Vec::new();
        let mut expected = Totals::default();
        let mut credit = std::collections::HashMap::new();
        for step in steps {
            match step {
                Step::First(source, allowed) => {
                    let key = key(&outside(source), B, 80, decision(allowed));
                    // The kernel sends one such event for a key until it has counted it.
                    if credit.insert((source, allowed), 1).is_none() {
                        out.extend(node.handle(&first_packet(&key, 4000)));
                    }
                }
                Step::Count(source, allowed, count) => {
                    let key = key(&outside(source), B, 80, decision(allowed));
                    credit.remove(&(source, allowed));
                    *(if allowed { &mut expected.allowed } else { &mut expected.denied }) += count;
                    out.extend(node.handle(&counted(&key, count)));
                }
                Step::Other(allowed, count) => {
                    *(if allowed { &mut expected.allowed } else { &mut expected.denied }) += count;
                    out.extend(node.handle(&FlowEvent::Other { allowed, count }));
                }
                Step::Live(source, port, packets) => {
                    let key = key(&outside(source), B, 80, decision(true));
                    out.extend(node.handle(&live(&key, port, packets, packets)));
                }
                Step::End(source, port, packets) => {
                    let key = key(&outside(source), B, 80, decision(true));
                    out.extend(node.handle(&ended(&key, port, packets, packets)));
                }
                Step::Complete => out.extend(node.handle(&FlowEvent::LiveComplete { connections: 0 })),
                Step::Policy(deny) => {
                    let action = if deny { RuleAction::Deny } else { RuleAction::Pass };
                    node.set_policies(&[("np/shop/web", &[to_port(action, 80)])]);
                }
                Step::Tick(seconds) => out.extend(node.tick(seconds)),
            }
            prop_assert!(node.recorder.sizes().1 <= 4);
        }
        // Count the first packets that were recorded early, and wait until all keys are decided.
        for (source, allowed) in credit.into_keys() {
            *(if allowed { &mut expected.allowed } else { &mut expected.denied }) += 1;
            out.extend(node.handle(&counted(&key(&outside(source), B, 80, decision(allowed)), 1)));
        }
        out.extend(node.tick(11));
        out.extend(node.tick(11));
        prop_assert_eq!(sum(&out), expected);
        let mut ring = FlowRing::new(RingOptions { window: 15, max_bytes: 4 << 20 }, node.now);
        for flow in &out {
            prop_assert!(ring.add(flow, node.now).is_ok(), "{:?}", flow);
        }
    }
}

#[test]
fn transfers_are_recorded_once() {
    let mut node = TestNode::default();
    let key = key(OUTSIDE, B, 80, decision(true));
    let mut out = node.handle(&first_packet(&key, 4000));
    for packets in [10, 25, 25] {
        out.extend(node.handle(&live(&key, 4000, packets, 2 * packets)));
        out.extend(node.handle(&FlowEvent::LiveComplete { connections: 1 }));
    }
    out.extend(node.handle(&ended(&key, 4000, 30, 60)));
    out.extend(node.handle(&ended(&key, 4001, 7, 7)));
    let total = |read: fn(&Flow) -> i64| out.iter().map(read).sum::<i64>();
    assert_eq!((total(|flow| flow.packets_in), total(|flow| flow.packets_out)), (37, 67));
    assert_eq!((total(|flow| flow.bytes_in), total(|flow| flow.num_connections_completed)), (3700, 2));
}

#[test]
fn unknown_connections_count_as_other() {
    let mut node = TestNode::default();
    let key = key(OUTSIDE, B, 80, decision(true));
    let flows = node.handle(&ended(&key, 4000, 5, 6));
    let names = flows.iter().map(|flow| flow.key.as_ref().unwrap().dest_name.as_str()).collect::<Vec<_>>();
    assert_eq!((names, flows[0].packets_out, flows[0].packets_in), (vec!["other"], 5, 6));
    assert_eq!(node.recorder.stats().unjoined, 1);
}

#[test]
fn keys_are_bounded_and_expire() {
    let limits = RecorderLimits { max_key_bytes: 100_000, ..RecorderLimits::default() };
    let mut node = TestNode::with_limits(limits);
    let mut out = Vec::new();
    const KEYS: u16 = 2000;
    for port in 0..KEYS {
        let key = key(OUTSIDE, B, port, decision(true));
        out.extend(node.handle(&first_packet(&key, 4000)));
        out.extend(node.handle(&counted(&key, 2)));
        assert!(node.recorder.sizes().2 < 110_000);
    }
    assert_eq!(sum(&out).allowed, 2 * u64::from(KEYS), "nothing is lost");
    assert!(node.recorder.stats().forgotten_keys > 0);
    let (keys, _, _) = node.recorder.sizes();
    assert!(keys > 10 && keys < usize::from(KEYS));
    node.tick(301);
    assert_eq!(node.recorder.sizes(), (0, 0, 0));
}
