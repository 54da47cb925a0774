//! Endpoints that Felix's chains must cover before our policy may be removed.

use crate::namespace::{OpenNetns, start};
use crate::plans::{open_plan, two_pods};
use std::collections::BTreeMap;
use tortie_dataplane::{missing_guards, remove_policy};
use tortie_plan::HostEndpointPolicy;

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_without_a_guard_of_felix_are_named() {
    let (node, _one, _two) = two_pods().await;
    node.ip("link add eth0 type veth peer name wire0");
    node.ip("addr add 192.168.77.1/24 dev eth0");
    node.ip("link set eth0 up");
    let missing = async || -> Vec<String> {
        missing_guards(&node.open()).await.unwrap().iter().map(ToString::to_string).collect()
    };
    assert_eq!(missing().await, [""; 0], "there is no policy");
    let endpoint = |interface: &str| {
        let profiles = vec!["open".to_owned()];
        (
            interface.to_owned(),
            HostEndpointPolicy { interface: interface.into(), profiles, ..HostEndpointPolicy::default() },
        )
    };
    let mut plan = open_plan();
    plan.host_endpoints = BTreeMap::from([endpoint("eth0"), endpoint("*")]);
    let (dataplane, _reports) = start(&node).await;
    assert_eq!(dataplane.replace(plan).await.unwrap().failures, []);
    let workloads = ["cali1 (IPv4)", "cali1 (IPv6)", "cali2 (IPv4)", "cali2 (IPv6)"];
    let hosts = ["any-interface-at-all (IPv4)", "eth0 (IPv4)"];
    assert_eq!(missing().await, [&workloads[..], &hosts].concat());

    // An interface with IPv4 only, an interface that is gone, and a chain that no rule jumps to.
    dataplane.stop().await;
    node.ip("-6 route del fd80:65::2");
    node.ip("link del cali2");
    for rule in ["-N cali-fh-eth0", "-A cali-fh-eth0 -j RETURN"] {
        node.exec(&format!("iptables-nft {rule}"));
    }
    assert_eq!(missing().await, [&workloads[..1], &hosts].concat());
    node.exec("iptables-nft -A INPUT -i eth0 -g cali-fh-eth0");
    assert_eq!(missing().await, [workloads[0], hosts[0]]);
    remove_policy(&node.open()).await.unwrap();
    assert_eq!(missing().await, [""; 0]);
}
