//! WireGuard between nodes: enabling and disabling, key changes, nodes without a key, and traffic between hosts.

use crate::capture::{CapturedPacket, PacketCapture, PacketEncapsulation};
use crate::cluster::{GuestCluster, TestPhases, cluster};
use crate::pinger::ContinuousPing;
use std::net::IpAddr;
use tortie_dataplane::{Netns, PeerTraffic, WireguardTraffic};
use tortie_testkit::guest_test;

const NODE_NAMES: [&str; 3] = ["node1", "node2", "node3"];
const ROUTING_RULE: &str = "99:\tnot from all fwmark 0x200000/0x200000 lookup 1";

impl GuestCluster {
    /// Changes the settings of all nodes or of one.
    fn felix(&self, name: &str, settings: &str) {
        self.lab.apply(&format!(
            "{{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {{name: {name}}}, spec: {settings}}}"
        ));
    }

    fn key(&self, node: &str) -> String {
        self.lab.node(node)["status"]["wireguardPublicKey"].as_str().unwrap_or_default().to_owned()
    }

    fn has_link(&self, node: &str, link: &str) -> bool {
        self.ip(node, "-br link").lines().any(|line| line.split_whitespace().next() == Some(link))
    }

    /// Returns how many blocks a node routes through its IPv4 WireGuard device.
    fn sealed(&self, node: &str) -> usize {
        let routes = self.ip(node, "route show table all");
        routes.lines().filter(|line| line.contains("dev wireguard.cali table 1 proto 80")).count()
    }

    fn has_rule(&self, node: &str, family: &str) -> bool {
        self.ip(node, &format!("{family} rule")).contains(ROUTING_RULE)
    }

    /// Returns the peers of a node's WireGuard device.
    fn peers(&self, node: &str, device: &str) -> Vec<PeerTraffic> {
        let netns = Netns::open(format!("/run/netns/{}", self.netns(node))).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(WireguardTraffic::read(&netns, device)).unwrap().peers
    }

    /// Returns the unencrypted packets of pods that were captured, and the number of encrypted packets.
    fn seen(&self, capture: &PacketCapture) -> (Vec<CapturedPacket>, usize) {
        let (sealed, open): (Vec<CapturedPacket>, Vec<CapturedPacket>) =
            capture.packets().into_iter().partition(|packet| packet.wrap == PacketEncapsulation::Wireguard);
        assert!(!sealed.iter().any(|packet| packet.is_fragment), "{sealed:?}");
        let pods: Vec<IpAddr> = ["one", "two", "three"]
            .iter()
            .flat_map(|pod| [false, true].map(|v6| self.address(pod, v6).parse().unwrap()))
            .collect();
        let of_pods =
            |packet: &CapturedPacket| pods.contains(&packet.source) || pods.contains(&packet.destination);
        (open.into_iter().filter(of_pods).collect(), sealed.len())
    }
}

