//! Kubernetes with etcd as Calico's documentation describes it: the daemon has no access to Kubernetes, the plugin's network
//! configuration names a kubeconfig, and the controllers of older manifests copy policies, profiles and labels to etcd.

use crate::world::TORTIE;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use tortie_testkit::{
    ApiServer, PluginCall, TestInstallation, TestNamespace, TestProcess, eventually_showing,
};

const NODE_NAME: &str = "n1";
/// A prefix other than Calico's, for the interfaces of the node's own pods.
const INTERFACE_PREFIX: &str = "lan";
const NETWORK: &str = r#"{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [{"type": "calico", "mtu": __CNI_MTU__,
    "ipam": {"type": "calico-ipam"}, "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": "KUBECONFIG_PATH"}}]}"#;

struct TextbookCluster {
    // Fields are dropped in this order.
    controllers: Option<TestProcess>,
    installation: TestInstallation,
    server: ApiServer,
    host: TestNamespace,
}

impl TextbookCluster {
    /// Starts kube-apiserver, a datastore and a node that installs its network configuration.
    fn start() -> TextbookCluster {
        let host = TestNamespace::new("node");
        host.ip("link add eth0 type veth peer name wire0");
        host.ip("addr add 172.30.0.1/24 dev eth0");
        for link in ["eth0", "wire0"] {
            host.ip(&["link", "set", link, "up"]);
        }
        host.ip("route add default via 172.30.0.254");
        let server = ApiServer::start_in(host.name(), "127.0.0.1");
        server.add_namespace("shop", json!({"team": "a"}));
        server.add_node(NODE_NAME);
        let mut installation = TestInstallation::new(TORTIE);
        installation.start_store();
        let mut runner = Command::new("ip");
        runner.args(["netns", "exec", host.name()]);
        let mut command = installation.node_command(runner);
        let network = NETWORK.replace("KUBECONFIG_PATH", server.kubeconfig().to_str().unwrap());
        command
            .arg("--install-cni")
            .env_remove("KUBECONFIG")
            .env("CNI_NET_DIR", installation.path("net.d"))
            .env("CNI_BIN_DIR", installation.path("cni-bin"))
            .env("CNI_NETWORK_CONFIG", network)
            .env("CNI_MTU", "1440")
            .env("CALICO_K8S_NODE_REF", NODE_NAME)
            .env("CALICO_IPV4POOL_CIDR", "10.77.0.0/24")
            .env("CALICO_IPV4POOL_BLOCK_SIZE", "28")
            .env("FELIX_INTERFACEPREFIX", INTERFACE_PREFIX);
        installation.start_node(command);
        TextbookCluster { controllers: None, installation, server, host }
    }

    /// Starts the controllers, replacing those that run.
    fn start_controllers(&mut self, enabled: Option<&str>) {
        self.controllers = None;
        let log = std::fs::File::options().create(true).append(true).open(self.controllers_log()).unwrap();
        let mut command = self.host.command(TORTIE);
        command
            .args(["controllers", "--identity", "a", "--status-file"])
            .arg(self.installation.path("controllers-status"))
            .env("DATASTORE_TYPE", "etcdv3")
            .env("ETCD_ENDPOINTS", self.installation.socket())
            .env("KUBECONFIG", self.server.kubeconfig())
            .envs(enabled.map(|names| ("ENABLED_CONTROLLERS", names)))
            .stderr(log);
        let (process, line) = TestProcess::until_first_line(&mut command);
        assert!(line.starts_with("ready: "), "{line:?}\n{}", self.picture());
        self.controllers = Some(process);
    }

    fn controllers_log(&self) -> PathBuf {
        self.installation.path("controllers.log")
    }

    fn picture(&self) -> String {
        let table = self.host.try_exec("nft list table inet tortie").stdout;
        let log = std::fs::read_to_string(self.controllers_log()).unwrap_or_default();
        format!("{}\n{}\n{log}", String::from_utf8_lossy(&table), self.installation.log())
    }

    fn wait(&self, what: &str, so: impl FnMut() -> bool) {
        eventually_showing(what, so, || self.picture());
    }

