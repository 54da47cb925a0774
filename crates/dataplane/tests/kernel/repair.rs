//! The dataplane repairs changes that others make to its kernel objects.

use crate::namespace::{TestNamespace, eventually, node_pair, plan, pod, start, workload};
use std::time::Duration;
use tortie_dataplane::{DataplaneHandle, ReportReceiver};
use tortie_plan::{PlannedWorkload, Route};

struct RepairFixture {
    node: TestNamespace,
    _other: TestNamespace,
    _pod: TestNamespace,
    _dataplane: DataplaneHandle,
    _reports: ReportReceiver,
}

/// Starts a dataplane with one workload, one local block and one block of the other node per family.
async fn scene() -> RepairFixture {
    let (node, other) = node_pair();
    let (dataplane, reports) = start(&node).await;
    let pod = pod(&node, "cali1", &["10.65.0.2", "fd80:65::2"]).await;
    let one = workload("cali1", &["10.65.0.2", "fd80:65::2"]);
    let one = PlannedWorkload { mac: Some([2, 0, 0, 0, 0, 1]), ..one };
    let routes = [
        ("10.65.0.0/26", Route::BLACKHOLE),
        ("10.65.1.0/26", Route::via("192.168.77.2".parse().unwrap())),
        ("fd80:66::/122", Route::via("fd77::2".parse().unwrap())),
    ];
    dataplane.replace(plan(&[("one", one)], &routes)).await.unwrap();
    RepairFixture { node, _other: other, _pod: pod, _dataplane: dataplane, _reports: reports }
}

const PLANNED_ROUTES: [&str; 5] =
    ["10.65.0.2/32", "fd80:65::2/128", "10.65.0.0/26", "10.65.1.0/26", "fd80:66::/122"];

fn complete(node: &TestNamespace) -> bool {
    PLANNED_ROUTES.iter().all(|destination| node.routes(destination).len() == 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_routes_come_back() {
    let RepairFixture { node, .. } = &scene().await;
    assert!(complete(node));
    for destination in PLANNED_ROUTES {
        let kind = if destination == "10.65.0.0/26" { "blackhole" } else { "" };
        node.ip(&format!("route del {kind} {destination}"));
    }
    eventually("all routes", || complete(node)).await;
    node.ip("route replace 10.65.1.0/26 via 192.168.77.3 dev eth0 onlink proto 80");
    eventually("the right next hop", || node.routes("10.65.1.0/26")[0].contains("192.168.77.2")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_return_with_their_link_or_address() {
    let RepairFixture { node, .. } = &scene().await;
    node.ip("link set cali1 down");
    eventually("no route to what is down", || node.routes("10.65.0.2/32").is_empty()).await;
    node.ip("link set cali1 up");
    eventually("all routes after the link was down", || complete(node)).await;
    node.ip("addr del 192.168.77.1/24 dev eth0");
    node.ip("addr add 192.168.77.1/24 dev eth0");
    eventually("all routes after the address was gone", || complete(node)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_come_back() {
    let RepairFixture { node, .. } = &scene().await;
    let settings = [
        ("net/ipv4/conf/cali1/proxy_arp", "1"),
        ("net/ipv4/conf/cali1/forwarding", "1"),
        ("net/ipv6/conf/cali1/proxy_ndp", "1"),
        ("net/ipv6/conf/cali1/forwarding", "1"),
        ("net/ipv6/conf/cali1/accept_ra", "0"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
    ];
    for (key, value) in settings {
        let other = if value == "1" { "0" } else { "1" };
        node.exec(&["sh", "-c", &format!("echo {other} > /proc/sys/{key}")]);
    }
    for (key, value) in settings {
        eventually(key, || node.sysctl(key) == value).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permanent_neighbour_comes_back() {
    let RepairFixture { node, .. } = &scene().await;
    let permanent = || {
        let lines = node.ip("neigh show dev cali1 nud permanent");
        lines.contains("10.65.0.2 lladdr 02:00:00:00:00:01 PERMANENT")
    };
    assert!(permanent());
    node.ip("neigh del 10.65.0.2 dev cali1");
    eventually("the neighbour", permanent).await;
    node.ip("neigh replace 10.65.0.2 lladdr 02:00:00:00:00:99 dev cali1 nud permanent");
    eventually("the right neighbour", permanent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_routes_leave_only_workload_interfaces() {
    let RepairFixture { node, .. } = &scene().await;
    node.ip("route add 10.99.0.0/24 dev eth0 proto static");
    node.ip("route add 10.98.0.0/24 dev cali1 proto static");
    eventually("the strange route to go", || node.routes("10.98.0.0/24").is_empty()).await;
    assert_eq!(node.routes("10.99.0.0/24").len(), 1);
    assert!(complete(node));
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_unknown_workloads_have_a_grace_period() {
    let RepairFixture { node, .. } = &scene().await;
    node.ip("link add cali2 type veth peer name other2");
    node.ip("link set cali2 up");
    node.ip("link set other2 up");
    node.ip("route add 10.65.0.9/32 dev cali2");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(node.routes("10.65.0.9/32").len(), 1, "the plugin may just not have reported yet");
    eventually("the grace period to end", || node.routes("10.65.0.9/32").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flows_of_a_removed_workload_are_deleted() {
    use nlink::netlink::Netfilter;
    use nlink::netlink::netfilter::{ConntrackBuilder, ConntrackTuple, IpProtocol};
    let RepairFixture { node, _dataplane: dataplane, .. } = &scene().await;
    let path = node.path();
    let flows = nlink::Connection::<Netfilter>::new_in(std::path::Path::new(&path)).unwrap();
    for source in ["10.65.0.2", "10.65.0.7"] {
        let tuple = ConntrackTuple::v4(source.parse().unwrap(), "192.0.2.1".parse().unwrap()).ports(4000, 53);
        let flow = ConntrackBuilder::new_v4(IpProtocol::Udp).orig(tuple).timeout(Duration::from_secs(600));
        flows.add_conntrack(flow).await.unwrap();
    }
    let sources = async || {
        let entries = flows.get_conntrack().await.unwrap();
        entries
            .iter()
            .filter_map(|entry| entry.orig.src_ip)
            .map(|source| source.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(sources().await.len(), 2);
    dataplane
        .apply(vec![tortie_plan::PlanUpdate::Workload(crate::namespace::id("one"), None)])
        .await
        .unwrap();
    let patience = std::time::Instant::now() + Duration::from_secs(30);
    while sources().await != ["10.65.0.7"] {
        assert!(std::time::Instant::now() < patience, "left: {:?}", sources().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
