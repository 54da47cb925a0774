//! Policy uses the packet mark bits of the configured mask and no others.

use crate::namespace::{TestNamespace, eventually, node_pair, pod, start};
use crate::plans::{
    POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, guarded, ingress, open_plan, policy_id, reaches, tier,
};
use std::sync::Arc;
use tortie_plan::{
    DataplaneSettings, MarkBits, NodePlan, PlannedRule, PolicySettings, RuleAction, TierDefaultAction,
};

const OUTSIDE_ADDRESS: &str = "192.168.77.2";

/// Returns a plan in which pod two is behind a tier that passes all traffic to the next, so that every mark bit is
/// used.
fn plan() -> NodePlan {
    let mut plan = guarded(open_plan(), &[("on", ingress(vec![PlannedRule::new(RuleAction::Pass)]))]);
    let end = Arc::new(ingress(vec![PlannedRule::new(RuleAction::Allow)]));
    plan.policies.insert(policy_id("all"), end);
    let policy = plan.workload_policies.values_mut().find(|policy| !policy.tiers.is_empty()).unwrap();
    policy.tiers.push(tier("last", TierDefaultAction::Deny, &["all"], &[]));
    plan
}

fn with_mask(mask: u32) -> DataplaneSettings {
    let marks = MarkBits::of_mask(mask).unwrap();
    DataplaneSettings {
        policy: PolicySettings { marks, ..PolicySettings::default() },
        ..DataplaneSettings::default()
    }
}

/// Returns the lines of our table that use marks.
fn ours(node: &TestNamespace) -> String {
    let table = node.exec("nft list table inet tortie");
    let lines = table.lines().filter(|line| line.contains("mark"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_changes_only_bits_of_the_mark_mask() {
    let (node, outside) = node_pair();
    let one = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    let _two = pod(&node, "cali2", &POD_TWO_ADDRESSES).await;
    outside.ip("route add 10.65.0.0/24 via 192.168.77.1");
    for program in ["iptables-nft", "iptables-legacy"] {
        node.exec(&[program, "-P", "FORWARD", "DROP"]);
        node.exec(&[program, "-A", "FORWARD", "-j", "DROP"]);
    }
    // Another program sets and checks a mark with the bits that policy uses by default.
    node.nft(
        "table inet others { chain pre { type filter hook prerouting priority -290; meta mark set 0x30000; }; \
         chain post { type filter hook postrouting priority 300; meta mark & 0x30000 == 0x30000 counter name kept; }; \
         counter kept {}; }",
    );
    let kept = || !node.exec("nft list counter inet others kept").contains("packets 0 ");
    let (dataplane, _reports) = start(&node).await;
    assert_eq!(dataplane.configure(with_mask(0xf0)).await.unwrap().failures, []);
    dataplane.replace(plan()).await.unwrap();
    let lists = |bits: &str| {
        ["iptables-nft", "iptables-legacy"].iter().all(|program| {
            let listing = node.exec(&[program, "-S", "FORWARD"]);
            let marked: Vec<&str> = listing.lines().filter(|line| line.contains("--mark")).collect();
            marked.len() == 1 && marked[0].contains(&format!("--mark {bits}/{bits}"))
        })
    };
    eventually("our rules ask for the lowest bit", || lists("0x10")).await;
    eventually("what is allowed passes", || reaches(&one, OUTSIDE_ADDRESS)).await;
    assert!(reaches(&one, POD_TWO_ADDRESSES[0]), "by way of a pass\n{}", node.exec("nft list ruleset"));
    assert!(kept(), "the marks of others are as they were\n{}", node.exec("nft list ruleset"));
    let marks = ours(&node);
    assert!(marks.contains("0x00000010") && marks.contains("0x00000020"), "{marks}");
    assert!(!marks.contains("0x00010000") && !marks.contains("0x00020000"), "{marks}");

    // Change the mask while the policy is in force.
    assert_eq!(dataplane.configure(DataplaneSettings::default()).await.unwrap().failures, []);
    eventually("the rules in the chains of others have changed too", || lists("0x10000")).await;
    eventually("what is allowed passes", || {
        reaches(&one, OUTSIDE_ADDRESS) && reaches(&one, POD_TWO_ADDRESSES[0])
    })
    .await;
    let marks = ours(&node);
    assert!(!marks.contains("0x00000010") && marks.contains("0x00020000"), "{marks}");
}
