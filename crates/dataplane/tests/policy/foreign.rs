//! Traffic that policy allows passes even if chains of other programs drop it; denied traffic does not pass.

use crate::namespace::{OpenNetns, TestNamespace, eventually, node_pair, pod, start};
use crate::plans::{POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, guarded, ingress, open_plan, reaches, two_pods};
use std::collections::BTreeMap;
use tortie_dataplane::{DataplaneHandle, DataplaneReport, KernelObject, ReportReceiver};
use tortie_plan::{AllowAction, DataplaneSettings, HostEndpointPolicy, NodePlan, PlannedRule, RuleAction};

/// The iptables programs of both families: the nf_tables variant and the legacy variant.
const IPTABLES_PROGRAMS: [[&str; 2]; 2] =
    [["iptables-nft", "ip6tables-nft"], ["iptables-legacy", "ip6tables-legacy"]];

/// Returns a plan in which pod two denies all ingress and pod one allows everything.
fn plan() -> NodePlan {
    guarded(open_plan(), &[("nobody", ingress(vec![PlannedRule::new(RuleAction::Deny)]))])
}

fn is_ours(listing: &str) -> bool {
    listing.contains("tortie: allowed by policy")
}

fn rules(node: &TestNamespace, program: &str) -> String {
    node.exec(&[program, "-S"])
}

/// Asserts that pod one reaches the outside addresses and does not reach pod two.
async fn is_judged_by_policy(node: &TestNamespace, from_one: &TestNamespace, outside: &[&str], two: &[&str]) {
    for address in outside {
        eventually(&format!("what is allowed reaches {address}"), || reaches(from_one, address)).await;
    }
    for address in two {
        assert!(!reaches(from_one, address), "{address} is denied\n{}", node.exec("nft list ruleset"));
    }
}

/// Returns a node with two pods and an outside host that both pods can reach.
async fn node_with_pods() -> (TestNamespace, TestNamespace, TestNamespace, TestNamespace) {
    let (node, outside) = node_pair();
    let one = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    let two = pod(&node, "cali2", &POD_TWO_ADDRESSES).await;
    outside.ip("route add 10.65.0.0/24 via 192.168.77.1");
    outside.ip("route add fd80:65::/64 via fd77::1");
    (node, outside, one, two)
}

const OUTSIDE_ADDRESSES: [&str; 2] = ["192.168.77.2", "fd77::2"];

