//! A host outside Kubernetes that shares the datastore of a cluster: policy between it and pods, in both directions.

use crate::cluster::KubernetesLab;
use crate::policies::PolicyPods;
use serde_json::json;
use std::process::Command;
use tortie_testkit::{TestInstallation, TestNamespace, eventually_showing};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const HOST_NAME: &str = "bare";
/// An address in the subnet of the cluster's nodes, and their gateway, which serves etcd.
const HOST_ADDRESS: &str = "10.10.1.200";
const GATEWAY_ADDRESS: &str = "10.10.1.254";
const STORE_PORT: u16 = 12379;
/// Bridge of the cluster's nodes.
const BRIDGE: &str = "rack1";

struct BareHost {
    // Fields are dropped in this order.
    installation: TestInstallation,
    netns: TestNamespace,
}

impl BareHost {
    /// Connects a host to the subnet of the nodes and starts the daemon on it, without any access to Kubernetes.
    fn start(cluster: &KubernetesLab) -> BareHost {
        let netns = TestNamespace::new(HOST_NAME);
        let fabric = cluster.fabric();
        let fabric_ip = |words: &str| {
            let words = words.split(' ');
            let output = Command::new("ip").args(["-n", &fabric]).args(words).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        fabric_ip(&format!("link add bare0 type veth peer name eth0 netns {}", netns.name()));
        fabric_ip(&format!("link set bare0 master {BRIDGE} up"));
        netns.ip(&format!("addr add {HOST_ADDRESS}/24 dev eth0"));
        netns.ip("link set eth0 up");
        netns.ip(&format!("route add default via {GATEWAY_ADDRESS}"));
        let mut installation = TestInstallation::new(TORTIE);
        let mut runner = Command::new("ip");
        runner.args(["netns", "exec", netns.name()]);
        let mut command = installation.node_command(runner);
        command.envs([
            ("NODENAME", HOST_NAME),
            ("DATASTORE_TYPE", "etcdv3"),
            ("ETCD_ENDPOINTS", &format!("http://{GATEWAY_ADDRESS}:{STORE_PORT}")),
            ("IP", &format!("{HOST_ADDRESS}/24")),
            ("CALICO_NETWORKING_BACKEND", "vxlan"),
            ("FELIX_PROGRAMCLUSTERROUTES", "Enabled"),
        ]);
        installation.start_node(command);
        BareHost { installation, netns }
    }

    fn wait(&self, cluster: &KubernetesLab, what: &str, so: impl FnMut() -> bool) {
        let table = || self.netns.try_exec("nft list table inet tortie").stdout;
        eventually_showing(what, so, || {
            format!(
                "{}\n{}\n{}",
                String::from_utf8_lossy(&table()),
                self.installation.log(),
                cluster.picture()
            )
        });
    }
}

fn apply(cluster: &KubernetesLab, kind: &str, metadata: serde_json::Value, spec: serde_json::Value) {
    let object =
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec});
    cluster.ctl_apply(&object.to_string());
}

fn label_host(cluster: &KubernetesLab, role: &str) {
    let metadata = json!({"name": "bare-eth0", "labels": {"role": role}});
    let spec = json!({"node": HOST_NAME, "interfaceName": "eth0", "expectedIPs": [HOST_ADDRESS],
        "profiles": ["projectcalico-default-allow"]});
    apply(cluster, "HostEndpoint", metadata, spec);
}

/// Policies select the host and pods by their labels.
pub fn share_policy_with_pods(cluster: &KubernetesLab, shop: &PolicyPods) {
    let host = BareHost::start(cluster);
    let [web, client] = ["web", "client"].map(|pod| shop.address(pod, 0).to_string());
    let reaches_web = || host.netns.reaches(&web);
    host.wait(cluster, "the host reaches a pod", reaches_web);

    // The pod accepts only the database, which is a host.
    label_host(cluster, "database");
    let from_database = json!([{"action": "Allow", "source": {"selector": "role == 'database'", "namespaceSelector": "global()"}}]);
    let spec = json!({"selector": "role == 'web'", "types": ["Ingress"], "ingress": from_database});
    apply(cluster, "NetworkPolicy", json!({"name": "database", "namespace": "shop"}), spec);
    let pod_reaches =
        |address: &str| cluster.try_in_pod("shop", "client", &["ping", "-c", "1", "-W", "2", address]);
    host.wait(cluster, "the pod is closed for other pods", || !pod_reaches(&web));
    host.wait(cluster, "the pod is open for the host", reaches_web);
    label_host(cluster, "backup");
    host.wait(cluster, "the pod is closed for a host with another label", || !host.netns.reaches(&web));

    // The host accepts one of the nodes only.
    let node_reaches = |node: &str| cluster.try_on(node, &["ping", "-c", "1", "-W", "2", HOST_ADDRESS]);
    host.wait(cluster, "both nodes reach the host", || node_reaches("node1") && node_reaches("node2"));
    let node_address = |node: &str| {
        let node = cluster.ctl_json(&["get", "node", node, "-o", "json"]);
        node["spec"]["bgp"]["ipv4Address"].as_str().unwrap().split('/').next().unwrap().to_owned()
    };
    let from_node =
        json!([{"action": "Allow", "source": {"nets": [format!("{}/32", node_address("node1"))]}}]);
    let spec = json!({"selector": "role == 'backup'", "types": ["Ingress"], "ingress": from_node});
    apply(cluster, "GlobalNetworkPolicy", json!({"name": "backup"}), spec);
    host.wait(cluster, "the host is closed for other nodes", || !node_reaches("node2"));
    host.wait(cluster, "the host is open for one node", || node_reaches("node1"));
    // Routes lead from the host to the blocks of the nodes.
    assert!(host.netns.ip(&format!("route get {client}")).contains("via 10.10.1."));

    // The controllers leave the host alone: Kubernetes has no node of this name.
    let nodes = cluster.ctl_json(&["get", "nodes", "-o", "json"]);
    let names: Vec<&str> = nodes["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, [HOST_NAME, "node1", "node2"]);
    for arguments in [
        &["delete", "networkpolicy", "database", "-n", "shop"][..],
        &["delete", "globalnetworkpolicy", "backup"],
        &["delete", "hostendpoint", "bare-eth0"],
    ] {
        cluster.ctl(arguments);
    }
    drop(host);
    cluster.ctl(&["delete", "node", HOST_NAME]);
}