guest_test!(
    crate::machine,
    fn wireguard_between_nodes() {
        let mut cluster = cluster();
        let mut phases = TestPhases::of("WireGuard");
        cluster.felix("default", "{wireguardEnabled: true, wireguardEnabledV6: true}");
        for node in NODE_NAMES {
            cluster.eventually(&format!("{node} sends all others what is encrypted"), || {
                cluster.sealed(node) >= 2
                    && cluster.has_rule(node, "-4")
                    && cluster.has_rule(node, "-6")
                    && !cluster.key(node).is_empty()
            });
        }
        phases.done("turned on");
        let routes = cluster.ip("node1", "route show table 1");
        assert_eq!(routes.matches("throw 10.244.").count(), 1, "its own block: {routes}");
        assert!(!cluster.ip("net", "route").contains("10.244."), "the router knows nothing of pods");
        for v6 in [false, true] {
            cluster.reach("one", "three", v6);
            cluster.reach("one", "two", v6);
        }
        phases.done("pods reach each other");
        let capture = PacketCapture::start(&cluster.netns("node1"), "eth0");
        cluster.full_size("one", "three", false, 1440);
        cluster.full_size("one", "three", true, 1420);
        cluster.full_size("one", "two", false, 1440);
        let (open, sealed) = cluster.seen(&capture);
        assert!(open.is_empty() && sealed > 10, "{sealed} packets are encrypted, these are not: {open:?}");
        let tunnel = cluster.lab.node("node1")["spec"]["wireguard"]["interfaceIPv4Address"].clone();
        let device = cluster.ip("node1", "addr show dev wireguard.cali");
        assert!(device.contains(&format!("inet {}/32", tunnel.as_str().unwrap())), "{device}");
        cluster.eventually("a node reaches pods of others", || {
            cluster.pings("node1", cluster.address("three", false))
        });
        phases.done("full-size packets");

        let key = cluster.key("node3");
        let left = cluster.node3;
        cluster.node3_leaves();
        cluster.eventually("the others forget a node that leaves", || {
            let alone = |node: &str, device: &str| cluster.peers(node, device).len() == 1;
            let forgotten = |node: &str| {
                cluster.sealed(node) == 1
                    && alone(node, "wireguard.cali")
                    && alone(node, "wg-v6.cali")
                    && !cluster.knows(node, left)
            };
            forgotten("node1") && forgotten("node2")
        });
        cluster.node3_comes_back();
        let address: IpAddr = cluster.node3.parse().unwrap();
        cluster.eventually("they know where it is when it comes back", || {
            let is_there = |peer: &PeerTraffic| {
                peer.public_key == key && peer.endpoint.is_some_and(|endpoint| endpoint.ip() == address)
            };
            let knows = |node: &str| cluster.peers(node, "wireguard.cali").iter().any(is_there);
            knows("node1") && knows("node2")
        });
        for v6 in [false, true] {
            cluster.reach("one", "three", v6);
        }
        cluster.reach("two", "three", false);
        phases.done("a node leaves and comes back with another address");

        let pingers = cluster.pingers("one", "three", false);
        cluster.restart_under(&pingers, "node1");
        phases.done("restarts");
        let old = cluster.key("node1");
        let file = cluster.lab.dir().join("nodes/node1/state/wireguard.key");
        cluster.under(
            &pingers,
            "another key",
            || std::fs::remove_file(&file).unwrap(),
            || cluster.key("node1") != old,
        );
        cluster.reach("one", "two", false);
        let answered = || pingers.iter().for_each(|pinger: &ContinuousPing| pinger.wait_for_more(10));
        phases.done("another key");
        // Objects that are removed by hand are restored.
        cluster.ip("node3", "rule del priority 99");
        cluster.eventually("the rule is there again", || cluster.has_rule("node3", "-4"));
        cluster.ip("node3", "link del wireguard.cali");
        cluster.eventually("the device is there again", || cluster.sealed("node3") == 2);
        answered();
        phases.done("repairs");

        // A node without WireGuard receives unencrypted packets.
        cluster.felix("node.node2", "{wireguardEnabled: false, wireguardEnabledV6: false}");
        cluster.eventually("node2 has no tunnel, and no other sends it what is encrypted", || {
            !cluster.has_link("node2", "wireguard.cali") && cluster.sealed("node1") == 1
        });
        cluster.reach("one", "two", false);
        capture.packets();
        assert!(cluster.pings("one", cluster.address("two", false)));
        let (open, _) = cluster.seen(&capture);
        let two: IpAddr = cluster.address("two", false).parse().unwrap();
        assert!(open.iter().any(|packet| packet.destination == two), "{open:?}");
        let others = |packet: &CapturedPacket| packet.source != two && packet.destination != two;
        assert!(!open.iter().any(others), "{open:?}");
        cluster.lab.run(&["ctl", "delete", "felixconfiguration", "node.node2"]);
        phases.done("a node without it");

        // Encrypt traffic between hosts.
        let hosts =
            "{wireguardEnabled: true, wireguardEnabledV6: true, wireguardHostEncryptionEnabled: true}";
        cluster.felix("default", hosts);
        cluster.eventually("nodes encrypt for each other", || {
            cluster.ip("node1", &format!("route get {}", cluster.node3)).contains("dev wireguard.cali")
                && cluster.ip("node3", "route get 10.10.1.1").contains("dev wireguard.cali")
        });
        cluster.eventually("they reach each other", || cluster.pings("node1", cluster.node3));
        capture.packets();
        assert!(cluster.pings("node1", cluster.node3));
        let nodes: [IpAddr; 2] = ["10.10.1.1".parse().unwrap(), cluster.node3.parse().unwrap()];
        let open = capture.packets();
        let open = open.iter().filter(|packet| packet.wrap != PacketEncapsulation::Wireguard);
        let open: Vec<&CapturedPacket> = open
            .filter(|packet| nodes.contains(&packet.source) && nodes.contains(&packet.destination))
            .collect();
        assert!(open.is_empty(), "{open:?}");
        cluster.reach("one", "three", true);
        drop(pingers);
        phases.done("what nodes send each other");

        cluster.felix("default", "{}");
        for node in NODE_NAMES {
            cluster.eventually(&format!("nothing is left on {node}"), || {
                !cluster.has_link(node, "wireguard.cali")
                    && !cluster.has_link(node, "wg-v6.cali")
                    && !cluster.has_rule(node, "-4")
                    && !cluster.has_rule(node, "-6")
                    && !cluster.ip(node, "route show table all").contains(" table 1 ")
                    && cluster.key(node).is_empty()
            });
        }
        cluster.reach("one", "two", false);
        cluster.lab.addresses_are_accounted_for();
        phases.done("turned off");
    }
);
