//! Workload interfaces are identified by their endpoint, not by the prefix of their name.

use crate::namespace::{OpenNetns, TestNamespace, eventually, id, node_pair, plan, pod, workload};
use crate::plans::{POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, guarded, ingress, reaches};
use crate::raw::{RawLink, udp_v4};
use std::net::UdpSocket;
use std::time::Duration;
use tortie_dataplane::{DataplaneHandle, KernelFailure};
use tortie_plan::{DataplaneSettings, EndpointToHostAction, PlanUpdate, PlannedRule, RuleAction};
use tortie_testkit::bind_when_free;

#[tokio::test(flavor = "multi_thread")]
async fn policy_covers_interfaces_without_the_prefix() {
    let node = TestNamespace::new("node");
    let one = pod(&node, "tap1", &POD_ONE_ADDRESSES).await;
    let two = pod(&node, "cali2", &POD_TWO_ADDRESSES).await;
    let mut settings =
        DataplaneSettings { interface_prefixes: vec!["veth".into()], ..DataplaneSettings::default() };
    settings.policy.endpoint_to_host = EndpointToHostAction::Accept;
    let (dataplane, _reports) = DataplaneHandle::start(node.open(), settings).await.unwrap();
    let workloads =
        [("one", workload("tap1", &POD_ONE_ADDRESSES)), ("two", workload("cali2", &POD_TWO_ADDRESSES))];
    let open = plan(&workloads, &[]);
    assert_eq!(dataplane.replace(open.clone()).await.unwrap().failures, []);
    assert!(reaches(&one, "10.65.0.3") && reaches(&two, "fd80:65::2"), "both are allowed everything");
    assert_eq!(node.sysctl("net/ipv4/conf/tap1/proxy_arp"), "1");

    // Source addresses that the workload does not have are dropped.
    node.ip("addr add 192.0.2.1/32 dev lo");
    node.exec(&["sysctl", "-qw", "net.ipv4.conf.tap1.rp_filter=0"]);
    let socket = node.open().run(|| bind_when_free(|| UdpSocket::bind("0.0.0.0:5000")).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let link = RawLink::open(&one, "eth0");
    let arrives = |source: &str| {
        link.send_ip(&udp_v4(source.parse().unwrap(), "192.0.2.1".parse().unwrap(), 5000));
        socket.recv(&mut [0; 64]).is_ok()
    };
    eventually("its own source arrives", || arrives("10.65.0.2")).await;
    assert!(!arrives("10.65.0.77"), "a source of nobody");

    let closed = guarded(open, &[("closed", ingress(vec![PlannedRule::new(RuleAction::Deny)]))]);
    assert_eq!(dataplane.replace(closed).await.unwrap().failures, []);
    assert!(!reaches(&one, "10.65.0.3"), "its policy denies it");
    assert!(reaches(&two, "10.65.0.2"));
}

/// An endpoint that names an interface of the host changes nothing on it and is reported until it names another one.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_on_links_of_the_host_are_refused() {
    let (node, there) = node_pair();
    let _one = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    node.ip("link add spare type veth peer name wire");
    node.ip("link set spare up");
    node.ip("link set wire up");
    let uplink = node.exec(&["ip", "-o", "route", "get", "192.168.77.2"]);
    let uplink = uplink.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap().to_owned();
    let settings = |node: &TestNamespace| {
        ["proxy_arp", "rp_filter", "route_localnet"]
            .map(|name| node.sysctl(&format!("net/ipv4/conf/{uplink}/{name}")))
    };
    let before = settings(&node);
    let (dataplane, _reports) =
        DataplaneHandle::start(node.open(), DataplaneSettings::default()).await.unwrap();
    let names = [uplink.as_str(), "lo"];
    let workloads = [
        ("one", workload("cali1", &POD_ONE_ADDRESSES)),
        ("uplink", workload(&uplink, &["10.65.0.8"])),
        ("loopback", workload("lo", &["10.65.0.9"])),
    ];
    let refused = |failures: &[KernelFailure]| {
        let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
        names.iter().all(|name| texts.iter().any(|text| text.contains(name) && text.contains("workload")))
            && failures.iter().any(|failure| failure.concerns(&id("uplink")))
            && !failures.iter().any(|failure| failure.concerns(&id("one")))
    };
    let outcome = dataplane.replace(plan(&workloads, &[])).await.unwrap();
    assert!(refused(&outcome.failures), "{outcome:?}");
    let update = PlanUpdate::Workload(id("uplink"), Some(workload(&uplink, &["10.65.0.8"])));
    let outcome = dataplane.apply(vec![update]).await.unwrap();
    assert!(refused(&outcome.failures), "{outcome:?}");
    assert_eq!(settings(&node), before);
    assert!(reaches(&node, "192.168.77.2") && reaches(&there, "192.168.77.1"), "the host goes on");
    let routes = node.exec(&["ip", "-o", "route"]);
    assert!(!routes.contains("10.65.0.8") && !routes.contains("10.65.0.9"), "{routes}");

    // An unused interface is accepted as a workload's; when the host starts to use it, it is released.
    let workloads =
        [("one", workload("cali1", &POD_ONE_ADDRESSES)), ("uplink", workload("spare", &["10.65.0.8"]))];
    let outcome = dataplane.replace(plan(&workloads, &[])).await.unwrap();
    assert!(!outcome.failures.iter().any(|failure| failure.concerns(&id("uplink"))), "{outcome:?}");
    assert_eq!(node.sysctl("net/ipv4/conf/spare/proxy_arp"), "1");
    let guarded = || node.exec(&["nft", "list", "table", "inet", "tortie"]).contains("spare");
    assert!(guarded(), "it has the policy of its workload");
    node.ip("addr add 192.0.2.1/24 dev spare");
    eventually("it has none of a workload any more", || !guarded()).await;
    let outcome = dataplane.apply(Vec::new()).await.unwrap();
    assert!(outcome.failures.iter().any(|failure| failure.concerns(&id("uplink"))), "{outcome:?}");
}
