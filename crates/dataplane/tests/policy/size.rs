//! Large sets, nested nets and long policies.

use crate::namespace::start;
use crate::plans::{guarded, ingress, open_plan, reaches, two_pods, udp};
use crate::table;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use tortie_plan::{
    AddressSet, IcmpMatch, NodePlan, PlanUpdate, PlannedRule, RuleAction, SetId, SetKind, SetMember,
};

fn net(text: &str) -> SetMember {
    SetMember::Net(text.parse().unwrap())
}

/// Returns a plan in which pod two denies members of the set and allows everything else.
fn denying(members: BTreeSet<SetMember>) -> NodePlan {
    let mut deny = PlannedRule::new(RuleAction::Deny);
    deny.source.sets = vec![SetId::new("s:bad")];
    let mut plan = guarded(open_plan(), &[("bad", ingress(vec![deny, PlannedRule::new(RuleAction::Allow)]))]);
    plan.sets.insert(SetId::new("s:bad"), AddressSet { kind: SetKind::Nets, members });
    plan
}

fn members(added: &[&str], removed: &[&str]) -> Vec<PlanUpdate> {
    let nets = |nets: &[&str]| nets.iter().map(|text| net(text)).collect();
    vec![PlanUpdate::Members { set: SetId::new("s:bad"), added: nets(added), removed: nets(removed) }]
}

#[tokio::test(flavor = "multi_thread")]
async fn one_set_holds_100000_addresses_and_10000_nets() {
    let (node, one, _two) = two_pods().await;
    let addresses = (0..100_000u32).map(|number| format!("{}/32", Ipv4Addr::from(0x0a80_0000 + number)));
    // Every second /24, so that adjacent nets are not merged.
    let nets = (0..10_000u32).map(|number| format!("{}/24", Ipv4Addr::from(0x6400_0000 + number * 512)));
    let all = addresses.chain(nets).map(|text| net(&text)).collect();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(denying(all)).await.unwrap();
    let contents = table::contents(&node);
    assert_eq!(contents["set s-bad-4"].len(), 100_001);
    assert_eq!(contents["set s-bad-4-nets"].len(), 10_001);
    assert!(reaches(&one, "10.65.0.3"));
    let outcome = dataplane.apply(members(&["10.65.0.2/32"], &[])).await.unwrap();
    assert_eq!(outcome.failures, []);
    assert!(!reaches(&one, "10.65.0.3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_nets_are_added_and_removed_singly() {
    let (node, one, _two) = two_pods().await;
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(denying(BTreeSet::new())).await.unwrap();
    assert!(reaches(&one, "10.65.0.3"));
    // Each step: nets added, nets removed, and whether the pod is then in the set, for IPv4 and IPv6.
    let steps: [(&[&str], &[&str], bool, bool); 9] = [
        (&["10.65.0.0/24", "10.0.0.0/8"], &[], true, false),
        (&[], &["10.0.0.0/8"], true, false),
        (&["10.65.0.0/30", "fd80::/16"], &["10.65.0.0/24"], true, true),
        (&["10.65.0.2/32"], &["10.65.0.0/30"], true, true),
        (&["0.0.0.0/0"], &["10.65.0.2/32", "fd80::/16"], true, false),
        (&["::/0", "fd80:65::2/128"], &[], true, true),
        (&["128.0.0.0/1"], &["0.0.0.0/0", "::/0"], false, true),
        (&["0.0.0.0/1", "10.65.0.2/31"], &["fd80:65::2/128"], true, false),
        (&[], &["0.0.0.0/1", "128.0.0.0/1", "10.65.0.2/31"], false, false),
    ];
    for (number, (added, removed, v4, v6)) in steps.into_iter().enumerate() {
        let outcome = dataplane.apply(members(added, removed)).await.unwrap();
        assert_eq!(outcome.failures, [], "step {number}");
        assert_eq!(reaches(&one, "10.65.0.3"), !v4, "step {number}, IPv4");
        assert_eq!(reaches(&one, "fd80:65::3"), !v6, "step {number}, IPv6");
    }
    let left: Vec<String> =
        table::contents(&node).into_keys().filter(|name| name.contains("s-bad")).collect();
    assert_eq!(left, ["set s-bad-4", "set s-bad-6"], "the sets of ranges are gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_1024_rules_decides() {
    let (node, one, _two) = two_pods().await;
    let mut rules: Vec<PlannedRule> = (0..1023).map(|port| udp(RuleAction::Deny, port + 1)).collect();
    let mut echo = PlannedRule::new(RuleAction::Allow);
    (echo.protocol, echo.icmp) = (Some(1), Some(IcmpMatch { r#type: 8, code: Some(0) }));
    rules.push(echo);
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(guarded(open_plan(), &[("long", ingress(rules))])).await.unwrap();
    assert!(reaches(&one, "10.65.0.3"));
    assert!(!reaches(&one, "fd80:65::3"), "the rule is about ICMP, not ICMPv6");
}
