//! A real Kubernetes on our network: real kubelets call the real plugin, and kubectl works as users expect.
//!
//! ```text
//!   fabric namespace: bridge rack1, tortie datastore, kube-apiserver, controllers, scheduler
//!        |                                  |                         |
//!   node1: kubelet, containerd,        node2: the same           node3: the same
//!          kube-proxy, and as a pod of the DaemonSet of deploy/: tortie node
//! ```
//!
//! One cluster serves all cases, because it takes a while to start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod api;
mod cluster;
mod controllers;
mod documented;
mod foreign;
mod hubs;
mod node_ports;
mod pods;
mod policies;
mod removal;
mod traffic;

use cluster::KubernetesLab;
use pods::{ListedPod, fetch};
use policies::PolicyPods;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_testkit::{eventually, eventually_showing};
use traffic::TransportPort;

const WEB_DEPLOYMENT: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: demo, labels: {team: cats}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: demo}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: docker.io/library/busybox:latest
        imagePullPolicy: Never
        command: [sh, -c, "mkdir -p /www && hostname >/www/index.html && exec httpd -f -p 8080 -h /www"]
        ports: [{name: http, containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: demo}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
"#;

const ANNOTATED_PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: fixed
  namespace: demo
  labels: {app: fixed}
  annotations:
    cni.projectcalico.org/ipAddrs: '["10.244.77.7", "fd00:10:244::777"]'
    cni.projectcalico.org/hwAddr: "1c:0c:0a:c0:ff:ee"
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: docker.io/library/busybox:latest
    imagePullPolicy: Never
    command: [sh, -c, "mkdir -p /www && hostname >/www/index.html && exec httpd -f -p 8080 -h /www"]
    ports: [{containerPort: 8080, hostPort: 18080}]
---
apiVersion: v1
kind: Pod
metadata:
  name: pooled
  namespace: demo
  annotations: {cni.projectcalico.org/ipv4pools: '["special"]'}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers:
  - {name: wait, image: "docker.io/library/busybox:latest", imagePullPolicy: Never, command: [sleep, "86400"]}
"#;

const SPECIAL_POOL: &str = "
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: special}
spec: {cidr: 10.99.0.0/24, blockSize: 26, nodeSelector: all(), assignmentMode: Automatic}
";

#[test]
fn pods_of_a_real_cluster_use_tortie() {
    let cluster = KubernetesLab::up(&["--nodes", "3", "--bgp", "mesh"]);
    everything_works(&cluster, &["node1", "node2", "node3"]);
    let shop = PolicyPods::open(&cluster);
    policies::every_kind_of_rule(&shop);
    policies::tiers_of_cluster_policies(&shop);
    policies::changes_under_traffic(&shop);
    policies::labels_decide(&shop);
    policies::pods_come_and_go(&shop);
    removal::a_rolling_restart_disturbs_nobody(&cluster, &shop);
    shop.close();
    removal::kubectl_delete_leaves_the_hosts_clean(&cluster);
    cluster.down();
}

#[test]
fn the_same_with_a_datastore_beside_kubernetes() {
    let options = ["--nodes", "2", "--datastore", "etcd", "--proxy", "nftables"];
    let cluster = KubernetesLab::up(&options);
    everything_works(&cluster, &["node1", "node2"]);
    cluster.down();
}

/// Nodes use hubs; one hub is deleted first.
#[test]
fn pods_of_a_cluster_with_the_older_group() {
    let cluster = KubernetesLab::up(&["--nodes", "2", "--api-group", "v1", "--hub", "2"]);
    let pools = cluster.must_kubectl(&["get", "ippools.crd.projectcalico.org", "-o", "name"]);
    assert!(pools.contains("default-ipv4-ippool"), "{pools}");
    hubs::serve_the_nodes(&cluster, &["node1", "node2"]);
    controllers::give_policies_their_names(&cluster);
    everything_works(&cluster, &["node1", "node2"]);
    cluster.down();
}

/// Through our aggregated API server, whose pods store objects in the older group.
#[test]
fn kubectl_manages_policies_through_the_api_server() {
    let cluster = KubernetesLab::up(&["--nodes", "1", "--api", "aggregated"]);
    api::is_served_by_pods(&cluster);
    api::kubectl_manages_policies(&cluster, Some("platform"));
    let tiers = cluster.must_kubectl(&["get", "tiers.crd.projectcalico.org", "-o", "name"]);
    assert!(tiers.contains("/default"), "{tiers}");
    cluster.down();
}

/// With a datastore beside Kubernetes and without kube-proxy.
#[test]
fn kubectl_manages_policies_in_a_datastore_beside_kubernetes() {
    let options = ["--nodes", "1", "--api", "aggregated", "--datastore", "embedded", "--proxy", "none"];
    let cluster = KubernetesLab::up(&options);
    api::is_served_by_pods(&cluster);
    api::kubectl_manages_policies(&cluster, Some("platform"));
    cluster.down();
}

