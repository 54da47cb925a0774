//! Encapsulated packets from workloads: protocols that nodes use (IPIP, VXLAN) are dropped, others pass like any
//! protocol.

use crate::namespace::{TestNamespace, eventually, start};
use crate::plans::{POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, open_plan, two_pods};
use crate::raw::{RawLink, udp_v4, v4};
use std::net::Ipv4Addr;

/// Returns how many packets of a kind arrived.
fn arrived(pod: &TestNamespace, kind: &str) -> u64 {
    let listed = pod.exec(&["nft", "list", "table", "inet", "seen"]);
    let line = listed.lines().find(|line| line.contains(kind)).unwrap_or_else(|| panic!("{kind}: {listed}"));
    line.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn gre_and_6in4_pass_but_not_node_tunnels() {
    let (node, one, two) = two_pods().await;
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(open_plan()).await.unwrap();
    two.nft(
        "table inet seen { chain input { type filter hook input priority 0; \
           meta l4proto 47 counter comment \"gre\"; meta l4proto 41 counter comment \"6in4\"; \
           meta l4proto 4 counter comment \"ipip\"; udp dport 4789 counter comment \"vxlan\"; \
           udp dport 4000 counter comment \"last\"; }; }",
    );
    let (from, to): (Ipv4Addr, Ipv4Addr) =
        (POD_ONE_ADDRESSES[0].parse().unwrap(), POD_TWO_ADDRESSES[0].parse().unwrap());
    let inner = udp_v4("10.99.0.1".parse().unwrap(), "10.99.0.2".parse().unwrap(), 9);
    let gre = [&[0, 0, 8, 0][..], &inner].concat();
    let link = RawLink::open(&one, "eth0");
    eventually("packets arrive", || {
        for (protocol, payload) in [(4, &inner), (47, &gre), (41, &inner)] {
            link.send_ip(&v4(from, to, protocol, payload));
        }
        link.send_ip(&udp_v4(from, to, 4789));
        link.send_ip(&udp_v4(from, to, 4000));
        arrived(&two, "last") > 0
    })
    .await;
    assert!(arrived(&two, "gre") > 0 && arrived(&two, "6in4") > 0);
    assert_eq!((arrived(&two, "ipip"), arrived(&two, "vxlan")), (0, 0));
}
