//! Pods attached by another CNI plugin: we enforce policy and change nothing else.

use crate::cluster::KubernetesLab;
use crate::policies::PolicyPods;
use tortie_testkit::eventually_showing;

const DAEMON_SET: &str = "daemonset/tortie-node";

/// Asserts that interfaces and routes are as ptp creates them, without any that Tortie would create.
pub fn only_policy_is_ours(cluster: &KubernetesLab, shop: &PolicyPods) {
    for node in ["node1", "node2"] {
        let links = cluster.on(node, &["ip", "-br", "link"]);
        let names = links.lines().filter_map(|line| line.split(['@', ' ']).next());
        let wired: Vec<&str> = names.filter(|name| name.starts_with("veth")).collect();
        assert!(!wired.is_empty() && !links.contains("cali"), "{node}:\n{links}");
        let table = cluster.on(node, &["nft", "list", "table", "inet", "tortie"]);
        assert!(wired.iter().all(|name| table.contains(name)), "{node}: {wired:?}\n{table}");
    }
    let routes = cluster.on("node1", &["ip", "-4", "route"]);
    for pod in ["web", "near"] {
        let start = format!("{} dev veth", shop.address(pod, 0));
        let own: Vec<&str> = routes.lines().filter(|line| line.starts_with(&start)).collect();
        assert!(matches!(own[..], [line] if line.contains("scope host")), "{pod}:\n{routes}");
    }
    assert!(!routes.contains("blackhole"), "{routes}");
    let pools = cluster.ctl_json(&["get", "ippools", "-o", "json"]);
    assert!(pools["items"].as_array().is_none_or(Vec::is_empty), "{pools}");
}

/// Restarts the daemons; a new daemon must still know the interface of each pod.
pub fn a_restart_changes_nothing(cluster: &KubernetesLab) {
    cluster.must_kubectl(&["rollout", "restart", "-n", "kube-system", DAEMON_SET]);
    cluster.must_kubectl(&["rollout", "status", "-n", "kube-system", DAEMON_SET, "--timeout=300s"]);
}

/// Asserts that the interfaces and our records disappear with the pods.
pub fn nothing_is_left(cluster: &KubernetesLab) {
    for node in ["node1", "node2"] {
        let clean = || {
            let links = cluster.on(node, &["ip", "-br", "link"]);
            let records =
                cluster.on(node, &["find", "/var/lib/tortie", "-path", "*attachments*", "-name", "*.json"]);
            !links.contains("veth") && records.trim().is_empty()
        };
        eventually_showing(&format!("{node} has no trace of the pods"), clean, || cluster.picture());
    }
}
