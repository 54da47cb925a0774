//! IPIP between nodes, and with a manually configured tunnel.

use crate::capture::{CapturedPacket, PacketCapture, PacketEncapsulation};
use crate::cluster::{GuestCluster, POOL_NAMES, TestPhases, cluster};
use std::fs::File;
use std::net::IpAddr;
use std::process::Command;
use tortie_testkit::{TestNamespace, TestProcess, eventually, guest_test};

/// BGP installs the routes of IPIP pools, as in Calico's documentation.
const ROUTES_BY_BGP: &str = r#"
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {programClusterRoutes: Enabled}
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec: {programClusterRoutes: Disabled}
"#;

/// Each node installs the routes itself.
const ROUTES_BY_NODES: &str = r#"
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {programClusterRoutes: Disabled}
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec: {programClusterRoutes: Enabled}
"#;

impl GuestCluster {
    fn ipip_mode(&self, mode: &str) {
        self.patch("ippool", POOL_NAMES[0], &format!(r#"{{"ipipMode": "{mode}"}}"#));
    }

    /// Returns whether a node has a route, ignoring its metric.
    fn has_route(&self, node: &str, wanted: &str) -> bool {
        let without_metric = |line: &str| match line.split_once(" metric ") {
            Some((before, after)) => format!("{before}{}", after.trim_start_matches(char::is_numeric)),
            None => line.to_owned(),
        };
        let routes = self.ip(node, "-4 route");
        let mut blocks = routes.lines().filter(|line| line.starts_with("10.244.")).map(without_metric);
        blocks.any(|line| line.trim_end().ends_with(wanted))
    }
}

/// Returns the packets between two addresses.
fn between(seen: &[CapturedPacket], one: &str, other: &str) -> Vec<CapturedPacket> {
    let ends: [IpAddr; 2] = [one.parse().unwrap(), other.parse().unwrap()];
    seen.iter().filter(|p| ends.contains(&p.source) && ends.contains(&p.destination)).copied().collect()
}

guest_test!(
    crate::machine,
    fn ipip_between_racks_and_plain_within_one() {
        let mut cluster = cluster();
        let mut phases = TestPhases::of("IPIP");
        cluster.ipip_mode("CrossSubnet");
        cluster.lab.apply(ROUTES_BY_NODES);
        cluster.eventually("the node itself routes what is wrapped", || {
            cluster.has_route("node1", &format!("via {} dev tunl0 proto 80 onlink mtu 1480", cluster.node3))
        });
        cluster.lab.apply(ROUTES_BY_BGP);
        cluster.eventually("then BGP does, as in the textbook", || {
            cluster.has_route("node1", &format!("via {} dev tunl0 proto bird onlink", cluster.node3))
                && cluster.has_route("node1", "via 10.10.1.2 dev eth0 proto bird onlink")
                && cluster.has_route("node3", "via 10.10.1.1 dev tunl0 proto bird onlink")
        });
        let routes = cluster.ip("node1", "route");
        assert_eq!(routes.matches("blackhole 10.244.").count(), 1, "{routes}");
        let router = cluster.ip("net", "route");
        assert!(!router.contains("10.244."), "the router knows nothing of pods: {router}");
        cluster.reach("one", "two", false);
        cluster.reach("one", "three", false);
        let node = cluster.lab.node("node1");
        let tunnel = node["spec"]["bgp"]["ipv4IPIPTunnelAddr"].as_str().unwrap().to_owned();
        let device = cluster.ip("node1", "addr show dev tunl0");
        assert!(device.contains(&format!("inet {tunnel}/32")) && device.contains("mtu 1480"), "{device}");
        phases.done("turned on");

        let capture = PacketCapture::start(&cluster.netns("node1"), "eth0");
        let one = cluster.address("one", false);
        // One after the other: the socket's buffer holds only part of a stream.
        for (pod, mtu, wrap) in
            [("two", 1500, PacketEncapsulation::None), ("three", 1480, PacketEncapsulation::Ipip)]
        {
            cluster.full_size("one", pod, false, mtu);
            let packets = between(&capture.packets(), one, cluster.address(pod, false));
            let right = |packet: &CapturedPacket| packet.wrap == wrap && !packet.is_fragment;
            assert!(packets.len() > 2 && packets.iter().all(right), "{pod}: {packets:?}");
        }
        phases.done("full-size packets");

        let pingers = cluster.pingers("one", "three", false);
        cluster.restart_under(&pingers, "node1");
        cluster.restart_under(&pingers, "node3");
        drop(pingers);
        phases.done("restarts");
        let pingers = cluster.pingers("one", "two", false);
        for (mode, device) in
            [("Always", "tunl0"), ("Never", "eth0"), ("Always", "tunl0"), ("CrossSubnet", "eth0")]
        {
            let change = || cluster.ipip_mode(mode);
            cluster.under(&pingers, &format!("ipipMode {mode}"), change, || {
                cluster.has_route("node1", &format!("via 10.10.1.2 dev {device} proto bird onlink"))
                    && cluster.has_route("node2", &format!("via 10.10.1.1 dev {device} proto bird onlink"))
            });
        }
        drop(pingers);
        phases.done("changes of the mode");

        let left = cluster.node3;
        cluster.eventually("the others know a node in another rack", || {
            cluster.knows("node1", left) && cluster.knows("node2", left)
        });
        cluster.node3_leaves();
        cluster.eventually("the others forget a node that leaves", || {
            !cluster.knows("node1", left) && !cluster.knows("node2", left)
        });
        cluster.node3_comes_back();
        cluster.eventually("they know where it is when it comes back", || {
            let route = format!("via {} dev tunl0 proto bird onlink", cluster.node3);
            cluster.has_route("node1", &route) && cluster.has_route("node2", &route)
        });
        cluster.reach("one", "three", false);
        cluster.reach("two", "three", false);
        phases.done("a node leaves and comes back with another address");
        cluster.ipip_mode("Never");
        cluster.eventually("the device has no address any more", || {
            !cluster.ip("node1", "addr show dev tunl0").contains("inet ")
        });
        cluster.lab.addresses_are_accounted_for();
        phases.done("turned off");
    }
);

/// A machine in the rack of node3 with a manually configured tunnel to node1.
struct ManualTunnelHost {
    host: TestNamespace,
}

impl ManualTunnelHost {
    const HOST_ADDRESS: &str = "10.10.2.77";
    const TUNNEL_ADDRESS: &str = "10.244.200.1";

    fn new(cluster: &GuestCluster) -> ManualTunnelHost {
        let host = TestNamespace::new("handmade");
        let (fabric, name) = (cluster.fabric(), host.name());
        let link = format!("link add handmade master rack2 type veth peer name eth0 netns {name}");
        let up = "link set handmade up";
        for words in [link.as_str(), up] {
            tortie_testkit::run(Command::new("ip").args(["-n", &fabric]).args(words.split_whitespace()));
        }
        host.ip(&format!("addr add {}/24 dev eth0", ManualTunnelHost::HOST_ADDRESS));
        host.ip("link set eth0 up");
        host.ip("route add default via 10.10.2.254");
        host.ip(&format!(
            "link add tunl1 type ipip local {} remote 10.10.1.1",
            ManualTunnelHost::HOST_ADDRESS
        ));
        host.ip(&format!("addr add {}/32 dev tunl1", ManualTunnelHost::TUNNEL_ADDRESS));
        host.ip("link set tunl1 up");
        ManualTunnelHost { host }
    }

    fn reaches(&self, address: &str) -> bool {
        let ping = ["ping", "-n", "-c", "1", "-W", "2", "-I", ManualTunnelHost::TUNNEL_ADDRESS, address];
        self.host.try_exec(&ping).status.success()
    }

    /// Starts BIRD, which announces a block to node1 and routes the blocks of node1 through the tunnel.
    fn bird(&self, cluster: &GuestCluster) -> TestProcess {
        let configuration = format!(
            r#"
            log stderr all;
            router id {own};
            protocol device {{}}
            protocol kernel {{ ipv4 {{ import none; export where source = RTS_BGP; }}; }}
            protocol static {{ ipv4; route 10.244.200.0/26 blackhole; }}
            protocol bgp node1 {{
                local {own} as 64512;
                neighbor 10.10.1.1 as 64512;
                multihop;
                connect retry time 1;
                connect delay time 1;
                error wait time 1, 2;
                ipv4 {{
                    import filter {{ ifname = "tunl1"; accept; }};
                    export where source = RTS_STATIC;
                    next hop self;
                }};
            }}
            "#,
            own = ManualTunnelHost::HOST_ADDRESS,
        );
        let dir = cluster.lab.dir();
        let (file, control) = (dir.join("handmade.conf"), dir.join("handmade.ctl"));
        std::fs::write(&file, configuration).unwrap();
        let mut command = self.host.command("bird");
        command.arg("-f").arg("-c").arg(&file).arg("-s").arg(&control);
        let log = File::create(dir.join("handmade.log")).unwrap();
        TestProcess::start(command.stdout(log.try_clone().unwrap()).stderr(log))
    }
}

/// Returns how many encapsulated packets of unknown senders a node has dropped.
fn strangers(cluster: &GuestCluster, node: &str) -> u64 {
    let table = cluster.exec(node, "nft list table inet tortie");
    let rules = table.lines().filter(|line| line.contains("a tunnel of no known node"));
    let count = |line: &str| line.split("packets ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    rules.filter_map(count).sum()
}

guest_test!(
    crate::machine,
    fn manual_tunnels_are_adopted_with_their_node() {
        let cluster = cluster();
        let mut phases = TestPhases::of("IPIP by hand");
        cluster.ipip_mode("CrossSubnet");
        cluster.lab.apply(ROUTES_BY_BGP);
        cluster.reach("one", "three", false);
        let handmade = ManualTunnelHost::new(&cluster);
        let one = cluster.address("one", false);
        handmade.host.ip(&format!("route add {one} dev tunl1"));
        let before = strangers(&cluster, "node1");
        assert!(!handmade.reaches(one), "a stranger's packet has been answered");
        assert!(strangers(&cluster, "node1") > before, "the stranger's packet was dropped by somebody else");
        phases.done("a stranger's packets");

        handmade.host.ip(&format!("route del {one} dev tunl1"));
        cluster.lab.apply(&format!(
            "{{apiVersion: projectcalico.org/v3, kind: Node, metadata: {{name: handmade}}, \
             spec: {{bgp: {{ipv4Address: {}/24}}}}}}",
            ManualTunnelHost::HOST_ADDRESS
        ));
        let _bird = handmade.bird(&cluster);
        cluster.eventually("node1 learns the way to the hand-made tunnel", || {
            cluster.has_route("node1", "via 10.10.2.77 dev tunl0 proto bird onlink")
        });
        eventually("BIRD learns the way to the pods of node1", || {
            handmade
                .host
                .ip("route")
                .lines()
                .any(|line| line.starts_with("10.244.") && line.contains("dev tunl1 proto bird"))
        });
        let capture = PacketCapture::start(&cluster.netns("node1"), "eth0");
        cluster.eventually("the hand-made tunnel reaches a pod", || handmade.reaches(one));
        cluster.eventually("the pod reaches it", || cluster.pings("one", ManualTunnelHost::TUNNEL_ADDRESS));
        let packets = between(&capture.packets(), one, ManualTunnelHost::TUNNEL_ADDRESS);
        assert!(
            packets.len() > 3 && packets.iter().all(|packet| packet.wrap == PacketEncapsulation::Ipip),
            "{packets:?}"
        );

        cluster.lab.run(&["ctl", "delete", "node", "handmade"]);
        cluster.eventually("of a node that is gone nothing is taken", || {
            !cluster.has_route("node1", "via 10.10.2.77 dev tunl0 proto bird onlink")
                && !handmade.reaches(one)
        });
        cluster.ipip_mode("Never");
        phases.done("with BIRD");
    }
);
