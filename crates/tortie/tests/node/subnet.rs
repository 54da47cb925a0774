//! Pools inside the node's own subnets: a neighbour without a route to containers reaches them if the settings allow
//! it.
//!
//! ```text
//! pod -- node 172.30.0.1, fd77::1:1 ==== neighbour 172.30.0.2, fd77::1:2
//! ```

use crate::world::{NodeFixture, TestNamespace, eventually};

/// Part of 172.30.0.0/24. The IPv6 pool is part of fd77::/64.
const POOL_CIDR: &str = "172.30.0.128/25";
const NODE_ENVIRONMENT: [(&str, &str); 4] = [
    ("IP", "172.30.0.1/24"),
    ("IP6", "fd77::1:1/64"),
    ("CALICO_IPV4POOL_IPIP", "Never"),
    ("CALICO_IPV4POOL_VXLAN", "Never"),
];

fn neighbour(world: &NodeFixture) -> TestNamespace {
    let neighbour = TestNamespace::new("neighbour");
    world.host.ip(&["link", "set", "wire0", "netns", neighbour.name()]);
    world.host.ip("addr add fd77::1:1/64 dev eth0 nodad");
    neighbour.ip("addr add 172.30.0.2/24 dev wire0");
    neighbour.ip("addr add fd77::1:2/64 dev wire0 nodad");
    neighbour.ip("link set wire0 up");
    neighbour
}

/// Returns whether an address is reachable after the neighbour cache has been flushed.
fn reaches(neighbour: &TestNamespace, address: &str) -> bool {
    neighbour.ip("-4 neigh flush dev wire0");
    neighbour.ip("-6 neigh flush dev wire0");
    neighbour.pings(address)
}

#[test]
fn proxied_addresses_are_reached_without_a_route() {
    let mut world = NodeFixture::without_node(POOL_CIDR);
    let neighbour = neighbour(&world);
    world.start(&NODE_ENVIRONMENT);
    // Traffic from outside needs a policy that allows it.
    let open = "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: open}, \
                spec: {types: [Ingress, Egress], ingress: [{action: Allow}], egress: [{action: Allow}]}}";
    world.calicoctl(&["apply", "-f", "-"], open);
    let pod = world.container();
    let own = world.must("ADD", "c1", &pod.path(), &world.config()).addresses();
    assert_eq!(own.len(), 2, "{own:?}");
    for address in &own {
        assert!(!reaches(&neighbour, address), "nobody answers for {address} unless it is asked for");
    }
    world.felix("localSubnetL2Reachability: PodsAndLoadBalancers");
    for address in &own {
        eventually(&format!("{address} is reached"), || reaches(&neighbour, address));
    }
    world.stop();
    for address in &own {
        eventually(&format!("{address} is reached while the daemon is away"), || {
            reaches(&neighbour, address)
        });
    }
    world.start(&NODE_ENVIRONMENT);
    for address in &own {
        eventually(&format!("{address} is reached after it"), || reaches(&neighbour, address));
    }

    let mode = |mode: &str| {
        let patch = format!(r#"{{"spec": {{"vxlanMode": "{mode}"}}}}"#);
        world.calicoctl(&["patch", "ippool", "default-ipv4-ippool", "-p", &patch], "");
    };
    let v4 = own.iter().find(|address| !address.contains(':')).unwrap();
    let v6 = own.iter().find(|address| address.contains(':')).unwrap();
    mode("Always");
    eventually("addresses of a pool with encapsulation are no link's", || !reaches(&neighbour, v4));
    assert!(reaches(&neighbour, v6), "which is no matter of the other pool");
    mode("Never");
    eventually("without it they are again", || reaches(&neighbour, v4));

    world.felix("localSubnetL2Reachability: Disabled");
    for address in &own {
        eventually(&format!("{address} is not answered for any more"), || !reaches(&neighbour, address));
    }
    let settings =
        ["net/ipv4/neigh/IF/proxy_delay", "net/ipv6/neigh/IF/proxy_delay", "net/ipv6/conf/IF/proxy_ndp"];
    let of = |interface: &str| settings.map(|key| world.host.sysctl(&key.replace("IF", interface)));
    eventually("the settings are those of an interface that nobody has touched", || of("eth0") == of("lo"));
    world.felix("localSubnetL2Reachability: PodsAndLoadBalancers");
    eventually("it is on again", || reaches(&neighbour, v4));
    assert_eq!(of("eth0"), ["0", "0", "1"]);
    world.must("DEL", "c1", &pod.path(), &world.config());
    eventually("of a container that is gone nothing is left", || {
        let proxies = |family: &str| world.host.ip(&[family, "neigh", "show", "proxy"]);
        proxies("-4").is_empty() && proxies("-6").is_empty()
    });
}