/// As custom resources, with admission policies and webhooks.
#[test]
fn kubectl_manages_policies_as_custom_resources() {
    let cluster = KubernetesLab::up(&["--nodes", "1", "--api", "crds"]);
    api::is_served_by_kubernetes(&cluster);
    api::kubectl_manages_policies(&cluster, None);
    cluster.down();
}

/// As with flannel: another plugin provides addresses and routes. There is no kube-proxy either.
#[test]
fn policy_is_enforced_where_another_plugin_wires_pods() {
    let cluster = KubernetesLab::up(&["--nodes", "2", "--cni", "ptp", "--proxy", "none"]);
    let shop = PolicyPods::open_with(&cluster, "node2");
    policies::every_kind_of_rule(&shop);
    foreign::only_policy_is_ours(&cluster, &shop);
    foreign::a_restart_changes_nothing(&cluster);
    policies::default_deny(&shop);
    shop.close();
    foreign::nothing_is_left(&cluster);
    cluster.down();
}

fn everything_works(cluster: &KubernetesLab, nodes: &[&str]) {
    the_plugins_are_installed(cluster);
    cluster.apply(WEB_DEPLOYMENT);
    let pods = web_pods(cluster);
    addresses_are_ours(cluster, &pods, nodes);
    pods_reach_each_other(cluster, &pods);
    pods_reach_their_own_node(cluster, &pods);
    services_work(cluster, &pods, nodes);
    routes_are_those_of_the_textbook(cluster, &pods, nodes);
    annotations_are_heard(cluster);
    controllers::do_their_work(cluster);
    node_ports::are_judged_by_who_forwards(cluster);
    what_is_deleted_leaves_nothing(cluster, nodes);
}

/// `lab up`, killed at any moment, leaves nothing that `lab down` does not remove.
#[test]
fn a_lab_killed_during_start_is_removed() {
    let cluster = KubernetesLab::half_way();
    cluster.down();
}

/// Waits until all six pods run with an address of each family and returns them.
fn web_pods(cluster: &KubernetesLab) -> Vec<ListedPod> {
    let ready = |pods: &[ListedPod]| pods.len() == 6 && pods.iter().all(ListedPod::is_ready);
    let web = || cluster.pods_of("demo", "app=web");
    eventually_showing("six pods run", || ready(&web()), || cluster.picture());
    web()
}

fn the_plugins_are_installed(cluster: &KubernetesLab) {
    let list = cluster.on("node1", &["cat", "/etc/cni/net.d/10-calico.conflist"]);
    assert!(list.contains("\"nodename\": \"node1\""), "{list}");
    let mode = cluster.on("node1", &["stat", "-c", "%a", "/etc/cni/net.d/calico-kubeconfig"]);
    assert_eq!(mode.trim(), "600");
    eventually("Kubernetes knows that the network is there", || {
        let path = "jsonpath={.status.conditions[?(@.type==\"NetworkUnavailable\")].reason}";
        cluster.kubectl(&["get", "node", "node1", "-o", path]) == "CalicoIsUp"
    });
    // kubelet has registered the node with a taint, which the node must have removed.
    let taints = cluster.must_kubectl(&["get", "node", "node1", "-o", "jsonpath={.spec.taints}"]);
    assert_eq!(taints, "");
}

