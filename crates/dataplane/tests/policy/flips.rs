//! Policy changes are atomic: no packet is judged by a partially applied policy.

use crate::flood::{PacketFlood, counted, flows};
use crate::namespace::{id, start};
use crate::plans::{guarded, ingress, open_plan, policy_id, tier, two_pods, udp};
use crate::table;
use crate::world::updates;
use std::collections::BTreeSet;
use std::sync::Arc;
use tortie_plan::{
    AddressSet, NodePlan, PlannedPolicy, PlannedRule, RuleAction, SetId, SetKind, SetMember,
    TierDefaultAction,
};

const POLICY_CHANGES: usize = 1000;
const RESTART_ROUNDS: usize = 40;
/// Policies for other ports, enough for a map.
const OTHER_POLICIES: u16 = 20;

/// Returns two plans that allow the same packets by different rules.
fn alike() -> (NodePlan, NodePlan) {
    let simple = guarded(open_plan(), &[("simple", ingress(vec![udp(RuleAction::Allow, 1000)]))]);

    let mut devious = open_plan();
    let set = SetId::new("s:clients");
    let members = ["10.65.0.0/24", "fd80:65::2/128", "10.65.0.9/32"];
    let members: BTreeSet<SetMember> =
        members.iter().map(|net| SetMember::Net(net.parse().unwrap())).collect();
    devious.sets.insert(set.clone(), AddressSet { kind: SetKind::Nets, members });
    let pass = ingress(vec![
        udp(RuleAction::Log, 2000),
        udp(RuleAction::Pass, 1000),
        PlannedRule::new(RuleAction::Deny),
    ]);
    let mut from_set = udp(RuleAction::Allow, 1000);
    from_set.source.sets = vec![set.clone()];
    let mut to_anyone = udp(RuleAction::Allow, 1000);
    to_anyone.source.sets = vec![set];
    let out = PlannedPolicy { tier: "default".into(), egress: vec![to_anyone], ..PlannedPolicy::default() };
    for (name, policy) in [("pass", pass), ("devious", ingress(vec![from_set])), ("out", out)] {
        devious.policies.insert(policy_id(name), Arc::new(policy));
    }
    devious.workload_policies.get_mut(&id("two")).unwrap().tiers = vec![
        tier("first", TierDefaultAction::Deny, &["pass"], &[]),
        tier("default", TierDefaultAction::Deny, &["devious"], &[]),
    ];
    devious.workload_policies.get_mut(&id("one")).unwrap().tiers =
        vec![tier("default", TierDefaultAction::Deny, &[], &["out"])];
    (simple, devious)
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_changes_under_flood_misjudge_no_packet() {
    let (node, one, _two) = two_pods().await;
    let (simple, devious) = alike();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(simple.clone()).await.unwrap();
    let flood = PacketFlood::start(&node, &one);
    flows(&node, 100).await;
    for number in 0..POLICY_CHANGES {
        let (from, to) = if number % 2 == 0 { (&simple, &devious) } else { (&devious, &simple) };
        let outcome = dataplane.apply(updates(from, to)).await.unwrap();
        assert_eq!(outcome.failures, []);
    }
    let counted = flood.ends(&node).await;
    assert!(counted.open_in > 1000, "{counted:?}");
    assert_eq!((counted.open_out, counted.closed_out), (counted.open_in, 0), "{counted:?}");
}

/// Returns plans that allow the same packets, by different policies among many for other ports.
fn alike_among_many() -> [NodePlan; 3] {
    let others: Vec<(String, PlannedPolicy)> = (0..OTHER_POLICIES)
        .map(|number| (format!("other-{number}"), ingress(vec![udp(RuleAction::Allow, 3000 + number)])))
        .collect();
    let with = |name: &str, rule: PlannedRule| {
        let own = (name.to_owned(), ingress(vec![rule]));
        let all: Vec<(&str, PlannedPolicy)> =
            others.iter().chain([&own]).map(|(name, policy)| (name.as_str(), policy.clone())).collect();
        guarded(open_plan(), &all)
    };
    let mut range = udp(RuleAction::Allow, 1000);
    range.destination.ports[0].first = 500;
    // The last one is too wide for the map, so no element is left for the port.
    [
        with("one", udp(RuleAction::Allow, 1000)),
        with("other", udp(RuleAction::Allow, 1000)),
        with("range", range),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn port_map_changes_under_flood_misjudge_no_packet() {
    let (node, one, _two) = two_pods().await;
    let plans = alike_among_many();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plans[0].clone()).await.unwrap();
    assert!(table::listing(&node).contains("map ports-in-"), "{}", table::listing(&node));
    let flood = PacketFlood::start(&node, &one);
    flows(&node, 100).await;
    for number in 0..POLICY_CHANGES {
        let (from, to) = (&plans[number % 3], &plans[(number + 1) % 3]);
        let outcome = dataplane.apply(updates(from, to)).await.unwrap();
        assert_eq!(outcome.failures, []);
    }
    let counted = flood.ends(&node).await;
    assert!(counted.open_in > 1000 && counted.closed_in > 1000, "{counted:?}");
    assert_eq!((counted.open_out, counted.closed_out), (counted.open_in, 0), "{counted:?}");
    let maps = table::contents(&node).into_keys().filter(|name| name.starts_with("map ports-"));
    assert_eq!(maps.count(), 1, "maps of earlier transactions are removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_under_flood_changes_no_verdict_or_rule() {
    let (node, one, _two) = two_pods().await;
    let (_, mut devious) = alike();
    let [among_many, ..] = alike_among_many();
    devious.policies.extend(among_many.policies);
    let many = among_many.workload_policies[&id("two")].tiers.clone();
    devious.workload_policies.get_mut(&id("two")).unwrap().tiers.extend(many);
    let (dataplane, reports) = start(&node).await;
    dataplane.replace(devious.clone()).await.unwrap();
    let flood = PacketFlood::start(&node, &one);
    flows(&node, 100).await;
    let before = node.exec(&["nft", "-a", "-s", "list", "table", "inet", "tortie"]);
    let mut running = (dataplane, reports);
    for _ in 0..10 {
        drop(running);
        running = start(&node).await;
        running.0.replace(devious.clone()).await.unwrap();
        flows(&node, 100).await;
    }
    // Compare the handles too: a rewritten rule would have a new handle.
    assert_eq!(node.exec(&["nft", "-a", "-s", "list", "table", "inet", "tortie"]), before);
    let counted = flood.ends(&node).await;
    assert_eq!((counted.open_out, counted.closed_out), (counted.open_in, 0), "{counted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_no_daemon_runs_policy_stays() {
    let (node, one, _two) = two_pods().await;
    let (simple, _) = alike();
    let (dataplane, reports) = start(&node).await;
    dataplane.replace(simple).await.unwrap();
    drop((dataplane, reports));
    let flood = PacketFlood::start(&node, &one);
    flows(&node, 1000).await;
    assert!(counted(&node).open_out > 0);
    let counted = flood.ends(&node).await;
    assert_eq!((counted.open_out, counted.closed_out), (counted.open_in, 0), "{counted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_dataplane_reverts_nothing_of_its_successor() {
    let (node, _one, _two) = two_pods().await;
    let (simple, devious) = alike();
    let (mut dataplane, mut reports) = start(&node).await;
    let rounds = std::env::var("TORTIE_RESTARTS").map_or(RESTART_ROUNDS, |rounds| rounds.parse().unwrap());
    for (plan, name) in [(&devious, "devious"), (&simple, "simple")].into_iter().cycle().take(rounds) {
        dataplane.stop().await;
        (dataplane, reports) = start(&node).await;
        dataplane.replace(plan.clone()).await.unwrap();
        for _ in 0..3 {
            let listing = table::listing(&node);
            let of_next = listing.contains(&format!("chain in-gnp/{name} "));
            assert!(of_next, "the plan before is in force again:\n{listing}");
        }
    }
    drop(reports);
}
