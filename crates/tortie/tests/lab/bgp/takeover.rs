//! Taking over a Calico node while its pods exchange traffic with another node: BIRD was its BGP speaker, and Felix's
//! chains enforce its policy.

use super::eventually;
use crate::felix_chains::FelixMode;
use crate::pinger::ContinuousPing;
use crate::traffic::{NumberedStream, STREAM_PORT};
use crate::{TestLab, family};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use tortie_dataplane::Netns;
use tortie_testkit::bind_when_free;

const DENIED_PORT: u16 = 81;
const CLOSED_PORT_POLICY: &str = "{kind: GlobalNetworkPolicy, apiVersion: projectcalico.org/v3, metadata: {name: closed-port}, spec: \
    {selector: all(), types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [81]}}, \
    {action: Deny, protocol: UDP, destination: {ports: [81]}}, {action: Allow}]}}";

/// Blocks BGP connections from and to a node.
const BLOCK_BGP_COMMAND: &str = "nft 'table inet slow { chain input { type filter hook input priority -200; \
    tcp dport 179 drop; tcp sport 179 drop; }; }'";

impl TestLab {
    fn pod_path(&self, pod: &str) -> String {
        format!("/run/netns/tortie-{}-pod-{pod}", self.name)
    }

    fn on_node(&self, node: &str, script: &str) -> String {
        self.run(&["exec", node, "--", "sh", "-c", script])
    }

    /// Waits until the other node has received every route again after the restart.
    fn converged(&self) {
        self.established("node1", 2);
        eventually(self, "no route is stale", || {
            let text = self.run(&["exec", "node1", "--", "tortie", "bgp", "routes", "-o", "json"]);
            let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            let routes = answer["routes"].as_array().unwrap();
            routes.len() == 4 && routes.iter().all(|route| route["stale"] == false)
        });
    }
}

/// A TCP connection that stays open.
struct PodConnection {
    client: TcpStream,
    server: TcpStream,
}

impl PodConnection {
    fn open(lab: &TestLab, address: &str) -> PodConnection {
        let address: IpAddr = address.parse().unwrap();
        let inside = |pod: &str| Netns::open(lab.pod_path(pod)).unwrap();
        let listener = inside("two")
            .run(|| bind_when_free(|| TcpListener::bind((address, STREAM_PORT))))
            .unwrap()
            .unwrap();
        let client = inside("one").run(|| TcpStream::connect((address, STREAM_PORT))).unwrap().unwrap();
        let connection = PodConnection { client, server: listener.accept().unwrap().0 };
        for stream in [&connection.client, &connection.server] {
            stream.set_read_timeout(Some(tortie_testkit::CONDITION_TIMEOUT)).unwrap();
        }
        connection
    }

    /// Asserts that data passes in both directions.
    fn is_alive(&mut self) {
        let mut heard = [0; 4];
        self.client.write_all(b"ping").unwrap();
        self.server.read_exact(&mut heard).unwrap();
        self.server.write_all(&heard).unwrap();
        self.client.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"ping");
    }
}

/// Leaves node 2 as Calico does: BIRD has been killed, and only Felix's chains protect its pod.
fn be_calico(lab: &TestLab, modes: &[FelixMode]) {
    lab.run(&["node", "stop", "node2", "--kill"]);
    let interface = lab.on_node("node2", "ip -o link | grep -o 'cali[0-9a-f]*' | head -n 1");
    for mode in modes {
        lab.on_node("node2", &mode.chains(interface.trim(), DENIED_PORT));
        lab.on_node("node2", &mode.hooks());
    }
    lab.on_node("node2", "nft delete table inet tortie && nft delete table arp tortie");
    lab.kill_bird("node2");
    lab.forget_speaker("node2");
    lab.set_bird(&[]);
}

fn is_free_of_felix(lab: &TestLab) -> bool {
    let found = lab.on_node(
        "node2",
        "nft list tables; iptables-legacy-save; ip6tables-legacy-save; iptables-nft-save; ip6tables-nft-save",
    );
    !found.contains("cali-") && !found.contains("calico")
}

#[test]
fn calico_node_is_taken_over_without_loss() {
    let lab = TestLab::up(&["--nodes", "2", "--bgp", "mesh", "--bird", "node2"]);
    let (one, two) = (lab.add("one", "node1", &[]), lab.add("two", "node2", &[]));
    lab.apply(CLOSED_PORT_POLICY);
    lab.wait_for_routes(&["node1", "node2"]);
    lab.converged();
    for (modes, encapsulated) in [(&FelixMode::ALL[..2], false), (&FelixMode::ALL[2..], true)] {
        if encapsulated {
            // Return to BIRD, and switch the pools to VXLAN.
            lab.run(&["node", "stop", "node2", "--kill"]);
            lab.set_bird(&["node2"]);
            lab.run(&["node", "start", "node2"]);
            lab.converged();
            for pool in ["lab-ipv4-1", "lab-ipv6-2"] {
                lab.run(&["ctl", "patch", "ippool", pool, "-p", r#"{"spec": {"vxlanMode": "Always"}}"#]);
            }
            for node in ["node1", "node2"] {
                let routes = || lab.on_node(node, "ip route; ip -6 route");
                eventually(&lab, "routes lead through the tunnels", || {
                    routes().contains("dev vxlan.calico proto 80")
                        && routes().contains("dev vxlan-v6.calico proto 80")
                });
            }
        }
        for address in &two {
            eventually(&lab, "pods reach each other", || lab.pings("one", address));
        }
        be_calico(&lab, modes);
        let talks = [("one", &two, false), ("one", &two, true), ("two", &one, false), ("two", &one, true)];
        let pingers: Vec<ContinuousPing> = talks
            .iter()
            .map(|(from, to, v6)| ContinuousPing::every("0.01", &lab, from, family(to, *v6)))
            .collect();
        let streams = |port: u16| -> Vec<NumberedStream> {
            let paths = [lab.pod_path("one"), lab.pod_path("two")];
            two.iter().map(|address| NumberedStream::start(&paths[0], &paths[1], address, port)).collect()
        };
        let (allowed, denied) = (streams(STREAM_PORT), streams(DENIED_PORT));
        let mut connections: Vec<PodConnection> =
            two.iter().map(|address| PodConnection::open(&lab, address)).collect();
        let go_on = |answers: usize| pingers.iter().for_each(|pinger| pinger.wait_for_more(answers));
        go_on(20);
        assert!(!is_free_of_felix(&lab));
        // The peer is slow to answer: until then only BIRD's routes exist.
        lab.on_node("node1", BLOCK_BGP_COMMAND);
        lab.run(&["node", "start", "node2"]);
        go_on(50);
        lab.on_node("node1", "nft delete table inet slow");
        lab.converged();
        eventually(&lab, "what Felix left is gone", || is_free_of_felix(&lab));
        go_on(50);

        pingers.iter().for_each(ContinuousPing::none_lost);
        connections.iter_mut().for_each(PodConnection::is_alive);
        for stream in &allowed {
            let sent = stream.position();
            let picture = || format!("{modes:?}: {} of {sent} packets", stream.arrived(0..sent));
            let all = || stream.arrived(0..sent) == sent;
            tortie_testkit::eventually_showing("every UDP packet arrives", all, picture);
        }
        for stream in &denied {
            assert_eq!(stream.arrived(0..u64::MAX), 0, "{modes:?}: denied packets arrived");
        }
    }
}
