//! A mesh in which BIRD is the BGP speaker of one node.

use super::eventually;
use crate::pinger::ContinuousPing;
use crate::{TestLab, family};
use std::collections::BTreeMap;

impl TestLab {
    /// Returns when each session entered its current state.
    fn since(&self, node: &str) -> BTreeMap<String, u64> {
        let sessions = self.sessions(node);
        sessions
            .iter()
            .map(|peer| (peer["name"].as_str().unwrap().to_owned(), peer["since"].as_u64().unwrap()))
            .collect()
    }

    pub(super) fn kill_bird(&self, node: &str) {
        let note = std::fs::read_to_string(self.dir().join(format!("nodes/{node}/bird/pid"))).unwrap();
        self.run(&["exec", node, "--", "kill", "-9", note.split_whitespace().next().unwrap()]);
    }

    /// Makes the next start of the node look like its first: as on a Calico host, only the kernel's routes indicate
    /// an earlier speaker.
    pub(super) fn forget_speaker(&self, node: &str) {
        std::fs::remove_file(self.dir().join(format!("nodes/{node}/run/bgp"))).unwrap();
    }

    /// Waits until no stale route is kept for a restarting peer.
    fn advertised_again(&self, nodes: &[&str]) {
        for node in nodes {
            self.established(node, 4);
            eventually(self, &format!("everything was advertised to {node} again"), || {
                let text = self.run(&["exec", node, "--", "tortie", "bgp", "routes", "-o", "json"]);
                let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
                let routes = answer["routes"].as_array().unwrap();
                routes.len() == 6 && routes.iter().all(|route| route["stale"] == false)
            });
        }
    }

    /// Sets the nodes that use BIRD from their next start.
    pub(super) fn set_bird(&self, nodes: &[&str]) {
        let file = self.dir().join("lab.json");
        let mut lab: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        lab["bird"] = serde_json::json!(nodes);
        std::fs::write(&file, lab.to_string()).unwrap();
    }

    fn node_status(&self, node: &str) -> String {
        self.run(&["exec", node, "--", "calicoctl", "node", "status"])
    }
}