fn addresses_are_ours(cluster: &KubernetesLab, pods: &[ListedPod], nodes: &[&str]) {
    let used: BTreeSet<&str> = pods.iter().map(|pod| pod.node.as_str()).collect();
    assert_eq!(used, nodes.iter().copied().collect());
    let endpoints = cluster.ctl_json(&["get", "workloadendpoints", "-n", "demo", "-o", "json"]);
    let endpoints = endpoints["items"].as_array().unwrap();
    for pod in pods {
        let endpoint = endpoints.iter().find(|item| item["spec"]["pod"] == pod.name.as_str()).unwrap();
        let networks: BTreeSet<String> =
            pod.addresses.iter().map(|address| ipnet::IpNet::from(*address).to_string()).collect();
        let stored = endpoint["spec"]["ipNetworks"].as_array().unwrap();
        assert_eq!(
            stored.iter().map(|net| net.as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(),
            networks
        );
        assert_eq!(endpoint["metadata"]["labels"]["app"], "web");
        assert_eq!(endpoint["metadata"]["labels"]["projectcalico.org/serviceaccount"], "default");
        assert_eq!(endpoint["spec"]["profiles"], serde_json::json!(["kns.demo", "ksa.demo.default"]));
        assert_eq!(endpoint["spec"]["ports"][0]["name"], "http");
        for (address, pool) in pod.addresses.iter().zip(["10.244.0.0/16", "fd00:10:244::/112"]) {
            let pool: ipnet::IpNet = pool.parse().unwrap();
            assert!(pool.contains(address), "{} has {address}", pod.name);
        }
    }
}

fn pods_reach_each_other(cluster: &KubernetesLab, pods: &[ListedPod]) {
    let (here, there): (Vec<&ListedPod>, Vec<&ListedPod>) = pods.iter().partition(|pod| pod.node == "node1");
    let (from, beside, across) = (here[0], here[1], there[0]);
    for to in [beside, across] {
        for address in &to.addresses {
            eventually_showing(
                &format!("{} ({}) reaches {} ({}) at {address}", from.name, from.node, to.name, to.node),
                || fetch(cluster, from, *address, 8080) == to.name,
                || cluster.picture(),
            );
        }
    }
}

/// As on a single node, where kube-apiserver runs on the node of its clients.
fn pods_reach_their_own_node(cluster: &KubernetesLab, pods: &[ListedPod]) {
    const KUBELET: TransportPort = TransportPort::Tcp(10250);
    let pod = pods.iter().find(|pod| pod.node == "node1").unwrap();
    let node = "10.10.1.1".parse().unwrap();
    eventually_showing(
        "a pod reaches kubelet on its own node",
        || KUBELET.answers(&pod.netns(), node),
        || cluster.picture(),
    );
}

fn services_work(cluster: &KubernetesLab, pods: &[ListedPod], nodes: &[&str]) {
    let listed =
        cluster.kubectl(&["get", "service", "web", "-n", "demo", "-o", "jsonpath={.spec.clusterIPs[*]}"]);
    let addresses: Vec<IpAddr> = listed.split_whitespace().map(|text| text.parse().unwrap()).collect();
    assert_eq!(addresses.len(), 2, "{listed}");
    let names: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    for node in nodes {
        let from = pods.iter().find(|pod| pod.node == *node).unwrap();
        for address in &addresses {
            eventually_showing(
                &format!("a pod on {node} reaches the service at {address}"),
                || names.contains(fetch(cluster, from, *address, 80).as_str()),
                || cluster.picture(),
            );
        }
    }
}

/// Checks that node1 has a route per local pod, one per remote block, and a blackhole route for its own block.
fn routes_are_those_of_the_textbook(cluster: &KubernetesLab, pods: &[ListedPod], nodes: &[&str]) {
    let others: Vec<String> =
        (2..=nodes.len()).map(|number| format!("/26 via 10.10.1.{number} dev eth0")).collect();
    let routes = || cluster.on("node1", &["ip", "-4", "route"]);
    let local = pods.iter().filter(|pod| pod.node == "node1");
    let local: Vec<String> = local.map(|pod| format!("{} dev cali", pod.addresses[0])).collect();
    eventually_showing(
        "node1 has the routes of its pods, of its own block and of the other nodes'",
        || {
            let routes = routes();
            let has = |start: &str, part: &str| {
                routes.lines().any(|line| line.starts_with(start) && line.contains(part))
            };
            local.iter().all(|start| has(start, "scope link"))
                && has("blackhole 10.244.", "/26")
                && others.iter().all(|other| has("10.244.", other))
        },
        routes,
    );
}

fn annotations_are_heard(cluster: &KubernetesLab) {
    cluster.ctl_apply(SPECIAL_POOL);
    cluster.apply(ANNOTATED_PODS);
    let pod = |name: &str| cluster.all_pods().into_iter().find(|pod| pod.name == name);
    eventually_showing(
        "both particular pods run",
        || ["fixed", "pooled"].iter().all(|name| pod(name).is_some_and(|pod| pod.ready)),
        || cluster.picture(),
    );
    let (fixed, pooled) = (pod("fixed").unwrap(), pod("pooled").unwrap());
    let wanted: [IpAddr; 2] = ["10.244.77.7".parse().unwrap(), "fd00:10:244::777".parse().unwrap()];
    assert_eq!(fixed.addresses, wanted);
    let link = cluster.kubectl(&["exec", "-n", "demo", "fixed", "--", "cat", "/sys/class/net/eth0/address"]);
    assert_eq!(link.trim(), "1c:0c:0a:c0:ff:ee");
    assert!(pooled.addresses[0].to_string().starts_with("10.99.0."), "{pooled:?}");
    // Both pods are reachable across nodes, and through the host port that portmap has opened.
    for (address, port) in [(wanted[0], 8080), (wanted[1], 8080), ("10.10.1.1".parse().unwrap(), 18080)] {
        eventually_showing(
            &format!("the other pod reaches {address} port {port}"),
            || fetch(cluster, &pooled, address, port) == "fixed",
            || cluster.picture(),
        );
    }
}

fn what_is_deleted_leaves_nothing(cluster: &KubernetesLab, nodes: &[&str]) {
    cluster.kubectl(&["delete", "namespace", "demo", "--wait=false"]);
    eventually_showing("no pod is left", || cluster.all_pods().is_empty(), || cluster.picture());
    eventually_showing(
        "no endpoint is left",
        || {
            let left = cluster.ctl_json(&["get", "workloadendpoints", "-a", "-o", "json"]);
            left["items"].as_array().is_none_or(Vec::is_empty)
        },
        || cluster.picture(),
    );
    eventually_showing(
        "no address is left, and the records are true",
        || {
            let check = cluster.ctl(&["ipam", "check"]);
            check.contains("found 0 problems") || check.contains("Found 0 problems")
        },
        || cluster.ctl(&["ipam", "check"]),
    );
    for node in nodes {
        let links = cluster.on(node, &["ip", "-br", "link"]);
        assert!(!links.contains("cali"), "{node}:\n{links}");
    }
}