#[tokio::test(flavor = "multi_thread")]
async fn only_allowed_traffic_passes_dropping_iptables_chains() {
    for programs in IPTABLES_PROGRAMS {
        let (node, _outside, one, _two) = node_with_pods().await;
        for program in programs {
            node.exec(&[program, "-P", "FORWARD", "DROP"]);
            node.exec(&[program, "-A", "FORWARD", "-i", "docker0", "-j", "ACCEPT"]);
            node.exec(&[program, "-A", "FORWARD", "-j", "DROP"]);
        }
        assert!(!reaches(&one, OUTSIDE_ADDRESSES[0]), "without policy everything is dropped");
        let (dataplane, reports) = start(&node).await;
        dataplane.replace(plan()).await.unwrap();
        is_judged_by_policy(&node, &one, &OUTSIDE_ADDRESSES, &POD_TWO_ADDRESSES).await;
        for program in programs {
            let listing = rules(&node, program);
            assert!(listing.contains("-A FORWARD -m mark --mark 0x10000/0x10000"), "{listing}");
            assert!(listing.contains("-A FORWARD -i docker0 -j ACCEPT"), "{listing}");
        }

        // Another program flushes the chain, then inserts a rule in front of Tortie's.
        for program in programs {
            node.exec(&[program, "-F", "FORWARD"]);
        }
        is_judged_by_policy(&node, &one, &OUTSIDE_ADDRESSES, &POD_TWO_ADDRESSES).await;
        for program in programs {
            node.exec(&[program, "-I", "FORWARD", "1", "-j", "DROP"]);
        }
        is_judged_by_policy(&node, &one, &OUTSIDE_ADDRESSES, &POD_TWO_ADDRESSES).await;

        // Policy stays in force while no daemon runs; a new daemon keeps the rules unchanged.
        let before = programs.map(|program| rules(&node, program));
        dataplane.stop().await;
        drop(reports);
        is_judged_by_policy(&node, &one, &OUTSIDE_ADDRESSES, &POD_TWO_ADDRESSES).await;
        let (dataplane, reports) = start(&node).await;
        dataplane.replace(plan()).await.unwrap();
        is_judged_by_policy(&node, &one, &OUTSIDE_ADDRESSES, &POD_TWO_ADDRESSES).await;
        assert_eq!(programs.map(|program| rules(&node, program)), before);

        dataplane.stop().await;
        drop(reports);
        tortie_dataplane::remove_policy(&node.open()).await.unwrap();
        for program in programs {
            let listing = rules(&node, program);
            assert!(!is_ours(&listing), "{listing}");
            assert!(
                listing.contains("-P FORWARD DROP") && listing.contains("-A FORWARD -j DROP"),
                "{listing}"
            );
        }
        assert!(!reaches(&one, OUTSIDE_ADDRESSES[0]), "the host is as it was");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_rule_reaches_all_filtering_foreign_tables() {
    let (node, _outside, one, _two) = node_with_pods().await;
    // Chains as firewalld, Docker and a custom firewall create them, and two tables that must stay unchanged.
    node.nft(
        "table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept; \
            ct state established accept; reject with icmpx admin-prohibited; }; }
         table ip docker-bridges { chain filter-FORWARD { type filter hook forward priority 0; policy drop; }; }
         table ip6 mine { chain forward { type filter hook forward priority 5; policy drop; }; }
         table inet empty { chain forward { type filter hook forward priority 0; policy accept; }; }
         table inet before { chain forward { type filter hook forward priority -150; policy accept; counter; }; }",
    );
    let untouched =
        || ["empty", "before"].map(|table| node.exec(&["nft", "-s", "list", "table", "inet", table]));
    let before = untouched();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan()).await.unwrap();
    is_judged_by_policy(&node, &one, &OUTSIDE_ADDRESSES, &POD_TWO_ADDRESSES).await;
    assert_eq!(untouched(), before);

    // Forwarded traffic that is not of a workload is left to the other chains.
    assert!(!reaches(&node_beyond(&node), OUTSIDE_ADDRESSES[0]));

    // A newly created chain is found.
    node.nft("table inet late { chain forward { type filter hook forward priority 1; policy drop; }; }");
    eventually("our rule is in the new chain", || is_ours(&node.exec("nft list table inet late"))).await;
    is_judged_by_policy(&node, &one, &OUTSIDE_ADDRESSES, &POD_TWO_ADDRESSES).await;
    node.nft("delete table inet late");
}

/// Returns a host behind the node that is not a workload.
fn node_beyond(node: &TestNamespace) -> TestNamespace {
    let beyond = TestNamespace::new("beyond");
    node.ip(&format!("link add beyond type veth peer name eth0 netns {}", beyond.name()));
    node.ip("addr add 192.168.78.1/24 dev beyond");
    node.ip("link set beyond up");
    beyond.ip("addr add 192.168.78.2/24 dev eth0");
    beyond.ip("link set eth0 up");
    beyond.ip("route add default via 192.168.78.1");
    beyond
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_marks_open_no_chain() {
    let (node, outside, _one, _two) = node_with_pods().await;
    let beyond = node_beyond(&node);
    outside.ip("route add 192.168.78.0/24 via 192.168.77.1");
    // Another program sets every bit of every packet's mark.
    node.nft("table inet marks { chain pre { type filter hook prerouting priority -250; meta mark set 0xffffffff; }; }");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan()).await.unwrap();
    assert!(reaches(&beyond, OUTSIDE_ADDRESSES[0]));
    node.exec("iptables-nft -P FORWARD DROP");
    eventually("our rule is there", || is_ours(&rules(&node, "iptables-nft"))).await;
    assert!(!reaches(&beyond, OUTSIDE_ADDRESSES[0]), "{}", node.exec("nft list ruleset"));
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_asked_before_what_is_allowed_passes() {
    let (node, _one, _two) = two_pods().await;
    node.exec("iptables-nft -N KUBE-FORWARD");
    node.exec("iptables-nft -A FORWARD -j KUBE-FORWARD");
    node.exec("iptables-nft -A FORWARD -j DROP");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan()).await.unwrap();
    eventually("our rule is there", || is_ours(&rules(&node, "iptables-nft"))).await;
    let listing = node.exec("iptables-nft -S FORWARD");
    let lines: Vec<&str> = listing.lines().collect();
    assert!(
        lines[1].ends_with("-j KUBE-FORWARD") && is_ours(lines[2]) && lines[3] == "-A FORWARD -j DROP",
        "{listing}"
    );
    // After iptables-save and iptables-restore, which know nothing of our rule, there is still exactly one.
    let saved = node.exec("iptables-nft-save");
    let restored = tortie_testkit::output(&mut node.command("iptables-nft-restore"), &saved);
    assert!(restored.status.success());
    let marked = || node.exec("nft -a list chain ip filter FORWARD").matches("0x00010000").count();
    eventually("one rule of ours", || marked() == 2 && is_ours(&node.exec("iptables-nft -S FORWARD"))).await;
}

async fn started(node: &TestNamespace, settings: DataplaneSettings) -> (DataplaneHandle, ReportReceiver) {
    DataplaneHandle::start(node.open(), settings).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn return_setting_leaves_foreign_chains_alone() {
    let (node, _outside, one, _two) = node_with_pods().await;
    node.exec("iptables-nft -P FORWARD DROP");
    let mut settings = DataplaneSettings::default();
    let (dataplane, _reports) = started(&node, settings.clone()).await;
    dataplane.replace(plan()).await.unwrap();
    eventually("what is allowed passes", || reaches(&one, OUTSIDE_ADDRESSES[0])).await;
    settings.policy.filter_allow = AllowAction::Return;
    dataplane.configure(settings).await.unwrap();
    eventually("our rule is gone", || !is_ours(&rules(&node, "iptables-nft"))).await;
    assert!(!reaches(&one, OUTSIDE_ADDRESSES[0]));
    assert!(!node.exec("nft list table inet tortie").contains("forward-allowed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_endpoint_allows_reaches_the_host() {
    let (node, outside) = node_pair();
    for program in ["iptables-nft", "iptables-legacy"] {
        node.exec(&[program, "-P", "INPUT", "DROP"]);
    }
    assert!(!reaches(&outside, "192.168.77.1"));
    let endpoint = HostEndpointPolicy {
        interface: "eth0".into(),
        profiles: vec!["open".into()],
        ..HostEndpointPolicy::default()
    };
    let mut plan = open_plan();
    plan.host_endpoints = BTreeMap::from([("eth0".to_owned(), endpoint)]);
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan).await.unwrap();
    eventually("the host answers", || reaches(&outside, "192.168.77.1")).await;
    let closed = open_plan();
    dataplane.replace(closed).await.unwrap();
    eventually("the host's own rules hold again", || !reaches(&outside, "192.168.77.1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_belongs_to_somebody_is_reported() {
    let (node, _one, _two) = two_pods().await;
    // The owner of a table holds its netlink socket for as long as it runs.
    let mut owner = node.command("nft").arg("-i").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let commands = b"add table inet owned { flags owner; }\n\
        add chain inet owned forward { type filter hook forward priority 0; policy drop; }\n";
    std::io::Write::write_all(owner.stdin.as_mut().unwrap(), commands).unwrap();
    std::io::Write::flush(owner.stdin.as_mut().unwrap()).unwrap();
    let there = || node.try_exec("nft list chain inet owned forward").status.success();
    eventually("the table is there", there).await;
    let (dataplane, mut reports) = start(&node).await;
    dataplane.replace(plan()).await.unwrap();
    let overruled = loop {
        match reports.next().await {
            Some(DataplaneReport::Overruled(failures)) if !failures.is_empty() => break failures,
            Some(_) => {}
            None => panic!("nothing was reported"),
        }
    };
    let chain = KernelObject::ForeignChain { table: "inet owned".into(), name: "forward".into() };
    assert_eq!(overruled.iter().map(|failure| failure.object.clone()).collect::<Vec<_>>(), [chain]);
    owner.kill().unwrap();
    owner.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_chains_are_reported_at_any_priority() {
    let (node, _one, _two) = two_pods().await;
    node.nft(
        "table inet early { chain forward { type filter hook forward priority -200; policy drop; }; }
         table ip late { chain forward { type filter hook forward priority 100; ip daddr 10.65.0.0/16 drop; }; }
         table ip6 raw { chain pre { type filter hook prerouting priority -300; counter drop; }; }
         table ip nowhere { chain post { type filter hook postrouting priority 300; counter drop; }; }
         table inet chosen { set hosts { type ipv4_addr; }
             chain forward { type filter hook forward priority -200; ip saddr @hosts drop; ct state invalid drop; }
             chain pre { type filter hook prerouting priority -300; iifname \"eth9\" drop; }
             chain output { type filter hook output priority -300; policy drop; }; }
         table inet accepted { chain forward { type filter hook forward priority 0; policy drop; }; }",
    );
    let (dataplane, mut reports) = start(&node).await;
    dataplane.replace(plan()).await.unwrap();
    let mut expected = [
        ("chain forward of table inet early", "its policy is drop (hook forward, priority -200)"),
        ("chain forward of table ip late", "its rule 1 drops packets (hook forward, priority 100)"),
        ("chain post of table ip nowhere", "its rule 1 drops packets (hook postrouting, priority 300)"),
        ("chain pre of table ip6 raw", "its rule 1 drops packets (hook prerouting, priority -300)"),
    ]
    .map(|(chain, reason)| format!("{chain}: {reason}"))
    .to_vec();
    expect_overruled(&mut reports, &expected).await;
    // A chain that no longer drops is no longer reported.
    node.nft("delete table ip late");
    expected.remove(1);
    expect_overruled(&mut reports, &expected).await;
}

/// Timeout for a report, long for a busy machine.
const REPORT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Waits until exactly these chains are reported.
async fn expect_overruled(reports: &mut ReportReceiver, expected: &[String]) {
    loop {
        let report = tokio::time::timeout(REPORT_TIMEOUT, reports.next()).await;
        match report.unwrap_or_else(|_| panic!("{expected:?} was not reported")) {
            Some(DataplaneReport::Overruled(failures)) => {
                let mut texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
                texts.sort();
                if texts == expected {
                    return;
                }
            }
            Some(_) => {}
            None => panic!("the dataplane has ended"),
        }
    }
}