#[test]
fn a_mesh_of_ours_and_of_bird() {
    let lab = TestLab::up(&["--nodes", "3", "--bgp", "mesh", "--bird", "node3"]);
    let nodes = ["node1", "node2", "node3"];
    let pods: Vec<(&str, Vec<String>)> = [("one", "node1"), ("two", "node2"), ("three", "node3")]
        .map(|(pod, node)| (pod, lab.add(pod, node, &[])))
        .into();
    lab.wait_for_routes(&nodes);
    nodes.iter().for_each(|node| lab.established(node, 4));
    lab.pods_reach_each_other(&pods);
    for node in nodes {
        for family in ["-4", "-6"] {
            let routes = lab.run(&["exec", node, "--", "ip", family, "route"]);
            assert!(!routes.contains("proto 80"), "BGP alone writes them:\n{routes}");
        }
    }
    let listening = lab.run(&["exec", "node3", "--", "ss", "-Hltnp", "sport", "=", ":179"]);
    assert!(listening.contains("bird") && !listening.contains("tortie"), "{listening}");

    // The table of `calicoctl node status`.
    let table = lab.node_status("node3");
    for peer in ["10.10.1.1", "10.10.1.2", "fd00:10:10:1::1", "fd00:10:10:1::2"] {
        let row: Vec<&str> =
            table.lines().find(|line| line.contains(&format!("| {peer} "))).unwrap().split('|').collect();
        let cells: Vec<&str> = row.iter().map(|cell| cell.trim()).collect();
        assert_eq!(cells[1..4], [peer, "node-to-node mesh", "up"], "{table}");
        assert_eq!(cells[5], "Established", "{table}");
    }
    let paths = lab.run(&["exec", "node3", "--", "tortie", "bgp", "routes"]);
    assert!(paths.contains("Mesh_10_10_1_1") && paths.contains("2147482623"), "{paths}");

    // Add a peer and a filter: BIRD is reconfigured without affecting other sessions.
    let (bird, other) = (lab.since("node3"), lab.since("node1"));
    lab.apply(
        "{kind: BGPFilter, apiVersion: projectcalico.org/v3, metadata: {name: quiet.one}, \
          spec: {exportV4: [{action: Reject}], importV6: [{cidr: 'fd00::/8', matchOperator: In, action: Reject}]}}",
    );
    lab.apply(
        "{kind: BGPPeer, apiVersion: projectcalico.org/v3, metadata: {name: nobody}, \
          spec: {node: node3, peerIP: 10.10.1.99, asNumber: 64999, filters: [quiet.one]}}",
    );
    eventually(&lab, "BIRD knows the new peer", || {
        lab.peers("node3").contains(&"Node_10_10_1_99".to_owned())
    });
    assert!(lab.node_status("node3").contains("| 10.10.1.99 "));
    let mut after = lab.since("node3");
    after.remove("Node_10_10_1_99");
    assert_eq!((after, lab.since("node1")), (bird, other), "sessions of others flapped");

    // A restart of the node's daemon affects neither BIRD nor the packets.
    let pinger = ContinuousPing::start(&lab, "one", family(&pods[2].1, false));
    pinger.wait_for_more(20);
    lab.run(&["node", "stop", "node3", "--kill"]);
    lab.run(&["node", "start", "node3"]);
    lab.established("node3", 4);
    lab.wait_for_routes(&nodes);
    pinger.wait_for_more(20);
    pinger.none_lost();
    drop(pinger);

    // After a restart BIRD would wait for a peer that never connects.
    lab.run(&["ctl", "delete", "bgppeer", "nobody"]);
    eventually(&lab, "BIRD forgets the peer", || lab.peers("node3").len() == 4);
    // The node takes over from BIRD, then BIRD from the node: no route is withdrawn and no packet is lost.
    let pingers: Vec<ContinuousPing> =
        [("one", 2, false), ("one", 2, true), ("three", 1, false), ("three", 1, true)]
            .map(|(from, to, v6)| ContinuousPing::start(&lab, from, family(&pods[to].1, v6)))
            .into();
    for by_bird in [false, true] {
        pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
        lab.run(&["node", "stop", "node3", "--kill"]);
        if !by_bird {
            lab.kill_bird("node3");
            lab.forget_speaker("node3");
        }
        lab.set_bird(if by_bird { &["node3"] } else { &[] });
        lab.run(&["node", "start", "node3"]);
        lab.established("node3", 4);
        lab.advertised_again(&["node1", "node2"]);
        lab.wait_for_routes(&nodes);
        pingers.iter().for_each(|pinger| pinger.wait_for_more(50));
    }
    pingers.iter().for_each(ContinuousPing::none_lost);
    drop(pingers);

    // Without BIRD the node reports it and how to fix it. Its routes stay.
    lab.kill_bird("node3");
    eventually(&lab, "the node notices", || lab.node_status("node3").contains("but no BIRD answers at"));
    lab.ping("one", family(&pods[2].1, true));
    lab.run(&["down"]);
    assert_eq!(lab.traces(), Vec::<String>::new());
}

/// node1 and node2 are route reflectors with BIRD, node3 and node4 their clients with the node's own speaker.
#[test]
fn clients_survive_the_death_of_a_reflector() {
    let lab = TestLab::up(&["--nodes", "4", "--bgp", "reflector", "--bird", "node1", "--bird", "node2"]);
    let second = r#"{"metadata": {"labels": {"route-reflector": "true"}}, "spec": {"bgp": {"routeReflectorClusterID": "244.0.0.1"}}}"#;
    lab.run(&["ctl", "patch", "node", "node2", "-p", second]);
    let pods: Vec<(&str, Vec<String>)> =
        [("three", "node3"), ("four", "node4")].map(|(pod, node)| (pod, lab.add(pod, node, &[]))).into();
    for client in ["node3", "node4"] {
        lab.established(client, 4);
        eventually(&lab, &format!("{client} has the routes of both reflectors"), || {
            let paths = lab.run(&["exec", client, "--", "tortie", "bgp", "routes"]);
            paths.contains("Node_10_10_1_1") && paths.contains("Node_10_10_1_2")
        });
    }
    lab.pods_reach_each_other(&pods);
    let pingers: Vec<ContinuousPing> = [("three", 1, false), ("three", 1, true), ("four", 0, false)]
        .map(|(from, to, v6)| ContinuousPing::start(&lab, from, family(&pods[to].1, v6)))
        .into();
    pingers.iter().for_each(|pinger| pinger.wait_for_more(50));
    lab.kill_bird("node1");
    for client in ["node3", "node4"] {
        lab.established(client, 2);
    }
    pingers.iter().for_each(|pinger| pinger.wait_for_more(300));
    pingers.iter().for_each(ContinuousPing::none_lost);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let lab = TestLab::new();
    assert!(lab.refused(&["up", "--bird", "node1"]).contains("use --bgp too"));
    assert!(lab.refused(&["up", "--bgp", "mesh", "--bird", "node9"]).contains("there is no node node9"));
    assert_eq!(lab.traces(), Vec::<String>::new());
}
