//! Routes of virtual machines that live-migrate to or from this node.

use crate::namespace::{TestNamespace, eventually, id, key, node_pair, plan, pod, start, workload};
use std::collections::BTreeSet;
use std::time::Duration;
use tortie_dataplane::{DataplaneReport, ReportReceiver, WorkloadState};
use tortie_plan::{LearntNextHop, LearntRouteEntry, MigrationState, PlanUpdate, PlannedWorkload, Route};

const ADDRESSES: [&str; 2] = ["10.65.0.2", "fd80:65::2"];

fn machine(migration: MigrationState) -> PlannedWorkload {
    PlannedWorkload { migration, ..workload("cali1", &ADDRESSES) }
}

/// Returns the routes to the machine's IPv4 and IPv6 addresses.
fn routes(node: &TestNamespace) -> Vec<String> {
    [node.routes("10.65.0.2/32"), node.routes("fd80:65::2/128")].concat()
}

fn normal(metric: u32) -> [String; 2] {
    [
        format!("unicast 10.65.0.2 dev cali1 proto boot scope link metric {metric}"),
        format!("unicast fd80:65::2 dev cali1 proto boot scope global metric {metric} pref medium"),
    ]
}

async fn reported(reports: &mut ReportReceiver, expected: &DataplaneReport) {
    let found = async { while reports.next().await.expect("the dataplane runs") != *expected {} };
    tokio::time::timeout(Duration::from_secs(60), found).await.expect("it is reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arriving_machine_is_routed_when_announced() {
    let (node, _other) = node_pair();
    let machine_netns = pod(&node, "cali1", &ADDRESSES).await;
    let (dataplane, mut reports) = start(&node).await;
    let elsewhere = Route::via("192.168.77.2".parse().unwrap());
    let before = plan(&[("vm", machine(MigrationState::Arriving))], &[("10.65.0.2/32", elsewhere)]);
    assert_eq!(dataplane.replace(before).await.unwrap().failures, []);
    reported(&mut reports, &DataplaneReport::Workload { id: id("vm"), state: WorkloadState::Up }).await;
    assert!(routes(&node).iter().all(|route| !route.contains("cali1")), "{:?}", routes(&node));
    assert_eq!(node.routes("10.65.0.2/32").len(), 1, "what is for it goes to where it runs");

    // An ARP request for another address does not announce the sender's own address.
    machine_netns.ip("neigh flush all");
    let _ = machine_netns.command("ping").args(["-c1", "-W1", "192.168.77.1"]).output().unwrap();
    let gratuitous = DataplaneReport::Announced(BTreeSet::from([id("vm")]));
    // With arp_notify=1 the kernel sends a gratuitous ARP when the interface comes up.
    machine_netns.exec(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_notify"]);
    let announce = || {
        machine_netns.ip("link set eth0 down");
        machine_netns.ip("link set eth0 up");
    };
    let mut heard = false;
    for _ in 0..20 {
        announce();
        let next = async { while reports.next().await.expect("the dataplane runs") != gratuitous {} };
        heard = tokio::time::timeout(Duration::from_secs(3), next).await.is_ok();
        if heard {
            break;
        }
    }
    assert!(heard, "it has said that it runs");

    let arrived = |migration| {
        vec![
            PlanUpdate::Route(key("10.65.0.2/32"), None),
            PlanUpdate::Workload(id("vm"), Some(machine(migration))),
        ]
    };
    assert_eq!(dataplane.apply(arrived(MigrationState::Arrived)).await.unwrap().failures, []);
    eventually("better routes", || routes(&node) == normal(512)).await;
    dataplane.apply(arrived(MigrationState::Settling)).await.unwrap();
    assert_eq!(routes(&node), normal(512));
    dataplane.apply(arrived(MigrationState::None)).await.unwrap();
    eventually("normal routes", || routes(&node) == normal(1024)).await;
    reported(&mut reports, &DataplaneReport::Announced(BTreeSet::new())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leaving_machine_is_reached_at_its_announcer() {
    let (node, _other) = node_pair();
    let _machine = pod(&node, "cali1", &ADDRESSES).await;
    let (dataplane, mut reports) = start(&node).await;
    dataplane.replace(plan(&[("vm", machine(MigrationState::None))], &[])).await.unwrap();
    assert_eq!(routes(&node), normal(1024));
    // BGP has converged: from here on the dataplane removes learned routes that BGP withdraws.
    dataplane.apply(vec![PlanUpdate::LearntComplete]).await.unwrap();
    let learnt = |metric| {
        let to = |net: &str, hop: &str| {
            let next_hops = vec![LearntNextHop::from(hop.parse::<std::net::IpAddr>().unwrap())];
            PlanUpdate::Learnt(net.parse().unwrap(), Some(LearntRouteEntry { next_hops, metric }))
        };
        vec![to("10.65.0.2/32", "192.168.77.2"), to("fd80:65::2/128", "fd77::2")]
    };
    dataplane.apply(learnt(1024)).await.unwrap();
    assert_eq!(routes(&node), normal(1024), "others may announce it as well: it runs here");
    dataplane.apply(learnt(512)).await.unwrap();
    let there = [
        "unicast 10.65.0.2 via 192.168.77.2 dev eth0 proto bird scope global metric 512 onlink",
        "unicast fd80:65::2 via fd77::2 dev eth0 proto bird scope global metric 512 onlink pref medium",
    ];
    eventually("it is reached there", || routes(&node) == there).await;
    reported(&mut reports, &DataplaneReport::Workload { id: id("vm"), state: WorkloadState::Up }).await;
    let gone = ADDRESSES.map(|address| {
        let address: std::net::IpAddr = address.parse().unwrap();
        PlanUpdate::Learnt(address.into(), None)
    });
    dataplane.apply(gone.to_vec()).await.unwrap();
    eventually("it came back", || routes(&node) == normal(1024)).await;
}
