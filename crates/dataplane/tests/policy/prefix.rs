//! A workload is known by its endpoint, not by how its interface is called.

use crate::namespace::{Namespace, Open, eventually, plan, pod, workload};
use crate::plans::{ONE, TWO, guarded, ingress, reaches};
use crate::raw::{Link, udp_v4};
use std::net::UdpSocket;
use std::time::Duration;
use tortie_dataplane::Dataplane;
use tortie_plan::{Action, EndpointToHost, Rule, Settings};

#[tokio::test(flavor = "multi_thread")]
async fn an_interface_that_no_prefix_covers_is_policed_like_the_others() {
    let node = Namespace::new("node");
    let one = pod(&node, "tap1", &ONE).await;
    let two = pod(&node, "cali2", &TWO).await;
    let mut settings = Settings { interface_prefixes: vec!["veth".into()], ..Settings::default() };
    settings.policy.endpoint_to_host = EndpointToHost::Accept;
    let (dataplane, _reports) = Dataplane::start(node.open(), settings).await.unwrap();
    let workloads = [("one", workload("tap1", &ONE)), ("two", workload("cali2", &TWO))];
    let open = plan(&workloads, &[]);
    assert_eq!(dataplane.replace(open.clone()).await.unwrap().failures, []);
    assert!(reaches(&one, "10.65.0.3") && reaches(&two, "fd80:65::2"), "both are allowed everything");
    assert_eq!(node.sysctl("net/ipv4/conf/tap1/proxy_arp"), "1");

    // Sources that are not its own.
    node.ip("addr add 192.0.2.1/32 dev lo");
    node.exec(&["sysctl", "-qw", "net.ipv4.conf.tap1.rp_filter=0"]);
    let socket = node.open().run(|| UdpSocket::bind("0.0.0.0:5000").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let link = Link::open(&one, "eth0");
    let arrives = |source: &str| {
        link.send_ip(&udp_v4(source.parse().unwrap(), "192.0.2.1".parse().unwrap(), 5000));
        socket.recv(&mut [0; 64]).is_ok()
    };
    eventually("its own source arrives", || arrives("10.65.0.2")).await;
    assert!(!arrives("10.65.0.77"), "a source of nobody");

    let closed = guarded(open, &[("closed", ingress(vec![Rule::new(Action::Deny)]))]);
    assert_eq!(dataplane.replace(closed).await.unwrap().failures, []);
    assert!(!reaches(&one, "10.65.0.3"), "its policy denies it");
    assert!(reaches(&two, "10.65.0.2"));
}
