//! A workload cannot reach the loopback addresses of its host, regardless of sysctls and NAT rules there.

use crate::namespace::{OpenNetns, TestNamespace, eventually, plan, pod, start, workload};
use crate::plans::POD_ONE_ADDRESSES;
use crate::raw::{RawLink, udp_v4, udp_v6};
use std::net::{Ipv6Addr, UdpSocket};
use std::time::Duration;
use tortie_testkit::bind_when_free;

/// Returns whether a datagram to a socket of the node arrives.
fn arrives(node: &TestNamespace, bind: &str, send: impl Fn()) -> bool {
    let socket = node.open().run(|| bind_when_free(|| UdpSocket::bind(bind)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    send();
    socket.recv(&mut [0; 64]).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_reaches_no_loopback_of_its_host() {
    let node = TestNamespace::new("node");
    let pod = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan(&[("one", workload("cali1", &POD_ONE_ADDRESSES))], &[])).await.unwrap();
    assert_eq!(node.sysctl("net/ipv4/conf/cali1/route_localnet"), "0", "nothing of ours needs it");
    // Another program on the node may have set these.
    node.exec(&["sysctl", "-qw", "net.ipv4.conf.cali1.route_localnet=1"]);
    node.exec(&["sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0"]);
    node.exec(&["sysctl", "-qw", "net.ipv4.conf.cali1.rp_filter=0"]);
    node.ip("addr add 192.0.2.1/32 dev lo");
    let own = "10.65.0.2".parse().unwrap();
    let link = RawLink::open(&pod, "eth0");
    let to = |destination: &str| udp_v4(own, destination.parse().unwrap(), 5000);
    // Prove that the test can see packets.
    let host = || arrives(&node, "0.0.0.0:5000", || link.send_ip(&to("192.0.2.1")));
    eventually("the host itself is reached", host).await;
    for bind in ["127.0.0.1:5000", "0.0.0.0:5000"] {
        for destination in ["127.0.0.1", "127.1.2.3"] {
            let sent = || link.send_ip(&to(destination));
            assert!(!arrives(&node, bind, sent), "{destination} of the host, bound to {bind}");
        }
    }
    let v6 = || {
        let from = "fd80:65::2".parse().unwrap();
        link.send_ip(&udp_v6(from, Ipv6Addr::LOCALHOST, 5000));
    };
    assert!(!arrives(&node, "[::]:5000", v6), "::1 of the host");

    // A service on a loopback address stays reachable by DNAT from another destination address.
    node.nft(
        "table ip rewrite { chain pre { type nat hook prerouting priority -100; udp dport 6000 dnat to 127.0.0.1:5000; }; }",
    );
    let rewritten = udp_v4(own, "192.0.2.1".parse().unwrap(), 6000);
    let service = || arrives(&node, "127.0.0.1:5000", || link.send_ip(&rewritten));
    eventually("the service is reached", service).await;
    let from_loopback = udp_v4("127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap(), 5000);
    assert!(!arrives(&node, "0.0.0.0:5000", || link.send_ip(&from_loopback)), "from such an address");
}
