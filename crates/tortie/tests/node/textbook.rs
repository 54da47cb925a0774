//! The standard scenario of documentation on Calico and BIRD: two hosts in two AS, each with a block of addresses.
//! One host is ours, the other runs a manually configured BIRD.
//!
//! ```text
//! pod 1.1.1.x -- host, AS 50060, 172.30.0.1 ==== 172.30.0.2, AS 50200, BIRD -- workload 1.1.2.2
//! ```

use crate::bird::BirdProcess;
use crate::world::{NodeFixture, TestNamespace, eventually};

const BIRD_CONFIGURATION: &str = "
    router id 172.30.0.2;
    protocol device { scan time 1; }
    protocol static block4 { ipv4; route 1.1.2.0/24 blackhole; }
    protocol static block6 { ipv6; route fd11:2::/120 blackhole; }
    protocol kernel { ipv4 { import none; export all; }; }
    protocol kernel { ipv6 { import none; export all; }; }
    protocol bgp host4 {
      local 172.30.0.2 as 50200; neighbor 172.30.0.1 as 50060; connect delay time 1; error wait time 1, 2;
      ipv4 { import all; export where proto = \"block4\"; };
    }
    protocol bgp host6 {
      local fd30::2 as 50200; neighbor fd30::1 as 50060; connect delay time 1; error wait time 1, 2;
      ipv6 { import all; export where proto = \"block6\"; };
    }
";

const PEERS_AND_POLICY: &str = "
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: router-v4}
spec: {peerIP: 172.30.0.2, asNumber: 50200}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: router-v6}
spec: {peerIP: 'fd30::2', asNumber: 50200}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: open}
spec: {selector: all(), types: [Ingress, Egress], ingress: [{action: Allow}], egress: [{action: Allow}]}
";

/// Creates the other host on our host's link, and the workload behind it.
pub fn neighbour(world: &NodeFixture) -> (TestNamespace, TestNamespace) {
    let (host, workload) = (TestNamespace::new("bird"), TestNamespace::new("work"));
    world.host.ip(&["link", "set", "wire0", "netns", host.name()]);
    world.host.ip(&["addr", "add", "fd30::1/64", "dev", "eth0", "nodad"]);
    host.ip(&["link", "add", "work0", "type", "veth", "peer", "name", "eth0", "netns", workload.name()]);
    for (namespace, link, address) in [
        (&host, "wire0", "172.30.0.2/24"),
        (&host, "wire0", "fd30::2/64"),
        (&host, "work0", "169.254.2.1/32"),
        (&host, "work0", "fe80::1/64"),
        (&workload, "eth0", "1.1.2.2/32"),
        (&workload, "eth0", "fd11:2::2/128"),
    ] {
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        namespace.ip(&[&["addr", "add", address, "dev", link], nodad].concat());
        namespace.ip(&["link", "set", link, "up"]);
    }
    for switch in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        assert!(host.try_exec(&["sysctl", "-qw", switch]).status.success());
    }
    host.ip(&["route", "add", "1.1.2.2", "dev", "work0"]);
    host.ip(&["route", "add", "fd11:2::2", "dev", "work0"]);
    workload.ip(&["route", "add", "default", "via", "169.254.2.1", "dev", "eth0", "onlink"]);
    workload.ip(&["route", "add", "default", "via", "fe80::1", "dev", "eth0"]);
    (host, workload)
}

#[test]
fn a_tortie_and_a_bird_host_exchange_routes() {
    let mut world = NodeFixture::without_node("1.1.1.0/24");
    let (neighbour, workload) = neighbour(&world);
    let (config, socket) = (world.dir.path().join("router.conf"), world.dir.path().join("router.ctl"));
    std::fs::write(&config, BIRD_CONFIGURATION).unwrap();
    let bird = BirdProcess::start(&neighbour, &config, &socket);
    world.start(&[
        ("AS", "50060"),
        ("IP", "172.30.0.1/24"),
        ("IP6", "fd30::1/64"),
        ("CALICO_IPV4POOL_BLOCK_SIZE", "24"),
        ("CALICO_IPV4POOL_NAT_OUTGOING", "false"),
        ("CALICO_IPV6POOL_CIDR", "fd11:1::/120"),
        ("CALICO_IPV6POOL_BLOCK_SIZE", "120"),
    ]);
    world.calicoctl(&["apply", "-f", "-"], PEERS_AND_POLICY);
    let pod = world.container();
    let added = world.must("ADD", "c1", &pod.path(), &world.config()).addresses();

    for (family, wanted) in [
        ("-4", ["blackhole 1.1.1.0/24 proto bird", "1.1.2.0/24 via 172.30.0.2 dev eth0 proto bird"]),
        ("-6", ["blackhole fd11:1::/120 dev lo proto bird", "fd11:2::/120 via fd30::2 dev eth0 proto bird"]),
    ] {
        for line in wanted {
            eventually(&format!("our host has {line}\n{}", world.log()), || {
                world.host.ip(&[family, "route"]).contains(line)
            });
        }
    }
    for (family, wanted) in [
        ("-4", "1.1.1.0/24 via 172.30.0.1 dev wire0 proto bird"),
        ("-6", "fd11:1::/120 via fd30::1 dev wire0 proto bird"),
    ] {
        eventually(&format!("the other host has {wanted}"), || {
            neighbour.ip(&[family, "route"]).contains(wanted)
        });
    }
    let said = bird.says("show route 1.1.1.0/24 all");
    assert!(said.contains("BGP.as_path: 50060"), "{said}");
    for address in ["1.1.2.2", "fd11:2::2"] {
        assert!(pod.pings(address), "{address}\n{}", world.host.ip(&["route"]));
    }
    for address in &added {
        assert!(workload.pings(address), "{address}\n{}", neighbour.ip(&["route"]));
    }

    // A route that the neighbour withdraws is removed here too.
    bird.says("disable block4");
    eventually("the route to the neighbour's block goes", || {
        !world.host.ip(&["-4", "route"]).contains("1.1.2.0/24")
    });
}
