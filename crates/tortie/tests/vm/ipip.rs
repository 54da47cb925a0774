//! IPIP between nodes of ours, and with a BIRD and a tunnel that somebody made by hand.

use crate::lab::Lab;
use crate::world::{Namespace, World, eventually};
use serde_json::Value;
use tortie_testkit::{Process, guest_test};

/// Packets that a node of a lab has sent wrapped.
fn wrapped(lab: &Lab, node: &str) -> u64 {
    let text = lab.on(node, "ip -j -s link show dev tunl0");
    let links: Value = serde_json::from_str(&text).unwrap();
    links[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

guest_test!(
    crate::machine,
    fn pods_of_different_racks_reach_each_other_by_ipip() {
        let lab = Lab::up(
            "ipip",
            &["--nodes", "3", "--topology", "l3", "--encap", "ipip-cross", "--pool", "10.99.0.0/24"],
        );
        let (one, two, three) = (lab.add("one", "node1"), lab.add("two", "node2"), lab.add("three", "node3"));
        eventually("racks reach each other", || lab.pings("one", &three) && lab.pings("three", &one));
        let route = lab.on("node1", &format!("ip route get {three}"));
        assert!(route.contains("dev tunl0"), "{route}");
        let before = wrapped(&lab, "node1");
        assert!(before > 0);
        eventually("within a rack they do too", || lab.pings("one", &two) && lab.pings("two", &one));
        assert_eq!(wrapped(&lab, "node1"), before, "as they are");
        // As large as the interface of the pod allows, and not in pieces.
        let link: Value = serde_json::from_str(&lab.on("one", "ip -j link show dev eth0")).unwrap();
        let mtu = link[0]["mtu"].as_u64().unwrap();
        let fits = mtu - 28;
        assert!(lab.pings("one", &format!("-M do -s {fits} {three}")), "{fits} bytes of {mtu}");
        for mode in ["Always", "Never", "CrossSubnet"] {
            let patch = format!("{{\"spec\": {{\"ipipMode\": \"{mode}\"}}}}");
            lab.run(&["ctl", "patch", "ippool", "lab-ipv4-1", "-p", &patch]);
            // The router of the lab knows nothing of pods: without wrapping they are reached within a rack alone.
            let across = mode != "Never";
            eventually(&format!("{mode}: racks reach each other: {across}"), || {
                let reached = lab.output(&["exec", "one", "--", "ping", "-n", "-c", "1", "-W", "1", &three]);
                reached.status.success() == across
            });
            eventually(&format!("{mode}: within a rack"), || lab.pings("one", &two));
        }
    }
);

const CONFIGURATION: &str = "
    router id 172.30.0.2;
    protocol device { scan time 1; }
    protocol static own { ipv4; route 1.1.2.0/24 blackhole; }
    protocol bgp host {
      local 172.30.0.2 as 50200; neighbor 172.30.0.1 as 50060; connect delay time 1; error wait time 1, 2;
      ipv4 { import all; export where proto = \"own\"; };
    }
";

const OBJECTS: &str = "
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: router}
spec: {peerIP: 172.30.0.2, asNumber: 50200}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: far}
spec: {cidr: 1.1.2.0/24, ipipMode: Always, disabled: true}
";

/// A host on the wire of ours with a tunnel, and the workload behind it.
fn neighbour(world: &World) -> (Namespace, Namespace) {
    let (host, workload) = (Namespace::new("bird"), Namespace::new("work"));
    world.host.ip(&["link", "set", "wire0", "netns", host.name()]);
    host.ip(&["link", "add", "work0", "type", "veth", "peer", "name", "eth0", "netns", workload.name()]);
    host.ip("addr add 172.30.0.2/24 dev wire0");
    host.ip("addr add 169.254.2.1/32 dev work0");
    host.ip("addr add 1.1.2.1/32 dev tunl0");
    workload.ip("addr add 1.1.2.2/32 dev eth0");
    for link in ["wire0", "work0", "tunl0"] {
        host.ip(&["link", "set", link, "up"]);
    }
    workload.ip("link set eth0 up");
    host.exec("sysctl -qw net.ipv4.ip_forward=1");
    host.ip("route add 1.1.2.2 dev work0");
    host.ip("route add 1.1.1.0/24 via 172.30.0.1 dev tunl0 onlink");
    workload.ip("route add default via 169.254.2.1 dev eth0 onlink");
    (host, workload)
}

guest_test!(
    crate::machine,
    fn a_bird_with_a_tunnel_made_by_hand_is_an_equal() {
        let mut world = World::without_node("1.1.1.0/24");
        let (neighbour, workload) = neighbour(&world);
        let config = world.path("router.conf");
        std::fs::write(&config, CONFIGURATION).unwrap();
        let mut bird = neighbour.command("bird");
        let _bird =
            Process::quiet(bird.arg("-f").arg("-c").arg(&config).arg("-s").arg(world.path("router.ctl")));
        world.start(&[
            ("AS", "50060"),
            ("IP", "172.30.0.1/24"),
            ("CALICO_IPV4POOL_IPIP", "Always"),
            ("CALICO_IPV4POOL_NAT_OUTGOING", "false"),
            ("FELIX_EXTERNALNODESCIDRLIST", "172.30.0.2/32"),
        ]);
        world.calicoctl(&["apply", "-f", "-"], OBJECTS);
        let pod = world.container();
        let own = world.must("ADD", "c1", &pod.path(), &world.config()).addresses();
        let own = own.iter().find(|address| !address.contains(':')).unwrap();
        let route = "1.1.2.0/24 via 172.30.0.2 dev tunl0 proto bird onlink";
        let picture = || format!("{}\n{}", world.host.ip("route"), world.log());
        let there = || world.host.ip("route").contains(route);
        tortie_testkit::eventually_showing(route, there, picture);
        eventually("the pod reaches what is behind the other tunnel", || pod.pings("1.1.2.2"));
        eventually("and is reached from there", || workload.pings(own));
        assert!(pod.try_exec("ping -n -c 1 -W 5 -M do -s 1452 1.1.2.2").status.success(), "in whole packets");
        // Not from anybody else.
        world.felix("externalNodesList: []");
        world.stop();
        world.start(&[("AS", "50060"), ("IP", "172.30.0.1/24"), ("CALICO_IPV4POOL_NAT_OUTGOING", "false")]);
        eventually("a stranger's packets are dropped", || {
            !workload.try_exec(&["ping", "-n", "-c", "1", "-W", "1", own]).status.success()
        });
    }
);
