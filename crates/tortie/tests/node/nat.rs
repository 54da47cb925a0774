//! Outgoing NAT from pools to packets: the source address of a container that a host beyond the router sees.
//!
//! ```text
//! pod -- node 172.30.0.1, fd30::1 ==== 172.30.0.2, fd30::2, with 198.51.100.1 and 2001:db8::1
//! ```

use crate::world::{NodeFixture, TestNamespace, eventually};
use std::process::Stdio;

const BEYOND_ADDRESSES: [&str; 2] = ["198.51.100.1", "2001:db8::1"];
const NODE_ADDRESSES: [&str; 2] = ["172.30.0.1", "fd30::1"];

/// Creates a host on the node's link that can answer the node and its containers.
fn beyond(world: &NodeFixture, pools: [&str; 2]) -> TestNamespace {
    let host = TestNamespace::new("beyond");
    world.host.ip(&["link", "set", "wire0", "netns", host.name()]);
    world.host.ip("addr add fd30::1/64 dev eth0 nodad");
    host.ip("addr add 172.30.0.2/24 dev wire0");
    host.ip("addr add fd30::2/64 dev wire0 nodad");
    host.ip("link set wire0 up");
    for (address, pool) in BEYOND_ADDRESSES.into_iter().zip(pools) {
        let v6 = address.contains(':');
        let (length, gateway, node) =
            if v6 { (128, "fd30::2", "fd30::1") } else { (32, "172.30.0.2", "172.30.0.1") };
        host.ip(&format!("addr add {address}/{length} dev lo"));
        world.host.ip(&format!("route add {address}/{length} via {gateway}"));
        host.ip(&format!("route add {pool} via {node}"));
    }
    host
}

/// Returns the source address that the host beyond sees when a container pings it.
fn seen(pod: &TestNamespace, beyond: &TestNamespace, to: &str) -> String {
    let (protocol, family) =
        if to.contains(':') { ("icmpv6 type echo-request", "ip6") } else { ("icmp type echo-request", "ip") };
    beyond.nft(&format!(
        "table inet seen; delete table inet seen; table inet seen {{
            set sources {{ typeof {family} saddr; flags dynamic; size 64; }}
            chain in {{ type filter hook input priority 0; {protocol} {family} daddr {to} add @sources {{ {family} saddr }}; }}
        }}"
    ));
    let ping = pod.command("ping").args(["-n", "-c", "1", "-W", "10", to]).stdout(Stdio::null()).status();
    assert!(ping.unwrap().success(), "{to} answers whoever it sees");
    let listing: serde_json::Value =
        serde_json::from_str(&beyond.exec("nft -j list set inet seen sources")).unwrap();
    let objects = listing["nftables"].as_array().unwrap();
    let sources = objects.iter().find_map(|object| object["set"]["elem"].as_array()).unwrap();
    assert_eq!(sources.len(), 1, "{listing}");
    let source = &sources[0];
    source.as_str().or(source["elem"]["val"].as_str()).unwrap().to_owned()
}

#[test]
fn pools_say_whose_address_is_seen_outside() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let beyond = beyond(&world, ["10.77.0.0/24", "fd77::/116"]);
    world.start(&[("IP", "172.30.0.1/24"), ("IP6", "fd30::1/64")]);
    let pod = world.container();
    let own = world.must("ADD", "c1", &pod.path(), &world.config()).addresses();
    let own = |v6: usize| own.iter().find(|address| address.contains(':') == (v6 == 1)).unwrap().clone();
    let is = |v6: usize, expected: &str, why: &str| {
        eventually(&format!("{why}: {} sees {expected}", BEYOND_ADDRESSES[v6]), || {
            seen(&pod, &beyond, BEYOND_ADDRESSES[v6]) == expected
        });
    };
    is(0, NODE_ADDRESSES[0], "the default pool of IPv4 is translated");
    is(1, &own(1), "that of IPv6 is not");

    let patch = |pool: &str, spec: &str| {
        world.calicoctl(&["patch", "ippool", pool, "-p", &format!("{{\"spec\": {spec}}}")], "");
    };
    patch("default-ipv4-ippool", r#"{"natOutgoing": false}"#);
    patch("default-ipv6-ippool", r#"{"natOutgoing": true}"#);
    is(0, &own(0), "turned off");
    is(1, NODE_ADDRESSES[1], "turned on");

    // Addresses in any pool are excluded from NAT, even if no node uses them.
    let pool = |name: &str, cidr: &str| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {{name: {name}}}, spec: {{cidr: '{cidr}', disabled: true}}}}"
        )
    };
    patch("default-ipv4-ippool", r#"{"natOutgoing": true}"#);
    world.calicoctl(
        &["apply", "-f", "-"],
        &format!("{}\n---\n{}", pool("far4", "198.51.100.0/24"), pool("far6", "2001:db8::/64")),
    );
    is(0, &own(0), "it is in a pool");
    is(1, &own(1), "it is in a pool");
    for name in ["far4", "far6"] {
        world.calicoctl(&["delete", "ippool", name], "");
    }
    is(0, NODE_ADDRESSES[0], "the pool is gone");
    is(1, NODE_ADDRESSES[1], "the pool is gone");

    // Traffic to other nodes is translated unless natOutgoingExclusions includes host IPs.
    world.calicoctl(
        &["apply", "-f", "-"],
        "{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: beyond}, spec: {bgp: {ipv4Address: 198.51.100.1/32, ipv6Address: '2001:db8::1/128'}}}",
    );
    world.felix("natOutgoingExclusions: IPPoolsAndHostIPs");
    is(0, &own(0), "it is a node");
    is(1, &own(1), "it is a node");
    world.felix("natOutgoingExclusions: IPPoolsOnly");
    is(0, NODE_ADDRESSES[0], "nodes are outside again");

    // A killed daemon leaves the rules in place, and the next one keeps them.
    world.stop();
    assert_eq!(seen(&pod, &beyond, BEYOND_ADDRESSES[0]), NODE_ADDRESSES[0]);
    world.start(&[("IP", "172.30.0.1/24"), ("IP6", "fd30::1/64")]);
    is(1, NODE_ADDRESSES[1], "after a restart");
}