    /// Returns the configuration that the node has installed, as a runtime passes it to the plugin.
    fn network(&self) -> Value {
        let text = std::fs::read(self.installation.path("net.d/10-calico.conflist")).unwrap();
        let list: Value = serde_json::from_slice(&text).unwrap();
        let mut network = list["plugins"][0].clone();
        network["name"] = list["name"].clone();
        network["cniVersion"] = list["cniVersion"].clone();
        network
    }

    /// Creates a pod and calls the plugin for it. Returns its namespace and address.
    fn add_pod(&self, name: &str) -> (TestNamespace, String) {
        self.server.add_pod("shop", name, NODE_NAME, json!({"app": name}), json!([]));
        let netns = TestNamespace::new("pod");
        let config = self.network().to_string();
        let call = PluginCall {
            plugin: "calico",
            command: "ADD",
            container: &format!("shop-{name}"),
            netns: &netns.path(),
            ifname: "eth0",
            config: &config,
            args: &format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}"),
        };
        let output = self.installation.begin(&call).wait_with_output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert!(output.status.success(), "{said}\n{}", self.picture());
        let address = said["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        (netns, address)
    }

    fn endpoints(&self) -> Vec<Value> {
        let text = self.installation.calicoctl(&["get", "workloadendpoints", "-n", "shop", "-o", "json"], "");
        let mut list: Value = serde_json::from_str(&text).unwrap();
        serde_json::from_value(list["items"].take()).unwrap_or_default()
    }
}

#[test]
fn etcd_with_kubernetes_works_as_documented() {
    let mut world = TextbookCluster::start();
    world.start_controllers(Some("policy,profile,workloadendpoint"));
    let (_web, web) = world.add_pod("web");
    let (client, _) = world.add_pod("client");

    // The labels of a pod are known only from Kubernetes.
    let endpoints = world.endpoints();
    assert_eq!(endpoints.len(), 2, "{endpoints:?}");
    for endpoint in &endpoints {
        assert_eq!(endpoint["metadata"]["labels"]["app"], endpoint["spec"]["pod"], "{endpoint}");
        assert_eq!(endpoint["spec"]["profiles"][0], "kns.shop", "{endpoint}");
        let interface = endpoint["spec"]["interfaceName"].as_str().unwrap();
        assert!(interface.starts_with(INTERFACE_PREFIX), "{endpoint}");
        assert!(world.host.ip(&format!("link show {interface}")).contains("mtu 1440"), "{interface}");
    }
    assert!(client.ip("link show eth0").contains("mtu 1440"));
    world.wait("the pods reach each other", || client.reaches(&web));

    let path = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    let friends = json!([{"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}]}]);
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "friends"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": friends}});
    world.server.create(path, &policy);
    world.wait("the policy is in force", || !client.reaches(&web));
    let label = json!({"metadata": {"labels": {"role": "friend"}}});
    world.server.merge("/api/v1/namespaces/shop/pods/client", &label);
    world.wait("the new label is in force", || client.reaches(&web));
    world.server.merge("/api/v1/namespaces/shop", &json!({"metadata": {"labels": {"team": "b"}}}));
    let profile = || world.installation.calicoctl(&["get", "profile", "kns.shop", "-o", "yaml"], "");
    world.wait("the profile follows its namespace", || profile().contains("pcns.team: b"));

    // A node that leaves the cluster leaves nothing in etcd.
    world.installation.stop_node();
    world.start_controllers(None);
    let sooner = r#"{"spec": {"controllers": {"node": {"leakGracePeriod": "1s"}}}}"#;
    world
        .installation
        .calicoctl(&["patch", "kubecontrollersconfiguration", "default", "--patch", sooner], "");
    for object in ["namespaces/shop/pods/web", "namespaces/shop/pods/client", "nodes/n1"] {
        world.server.must("DELETE", &format!("/api/v1/{object}?gracePeriodSeconds=0"), None);
    }
    let nodes = || world.installation.calicoctl(&["get", "nodes", "-o", "json"], "");
    world.wait("the node is gone", || !nodes().contains(NODE_NAME));
    world.wait("its endpoints are gone", || world.endpoints().is_empty());
    let keys = || world.installation.etcdctl(&["get", "--prefix", "--keys-only", "/calico/ipam/v2/"]);
    world.wait("its addresses are free", || !keys().contains("/block/") && !keys().contains("/handle/"));
}
