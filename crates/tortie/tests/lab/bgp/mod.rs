//! Nodes exchange their routes over BGP.

mod bird;
mod takeover;

use crate::pinger::ContinuousPing;
use crate::{TestLab, family};

fn eventually(lab: &TestLab, what: &str, so: impl FnMut() -> bool) {
    tortie_testkit::eventually_showing(what, so, || lab.picture());
}

impl TestLab {
    fn routes(&self, node: &str) -> String {
        let list = |family| self.run(&["exec", node, "--", "ip", family, "route", "show", "proto", "bird"]);
        list("-4") + &list("-6")
    }

    /// Waits until every node has a route to every block, with a blackhole for its own.
    fn wait_for_routes(&self, nodes: &[&str]) {
        for node in nodes {
            // One route of each family per node.
            let wanted = 2 * nodes.len();
            eventually(self, &format!("{wanted} routes on {node}"), || {
                self.routes(node).lines().count() == wanted
            });
        }
    }

    fn sessions(&self, node: &str) -> Vec<serde_json::Value> {
        let text = self.run(&["exec", node, "--", "tortie", "bgp", "peers", "-o", "json"]);
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        answer["peers"].as_array().unwrap().clone()
    }

    fn peers(&self, node: &str) -> Vec<String> {
        self.sessions(node).iter().map(|peer| peer["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until this many sessions are established.
    fn established(&self, node: &str, wanted: usize) {
        eventually(self, &format!("{wanted} sessions of {node}"), || {
            let up = |peer: &&serde_json::Value| peer["state"] == "Established";
            self.sessions(node).iter().filter(up).count() == wanted
        });
    }

    fn pods_reach_each_other(&self, pods: &[(&str, Vec<String>)]) {
        for (from, _) in pods {
            for address in pods.iter().filter(|(to, _)| to != from).flat_map(|(_, addresses)| addresses) {
                self.ping(from, address);
            }
        }
    }
}

#[test]
fn a_mesh_carries_the_routes_through_crashes() {
    let lab = TestLab::up(&["--nodes", "3", "--bgp", "mesh"]);
    // `lab up` returns when all sessions are established.
    let status = lab.status();
    for node in status["nodes"].as_array().unwrap() {
        let sessions = node["sessions"].as_array().unwrap();
        assert_eq!(sessions.len(), 4, "{node}");
        assert!(sessions.iter().all(|session| session["state"] == "Established"), "{node}");
    }
    let mut pods: Vec<(&str, Vec<String>)> = [("one", "node1"), ("two", "node2"), ("three", "node3")]
        .map(|(pod, node)| (pod, lab.add(pod, node, &[])))
        .into();
    lab.wait_for_routes(&["node1", "node2", "node3"]);
    lab.pods_reach_each_other(&pods);
    let routes = lab.run(&["exec", "node1", "--", "ip", "route"]);
    assert!(!routes.contains("proto 80"), "BGP alone writes them:\n{routes}");
    assert_eq!(
        routes.lines().filter(|line| line.starts_with("blackhole") && line.contains("proto bird")).count(),
        1
    );

    assert_eq!(lab.run(&["node", "add"]), "node4\n");
    pods.push(("four", lab.add("four", "node4", &[])));
    lab.wait_for_routes(&["node1", "node2", "node3", "node4"]);
    lab.pods_reach_each_other(&pods);

    // A daemon is killed and restarted while packets flow: graceful restart keeps all routes.
    let pingers: Vec<ContinuousPing> = [false, true]
        .iter()
        .flat_map(|v6| [("one", family(&pods[1].1, *v6)), ("two", family(&pods[0].1, *v6))])
        .map(|(from, to)| ContinuousPing::start(&lab, from, to))
        .collect();
    pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
    lab.run(&["node", "stop", "node1", "--kill"]);
    pingers.iter().for_each(|pinger| pinger.wait_for_more(100));
    lab.run(&["node", "start", "node1"]);
    pingers.iter().for_each(|pinger| pinger.wait_for_more(100));
    lab.wait_for_routes(&["node1", "node2", "node3", "node4"]);
    pingers.iter().for_each(ContinuousPing::none_lost);
    drop(pingers);

    // The routes of a node that stays away longer than its restart time are withdrawn.
    lab.apply(
        "{kind: BGPConfiguration, apiVersion: projectcalico.org/v3, metadata: {name: default}, \
               spec: {nodeMeshMaxRestartTime: 3s}}",
    );
    let address = family(&pods[3].1, false);
    let known = || lab.run(&["exec", "node1", "--", "ip", "route", "get", address]).contains("10.10.1.4");
    lab.established("node1", 6);
    assert!(known());
    lab.run(&["node", "stop", "node4", "--kill"]);
    eventually(&lab, "the routes of a node that is gone are withdrawn", || !known());
}

#[test]
fn a_reflector_passes_the_routes_on() {
    let lab = TestLab::up(&["--nodes", "3", "--bgp", "reflector"]);
    let pods: Vec<(&str, Vec<String>)> = [("one", "node1"), ("two", "node2"), ("three", "node3")]
        .map(|(pod, node)| (pod, lab.add(pod, node, &[])))
        .into();
    lab.wait_for_routes(&["node1", "node2", "node3"]);
    lab.pods_reach_each_other(&pods);
    assert_eq!(lab.peers("node2"), ["Node_10_10_1_1", "Node_fd00_10_10_1__1"], "with the reflector alone");
    assert_eq!(lab.peers("node1").len(), 4);
    let said = lab.run(&["bgp"]);
    assert_eq!(said.matches("Established").count(), 8, "{said}");
    // The lab status lists the sessions too.
    let status = lab.status();
    let sessions = status["nodes"][1]["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2, "{status:#}");
    assert!(sessions.iter().all(|session| session["state"] == "Established"), "{sessions:?}");
    let line = "Node_10_10_1_1  10.10.1.1  Established, 2 prefixes in, 1 out";
    assert!(lab.picture().contains(line), "{}", lab.picture());
}

#[test]
fn racks_behind_a_router_that_is_bird() {
    let lab = TestLab::up(&["--nodes", "3", "--topology", "l3", "--bgp", "tor"]);
    let pods: Vec<(&str, Vec<String>)> = [("one", "node1"), ("two", "node2"), ("three", "node3")]
        .map(|(pod, node)| (pod, lab.add(pod, node, &[])))
        .into();
    lab.wait_for_routes(&["node1", "node2", "node3"]);
    lab.pods_reach_each_other(&pods);
    assert_eq!(lab.peers("node3"), ["Node_10_10_2_254", "Node_fd00_10_10_2__fe"]);
}
