//! Proxy ARP and NDP for workloads whose addresses are in the host's subnet: other hosts of the subnet have no route
//! to them and resolve them on the link.

use crate::namespace::{TestNamespace, addresses, eventually, id, node_pair, plan, pod, start, workload};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;
use tortie_dataplane::{DataplaneHandle, DataplaneReport};
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate, Route, RouteKey, RouteTarget};

/// Addresses in the subnets of the node's `eth0`.
const POD_ADDRESSES_ON_LINK: [&str; 2] = ["192.168.77.200", "fd77::200"];
/// Address in none of the node's subnets.
const POD_ADDRESS_OFF_LINK: &str = "10.65.0.2";
const WRONG_MAC: &str = "02:00:00:00:00:99";

fn proxied(answered: &[&str]) -> PlanUpdate {
    PlanUpdate::Proxied(addresses(answered).into_iter().collect())
}

fn with_pod(answered: &[&str]) -> NodePlan {
    let mut plan = plan(
        &[(
            "one",
            workload("cali1", &[POD_ADDRESSES_ON_LINK[0], POD_ADDRESSES_ON_LINK[1], POD_ADDRESS_OFF_LINK]),
        )],
        &[],
    );
    plan.proxied = addresses(answered).into_iter().collect();
    plan
}

/// Returns the proxy neighbour entries of all interfaces with their protocol.
fn proxies(node: &TestNamespace) -> BTreeSet<String> {
    let list = |family: &str| node.ip(&[family, "neigh", "show", "proxy"]);
    let text = list("-4") + &list("-6");
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn ours() -> BTreeSet<String> {
    POD_ADDRESSES_ON_LINK.iter().map(|address| format!("{address} dev eth0 proxy proto 80")).collect()
}

/// Returns the sysctls that proxying changes on an interface.
fn settings(node: &TestNamespace, interface: &str) -> [String; 3] {
    ["ipv4/neigh/IF/proxy_delay", "ipv6/neigh/IF/proxy_delay", "ipv6/conf/IF/proxy_ndp"]
        .map(|key| node.sysctl(&format!("net/{}", key.replace("IF", interface))))
}

/// Returns the MAC address that the host's neighbour cache holds for an address.
fn remembered(host: &TestNamespace, address: &str) -> String {
    let entry = host.json(&format!("neigh show {address} dev eth0"));
    entry[0]["lladdr"].as_str().unwrap_or_default().to_owned()
}

fn mac(node: &TestNamespace) -> String {
    node.json("link show dev eth0")[0]["address"].as_str().unwrap().to_owned()
}

fn forget(host: &TestNamespace) {
    host.ip(&["-4", "neigh", "flush", "dev", "eth0"]);
    host.ip(&["-6", "neigh", "flush", "dev", "eth0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_on_the_subnet_reach_a_workload() {
    let (node, other) = node_pair();
    let (dataplane, mut reports) = start(&node).await;
    let sandbox =
        pod(&node, "cali1", &[POD_ADDRESSES_ON_LINK[0], POD_ADDRESSES_ON_LINK[1], POD_ADDRESS_OFF_LINK])
            .await;
    assert_eq!(dataplane.replace(with_pod(&[])).await.unwrap().failures, []);
    for address in POD_ADDRESSES_ON_LINK {
        assert!(!other.pings(address), "nobody answers for {address} yet");
    }
    let outcome = dataplane
        .apply(vec![proxied(&[POD_ADDRESSES_ON_LINK[0], POD_ADDRESSES_ON_LINK[1], POD_ADDRESS_OFF_LINK])])
        .await
        .unwrap();
    assert_eq!(outcome.failures, []);
    assert_eq!(proxies(&node), ours(), "and not for what is of no subnet of a link");
    forget(&other);
    for address in POD_ADDRESSES_ON_LINK {
        eventually(&format!("{address} is reached"), || other.pings(address)).await;
        assert_eq!(remembered(&other, address), mac(&node));
    }
    assert!(sandbox.pings("192.168.77.2") && sandbox.pings("fd77::2"), "and the workload reaches it");
    while reports.next().await.unwrap() != DataplaneReport::Proxied(2, vec![]) {}
    assert_eq!(settings(&node, "eth0"), ["0", "0", "1"]);

    assert_eq!(dataplane.apply(vec![proxied(&POD_ADDRESSES_ON_LINK[1..])]).await.unwrap().failures, []);
    assert_eq!(proxies(&node).len(), 1);
    forget(&other);
    assert!(!other.pings(POD_ADDRESSES_ON_LINK[0]), "the node does not answer any more");
    assert!(other.pings(POD_ADDRESSES_ON_LINK[1]), "for the other family it does");
    assert_eq!(
        dataplane.apply(vec![PlanUpdate::Workload(id("one"), None), proxied(&[])]).await.unwrap().failures,
        []
    );
    assert_eq!(proxies(&node), BTreeSet::new());
    assert_eq!(settings(&node, "eth0"), settings(&node, "lo"), "as if nobody had ever been answered");
}

/// Like kube-proxy, the node redirects packets for an address that no interface has.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_on_the_subnet_reach_a_service() {
    let (node, other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    node.nft(&format!(
        "table inet service {{ chain to {{ type nat hook prerouting priority -100; ip daddr {} redirect; ip6 daddr {} redirect; }}; }}",
        POD_ADDRESSES_ON_LINK[0], POD_ADDRESSES_ON_LINK[1]
    ));
    let mut services = plan(&[], &[]);
    services.proxied = addresses(&POD_ADDRESSES_ON_LINK).into_iter().collect();
    let key = RouteKey::from(IpNet::from(addresses(&POD_ADDRESSES_ON_LINK)[0]));
    services.routes.insert(key, Route::to(RouteTarget::Host));
    assert_eq!(dataplane.replace(services).await.unwrap().failures, []);
    assert_eq!(proxies(&node), ours());
    for address in POD_ADDRESSES_ON_LINK {
        eventually(&format!("{address} is reached"), || other.pings(address)).await;
        assert_eq!(remembered(&other, address), mac(&node));
    }
    let gone = vec![proxied(&[]), PlanUpdate::Route(key, None)];
    assert_eq!(dataplane.apply(gone).await.unwrap().failures, []);
    forget(&other);
    assert!(
        !POD_ADDRESSES_ON_LINK.iter().any(|address| other.pings(address)),
        "the node does not answer any more"
    );
    assert_eq!(node.routes(&format!("{}/32", POD_ADDRESSES_ON_LINK[0])), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_proxies_are_repaired_and_foreign_ones_stay() {
    let (node, other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    let _sandbox =
        pod(&node, "cali1", &[POD_ADDRESSES_ON_LINK[0], POD_ADDRESSES_ON_LINK[1], POD_ADDRESS_OFF_LINK])
            .await;
    dataplane.replace(with_pod(&POD_ADDRESSES_ON_LINK)).await.unwrap();
    for address in POD_ADDRESSES_ON_LINK {
        node.ip(&["neigh", "del", "proxy", address, "dev", "eth0"]);
    }
    eventually("the entries are back", || proxies(&node) == ours()).await;
    node.ip("link set eth0 down");
    node.ip("link set eth0 up");
    // The kernel removes the IPv6 addresses of an interface that goes down.
    node.ip("addr add fd77::1/64 dev eth0 nodad");
    eventually("they are there after the link was down", || proxies(&node) == ours()).await;
    node.exec(&["sysctl", "-qw", "net.ipv6.conf.eth0.proxy_ndp=0"]);
    forget(&other);
    eventually("the setting is as it has to be", || other.pings(POD_ADDRESSES_ON_LINK[1])).await;

    // An entry of an earlier run (proto 80) is removed; an entry that an operator added stays.
    dataplane.stop().await;
    node.ip("neigh add proxy 192.168.77.201 dev eth0 proto 80");
    node.ip("neigh add proxy 192.168.77.202 dev eth0");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(with_pod(&POD_ADDRESSES_ON_LINK)).await.unwrap();
    let mut wanted = ours();
    wanted.insert("192.168.77.202 dev eth0 proxy".to_owned());
    assert_eq!(proxies(&node), wanted);
    dataplane.replace(with_pod(&[])).await.unwrap();
    assert_eq!(proxies(&node), BTreeSet::from(["192.168.77.202 dev eth0 proxy".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxied_addresses_are_announced_repeatedly() {
    let (node, other) = node_pair();
    let settings =
        DataplaneSettings { announce_proxied: Some(Duration::from_secs(1)), ..DataplaneSettings::default() };
    let (dataplane, _reports) =
        DataplaneHandle::start(crate::namespace::OpenNetns::open(&node), settings).await.unwrap();
    let _sandbox =
        pod(&node, "cali1", &[POD_ADDRESSES_ON_LINK[0], POD_ADDRESSES_ON_LINK[1], POD_ADDRESS_OFF_LINK])
            .await;
    dataplane.replace(with_pod(&[])).await.unwrap();
    let mislead = || {
        for address in POD_ADDRESSES_ON_LINK {
            other.ip(&format!("neigh replace {address} lladdr {WRONG_MAC} dev eth0 nud stale"));
        }
    };
    let knows = || POD_ADDRESSES_ON_LINK.iter().all(|address| remembered(&other, address) == mac(&node));
    mislead();
    dataplane.apply(vec![proxied(&POD_ADDRESSES_ON_LINK)]).await.unwrap();
    eventually("it is told of the new place", knows).await;
    mislead();
    eventually("it is told again after a while", knows).await;
}
