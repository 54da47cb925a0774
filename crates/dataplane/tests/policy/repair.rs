//! Manual changes to our table are undone; other tables are left alone.

use crate::namespace::{eventually, start};
use crate::plans::{change, guarded, ingress, open_plan, reaches, two_pods, udp};
use crate::table;
use std::collections::BTreeSet;
use tortie_dataplane::{DataplaneReport, PolicyStats};
use tortie_plan::{AddressSet, PlannedRule, RuleAction, SetId, SetKind, SetMember};

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_done_to_the_table_is_undone() {
    let (node, one, _two) = two_pods().await;
    let mut from_set = PlannedRule::new(RuleAction::Deny);
    from_set.source.sets = vec![SetId::new("s:bad")];
    let mut plan = guarded(open_plan(), &[("policy", ingress(vec![udp(RuleAction::Allow, 53), from_set]))]);
    let members: BTreeSet<SetMember> =
        ["10.65.0.2/32", "192.0.2.0/24"].iter().map(|net| SetMember::Net(net.parse().unwrap())).collect();
    plan.sets.insert(SetId::new("s:bad"), AddressSet { kind: SetKind::Nets, members });
    node.nft(
        "table inet foreign { set s { type ipv4_addr; elements = { 10.0.0.1 }; }; chain c { accept; }; }",
    );
    let foreign = table::of(&node, "foreign");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan).await.unwrap();
    let wanted = table::contents(&node);
    assert!(!reaches(&one, "10.65.0.3"), "denied by the policy");

    for deed in [
        "flush table inet tortie",
        "delete table inet tortie",
        "flush chain inet tortie in-gnp/policy",
        "insert rule inet tortie in-gnp/policy accept",
        "add rule inet tortie in-gnp/policy accept",
        "add chain inet tortie mine",
        "add set inet tortie mine { type ipv4_addr; }",
        "delete element inet tortie s-bad-4 { 10.65.0.2 }",
        "add element inet tortie s-bad-4 { 10.99.0.9 }",
        "delete element inet tortie s-bad-4-nets { 192.0.2.0/24 }",
        "add element inet tortie s-bad-4-nets { 198.51.100.0-198.51.100.7 }",
        "delete element inet tortie to-workload { \"cali2\" }",
        "flush set inet tortie sources-4",
        "add table inet tortie { flags dormant; }",
        "add chain inet tortie forward-to { policy drop; }",
    ] {
        node.nft(deed);
        eventually(deed, || table::exists(&node) && table::contents(&node) == wanted).await;
    }
    // The table was also set dormant: policy is enforced again.
    assert!(!reaches(&one, "10.65.0.3"));
    assert_eq!(table::of(&node, "foreign"), foreign);
}

#[tokio::test(flavor = "multi_thread")]
async fn own_changes_cause_no_reads() {
    let (node, _one, _two) = two_pods().await;
    let (dataplane, mut reports) = start(&node).await;
    dataplane.replace(open_plan()).await.unwrap();
    for port in 1..=50 {
        let policy = ingress(vec![udp(RuleAction::Allow, port)]);
        assert_eq!(dataplane.apply(vec![change("policy", policy)]).await.unwrap().failures, []);
    }
    // This foreign change proves that notifications arrive; the dataplane's own changes must not have caused a read.
    node.nft("add chain inet tortie mine");
    let mut last = PolicyStats::default();
    while last.reads < 2 {
        if let Some(DataplaneReport::Policy(stats)) = reports.next().await {
            last = stats;
        }
    }
    assert!(last.writes > 50 && last.reads < 10, "{last:?}");
}
