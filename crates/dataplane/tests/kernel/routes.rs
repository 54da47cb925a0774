//! Routes of a plan in the kernel.

use crate::namespace::{TestNamespace, eventually, id, key, node_pair, plan, pod, start, workload};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::time::Duration;
use tortie_dataplane::{DataplaneReport, ReportReceiver, WorkloadState};
use tortie_plan::{NodePlan, PlanUpdate, Route};

fn via(node: &str) -> Route {
    Route::via(node.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_look_like_those_of_the_reference() {
    let (node, _other) = node_pair();
    let (dataplane, mut reports) = start(&node).await;
    let _pod = pod(&node, "cali1", &["10.65.0.2", "fd80:65::2"]).await;
    let workloads = [("one", workload("cali1", &["10.65.0.2", "fd80:65::2"]))];
    let routes = [
        ("10.65.0.0/26", Route::BLACKHOLE),
        ("10.65.1.0/26", via("192.168.77.2")),
        ("fd80:65::/122", Route::BLACKHOLE),
        ("fd80:66::/122", via("fd77::2")),
    ];
    dataplane.replace(plan(&workloads, &routes)).await.unwrap();
    assert_eq!(
        node.routes("10.65.0.2/32"),
        ["unicast 10.65.0.2 dev cali1 proto boot scope link metric 1024"]
    );
    assert_eq!(node.routes("10.65.0.0/26"), ["blackhole 10.65.0.0/26 proto 80 scope global"]);
    assert_eq!(
        node.routes("10.65.1.0/26"),
        ["unicast 10.65.1.0/26 via 192.168.77.2 dev eth0 proto 80 scope global onlink"]
    );
    assert_eq!(
        node.routes("fd80:65::2/128"),
        ["unicast fd80:65::2 dev cali1 proto boot scope global metric 1024 pref medium"]
    );
    assert_eq!(
        node.routes("fd80:65::/122"),
        ["blackhole fd80:65::/122 dev lo proto 80 scope global metric 1024 pref medium"]
    );
    assert_eq!(
        node.routes("fd80:66::/122"),
        ["unicast fd80:66::/122 via fd77::2 dev eth0 proto 80 scope global metric 1024 onlink pref medium"]
    );
    assert_eq!(node.sysctl("net/ipv4/ip_forward"), "1");
    assert_eq!(node.sysctl("net/ipv6/conf/all/forwarding"), "1");

    let up = DataplaneReport::Workload { id: id("one"), state: WorkloadState::Up };
    while reports.next().await.expect("the dataplane runs") != up {}

    let updates = vec![
        PlanUpdate::Workload(id("one"), None),
        PlanUpdate::Route(key("10.65.1.0/26"), None),
        PlanUpdate::Route(key("fd80:66::/122"), None),
    ];
    let outcome = dataplane.apply(updates).await.unwrap();
    assert_eq!(outcome.failures, []);
    for gone in ["10.65.0.2/32", "fd80:65::2/128", "10.65.1.0/26", "fd80:66::/122"] {
        assert_eq!(node.routes(gone), [""; 0], "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_before_the_first_plan() {
    let (node, _other) = node_pair();
    node.ip("route add blackhole 10.66.0.0/26 proto 80");
    node.ip("route add 10.67.0.0/26 via 192.168.77.2 proto static");
    node.ip("route add 10.68.0.0/26 dev eth0");
    let (dataplane, _reports) = start(&node).await;
    dataplane.apply(vec![PlanUpdate::Route(key("10.65.0.0/26"), Some(Route::BLACKHOLE))]).await.unwrap();
    assert_eq!(node.routes("10.65.0.0/26").len(), 1);
    assert_eq!(node.routes("10.66.0.0/26").len(), 1, "still unknown whether it is wanted");
    dataplane.replace(NodePlan::default()).await.unwrap();
    assert_eq!(node.routes("10.65.0.0/26"), [""; 0]);
    assert_eq!(node.routes("10.66.0.0/26"), [""; 0]);
    assert_eq!(node.routes("10.67.0.0/26").len(), 1);
    assert_eq!(node.routes("10.68.0.0/26").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_route_in_our_place_is_reported() {
    let (node, _other) = node_pair();
    node.ip("route add 10.65.1.0/26 via 192.168.77.2 proto static");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(NodePlan::default()).await.unwrap();
    let net: IpNet = "10.65.1.0/26".parse().unwrap();
    let outcome = dataplane.apply(vec![PlanUpdate::Route(net.into(), Some(Route::BLACKHOLE))]).await.unwrap();
    assert_eq!(outcome.failures.len(), 1);
    assert_eq!(outcome.failures[0].object.to_string(), "route 10.65.1.0/26");
    assert!(outcome.failures[0].reason.contains("not ours"), "{}", outcome.failures[0].reason);
    assert!(node.routes("10.65.1.0/26")[0].contains("proto static"));
    node.ip("route del 10.65.1.0/26");
    eventually("our route", || {
        node.routes("10.65.1.0/26") == ["blackhole 10.65.1.0/26 proto 80 scope global"]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_behind_a_router_are_reached() {
    let (node, _other) = node_pair();
    node.ip("route add 172.30.0.0/16 via 192.168.77.2");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan(&[], &[("10.65.1.0/26", via("172.30.0.9"))])).await.unwrap();
    assert_eq!(
        node.routes("10.65.1.0/26"),
        ["unicast 10.65.1.0/26 via 192.168.77.2 dev eth0 proto 80 scope global onlink"]
    );

    let lost = PlanUpdate::Route(key("10.65.2.0/26"), Some(via("203.0.113.1")));
    let outcome = dataplane.apply(vec![lost]).await.unwrap();
    assert_eq!(outcome.failures.len(), 1, "{:?}", outcome.failures);
    assert!(outcome.failures[0].reason.starts_with("node 203.0.113.1 cannot be reached"));
    node.ip("route add 203.0.113.0/24 via 192.168.77.2");
    eventually("the way to the node", || node.routes("10.65.2.0/26").len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_workloads_the_second_waits() {
    let node = TestNamespace::new("node");
    let (dataplane, _reports) = start(&node).await;
    let _pod = pod(&node, "cali1", &["10.65.0.2"]).await;
    let both = [("a", workload("cali1", &["10.65.0.2"])), ("b", workload("cali1", &["10.65.0.3"]))];
    dataplane.replace(plan(&both, &[])).await.unwrap();
    assert_eq!(node.routes("10.65.0.2/32").len(), 1);
    assert_eq!(node.routes("10.65.0.3/32").len(), 0);
    dataplane.apply(vec![PlanUpdate::Workload(id("a"), None)]).await.unwrap();
    assert_eq!(node.routes("10.65.0.2/32").len(), 0);
    assert_eq!(node.routes("10.65.0.3/32").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_interface_gets_its_routes() {
    let node = TestNamespace::new("node");
    let (dataplane, mut reports) = start(&node).await;
    dataplane.replace(plan(&[("one", workload("cali1", &["10.65.0.2"]))], &[])).await.unwrap();
    let reported = |state| DataplaneReport::Workload { id: id("one"), state };
    until(&mut reports, &reported(WorkloadState::Down)).await;
    let _pod = pod(&node, "cali1", &["10.65.0.2"]).await;
    eventually("the route", || node.routes("10.65.0.2/32").len() == 1).await;
    until(&mut reports, &reported(WorkloadState::Up)).await;
    node.ip("link del cali1");
    until(&mut reports, &reported(WorkloadState::Down)).await;
}

async fn until(reports: &mut ReportReceiver, wanted: &DataplaneReport) {
    while tokio::time::timeout(Duration::from_secs(30), reports.next()).await.unwrap().as_ref()
        != Some(wanted)
    {}
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_routes_come_and_go() {
    let (node, _other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    let mut routes = BTreeMap::new();
    for number in 0..10_000u32 {
        let net = format!("10.{}.{}.0/26", 64 + number / 256, number % 256);
        routes.insert(key(&net), via("192.168.77.2"));
    }
    dataplane.replace(NodePlan { routes, ..NodePlan::default() }).await.unwrap();
    let count = || node.ip("-4 route show proto 80").lines().count();
    assert_eq!(count(), 10_000);
    dataplane.replace(NodePlan::default()).await.unwrap();
    assert_eq!(count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mtu_follows_the_carrying_interface() {
    let (node, _other) = node_pair();
    node.ip("link set eth0 mtu 9000");
    let (dataplane, _reports) = start(&node).await;
    let choice = dataplane.mtu();
    assert_eq!((choice.mtu, choice.interface.as_deref()), (9000, Some("eth0")));
    node.ip("link set eth0 mtu 1450");
    eventually("the new MTU", || dataplane.mtu().mtu == 1450).await;
}
