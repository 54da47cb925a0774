//! Hubs as `deploy/` installs them, with only the permissions that it grants.

use crate::cluster::KubernetesLab;
use crate::pods::ListedPod;
use tortie_testkit::eventually_showing;

const HUB_PORT: &str = ":5473";

/// Checks that nodes find hubs through their service, and that a deleted hub is replaced and its nodes connect to
/// another.
pub fn serve_the_nodes(cluster: &KubernetesLab, nodes: &[&str]) {
    let hubs = || cluster.pods_of("kube-system", "k8s-app=tortie-hub");
    let are_ready = |hubs: &[ListedPod]| hubs.len() == nodes.len() && hubs.iter().all(|hub| hub.ready);
    eventually_showing("the hubs are ready", || are_ready(&hubs()), || cluster.picture());
    let is_served = |node: &&str| {
        let open = cluster.on(node, &["ss", "-Htn", "state", "established", "dport", "=", HUB_PORT]);
        open.lines().count() > 0
    };
    eventually_showing("every node has a hub", || nodes.iter().all(is_served), || cluster.picture());

    let first = hubs().swap_remove(0);
    cluster.must_kubectl(&["delete", "pod", "-n", "kube-system", &first.name, "--wait=false"]);
    let replaced = || {
        let hubs = hubs();
        are_ready(&hubs) && hubs.iter().all(|hub| hub.uid != first.uid)
    };
    eventually_showing("another takes its place", replaced, || cluster.picture());
    eventually_showing("every node has a hub again", || nodes.iter().all(is_served), || cluster.picture());
    let said = cluster.kubectl(&["logs", "-n", "kube-system", "-l", "k8s-app=tortie-hub", "--tail=-1"]);
    let refused: Vec<&str> = said.lines().filter(|line| line.contains("forbidden")).collect();
    assert_eq!(refused, Vec::<&str>::new(), "they lack rights");
    let certified = "clients are accepted with the certificate of Secret kube-system/tortie-hub";
    assert!(said.contains(certified), "they serve without TLS:\n{said}");
}
