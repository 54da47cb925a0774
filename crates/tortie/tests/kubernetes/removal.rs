//! Installing and removing Tortie in a cluster: a rolling restart loses no packet, and one `kubectl delete` leaves
//! the hosts as they were.

use crate::cluster::KubernetesLab;
use crate::policies::PolicyPods;
use crate::traffic::DatagramStream;
use std::collections::BTreeSet;
use std::path::Path;
use tortie_testkit::eventually_showing;

const DAEMON_SET: &str = "daemonset/tortie-node";

fn manifests() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").display().to_string()
}

/// Replaces the pods of the DaemonSet one by one while datagrams pass between nodes.
pub fn a_rolling_restart_disturbs_nobody(cluster: &KubernetesLab, shop: &PolicyPods) {
    let uids = || cluster.daemons().into_iter().map(|pod| pod.uid).collect::<BTreeSet<_>>();
    let before = uids();
    assert_eq!(before.len(), 3, "{before:?}");
    let ends = [("near", 0), ("client", 0), ("foreign", 1)];
    let start = |(from, family)| DatagramStream::start(shop.netns(from), shop.address("web", family), 5353);
    let streams: Vec<DatagramStream> = ends.into_iter().map(start).collect();
    cluster.must_kubectl(&["rollout", "restart", "-n", "kube-system", DAEMON_SET]);
    cluster.must_kubectl(&["rollout", "status", "-n", "kube-system", DAEMON_SET, "--timeout=300s"]);
    assert!(uids().is_disjoint(&before), "{:?}", cluster.daemons());
    let carried: Vec<u64> = streams.into_iter().map(DatagramStream::end).collect();
    assert!(carried.iter().all(|count| *count > 100), "{carried:?}");
}

/// Deletes all manifests of `deploy/`; no finalizer blocks it, and no object of Tortie is left on any node.
pub fn kubectl_delete_leaves_the_hosts_clean(cluster: &KubernetesLab) {
    let path = "jsonpath={.items[*].metadata.finalizers}";
    let kept = || cluster.must_kubectl(&["get", "ippools,tiers", "-o", path]);
    eventually_showing("no pool and no tier is kept once there are no pods", || kept().is_empty(), kept);
    cluster.must_kubectl(&["delete", "--filename", &manifests(), "--timeout=300s"]);
    let controllers = || cluster.pods_of("kube-system", "k8s-app=tortie-controllers");
    let gone = || cluster.daemons().is_empty() && controllers().is_empty();
    eventually_showing("our pods are gone", gone, || cluster.picture());
    for node in ["node1", "node2", "node3"] {
        let left = || left_on(cluster, node);
        eventually_showing(
            &format!("{node} is clean"),
            || left().is_empty(),
            || format!("{:?}\n{}", left(), cluster.picture()),
        );
    }
}

fn left_on(cluster: &KubernetesLab, node: &str) -> Vec<String> {
    let lines = |command: &[&str]| -> Vec<String> {
        cluster.on(node, command).lines().map(|line| line.trim().to_owned()).collect()
    };
    let files = [
        "find /opt/cni/bin /etc/cni/net.d /var/lib/tortie /var/lib/calico /run/tortie /run/calico -type f",
        "-o -type s",
    ];
    let files = lines(&["sh", "-c", &format!("{} 2>/dev/null", files.join(" "))]);
    let ours = |file: &String| {
        let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
        !file.starts_with("/opt/cni/bin") || name.starts_with("calico")
    };
    let tables = lines(&["nft", "list", "tables"]).into_iter().filter(|table| table.contains("tortie"));
    let links = lines(&["ip", "-br", "link"]);
    let links =
        links.into_iter().filter(|link| ["cali", "vxlan", "tunl"].iter().any(|name| link.starts_with(name)));
    let routes = [["-4"], ["-6"]].map(|family| lines(&[&["ip"][..], &family, &["route"]].concat())).concat();
    // Routes that the lab configures, and those that the kernel derives from them.
    let given = |route: &String| {
        [
            "default via 10.10.",
            "default via fd00:10:10:",
            "10.10.1.0/24 dev eth0",
            "fd00:10:10:1::/64",
            "fe80::/64",
        ]
        .iter()
        .any(|start| route.starts_with(start))
    };
    let routes = routes.into_iter().filter(|route| !given(route));
    files.into_iter().filter(ours).chain(tables).chain(links).chain(routes).collect()
}
