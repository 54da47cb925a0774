//! The world of a test: a network namespace with an API server and a node in it, and namespaces for pods.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use tortie_testkit::{ApiServer, CalicoGroup, Installation, Namespace, PluginCall, eventually_showing, run};

pub const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
pub const NODE: &str = "n1";

pub struct World {
    // In the order in which they go.
    installation: Installation,
    pub server: ApiServer,
    pub host: Namespace,
    group: CalicoGroup,
    /// The first pool, and the length of its blocks.
    pool: [&'static str; 2],
    /// Of the network's configuration.
    pub feature_control: Value,
    /// What else the node is told when it starts.
    pub variables: Vec<(&'static str, &'static str)>,
}

/// A pod with its network.
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub netns: Namespace,
    pub addresses: Vec<String>,
}

impl World {
    /// A node that Kubernetes knows and that is ready, and the namespaces shop and other.
    pub fn new(group: CalicoGroup) -> World {
        let mut world = World::without_node(group);
        let kubeconfig = world.server.node_kubeconfig();
        world.start(&kubeconfig);
        world
    }

    pub fn with_pool(group: CalicoGroup, cidr: &'static str, block_size: &'static str) -> World {
        let mut world = World { pool: [cidr, block_size], ..World::without_node(group) };
        let kubeconfig = world.server.node_kubeconfig();
        world.start(&kubeconfig);
        world
    }

    pub fn without_node(group: CalicoGroup) -> World {
        let host = Namespace::new("node");
        host.ip("link add eth0 type veth peer name wire0");
        host.ip("addr add 172.30.0.1/24 dev eth0");
        for link in ["eth0", "wire0"] {
            host.ip(&["link", "set", link, "up"]);
        }
        host.ip("route add default via 172.30.0.254");
        let server = ApiServer::start_in(host.name(), "127.0.0.1");
        server.install(group);
        server.add_namespace("shop", json!({"team": "a"}));
        server.add_namespace("other", json!({}));
        server.add_node(NODE);
        World {
            installation: Installation::new(TORTIE),
            server,
            host,
            group,
            pool: ["10.77.0.0/24", "28"],
            feature_control: json!({}),
            variables: Vec::new(),
        }
    }

    /// Starts the node, instead of one that runs, and waits until it is ready.
    pub fn start(&mut self, kubeconfig: &Path) {
        let mut runner = Command::new("ip");
        runner.args(["netns", "exec", self.host.name()]);
        let mut command = self.installation.node_command(runner);
        command
            .envs(self.server.environment(self.group))
            .env("KUBECONFIG", kubeconfig)
            .env("CALICO_IPV4POOL_CIDR", self.pool[0])
            .env("CALICO_IPV4POOL_BLOCK_SIZE", self.pool[1])
            .env("CALICO_IPV6POOL_CIDR", "fd77::/116")
            .envs(self.variables.iter().copied());
        self.installation.start_node(command);
    }

    /// As if another program had attached all pods.
    pub fn restart_without_journal(&mut self) {
        self.installation.stop_node();
        std::fs::remove_dir_all(self.installation.path("state/attachments")).unwrap();
        let kubeconfig = self.server.node_kubeconfig();
        self.start(&kubeconfig);
    }

    pub fn log(&self) -> String {
        self.installation.log()
    }

    /// A program of ours that knows where the API server is.
    pub fn try_tool(&self, name: &str, args: &[&str], input: &str) -> Output {
        let program = self.installation.path("bin").join(name);
        let mut command = self.host.command(program.to_str().unwrap());
        command.args(args).envs(self.server.environment(self.group));
        tortie_testkit::output(&mut command, input)
    }

    /// What a program of ours prints that must succeed.
    pub fn tool(&self, name: &str, args: &[&str], input: &str) -> String {
        let output = self.try_tool(name, args, input);
        assert!(output.status.success(), "{name} {args:?}: {output:?}\n{input}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What the API server has of a pod.
    pub fn stored(&self, pod: &Pod) -> Value {
        self.server.must("GET", &format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name), None)
    }

    pub fn annotation(&self, pod: &Pod, name: &str) -> String {
        let annotations = self.stored(pod)["metadata"]["annotations"].take();
        annotations[format!("cni.projectcalico.org/{name}")].as_str().unwrap_or("none").to_owned()
    }

    /// A pod that was scheduled here, attached, and reported as running.
    pub fn add(&self, namespace: &str, name: &str, labels: Value) -> Pod {
        self.server.add_pod(namespace, name, NODE, labels, json!([]));
        let pod = self.attach(namespace, name, "1");
        self.server.set_pod_addresses(namespace, name, &pod.addresses);
        pod
    }

    /// A sandbox for a pod.
    pub fn attach(&self, namespace: &str, name: &str, sandbox: &str) -> Pod {
        let netns = Namespace::new("pod");
        let mut pod =
            Pod { namespace: namespace.to_owned(), name: name.to_owned(), netns, addresses: Vec::new() };
        let said = self.plugin("ADD", &pod, sandbox).unwrap_or_else(|said| panic!("{said}\n{}", self.log()));
        let ips = said["ips"].as_array().cloned().unwrap_or_default();
        let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        pod.addresses = ips.iter().map(address).collect();
        assert_eq!(pod.addresses.len(), 2, "{said}");
        pod
    }

    pub fn detach(&self, pod: &Pod, sandbox: &str) {
        self.plugin("DEL", pod, sandbox).unwrap_or_else(|said| panic!("{said}\n{}", self.log()));
    }

    /// What the plugin says, as kubelet's runtime would call it.
    pub fn plugin(&self, command: &str, pod: &Pod, sandbox: &str) -> Result<Value, String> {
        let config = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes",
            "nodename": NODE, "ipam": {"type": "calico-ipam", "assign_ipv6": "true"},
            "feature_control": self.feature_control, "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": self.server.kubeconfig()},
        });
        let call = PluginCall {
            plugin: "calico",
            command,
            container: &format!("{}-{}-{sandbox}", pod.namespace, pod.name),
            netns: &pod.netns.path(),
            ifname: "eth0",
            config: &config.to_string(),
            args: &format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.namespace, pod.name),
        };
        let output = self.installation.begin(&call).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(serde_json::from_str(&said).unwrap_or_default()),
            false => Err(said),
        }
    }

    /// Applies a NetworkPolicy of Kubernetes in the namespace shop.
    pub fn apply_policy(&self, name: &str, spec: Value) {
        let path = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name}, "spec": spec});
        let there = format!("{path}/{name}");
        match self.server.send("GET", &there, None) {
            Ok(_) => self.server.must("PUT", &there, Some(&object)),
            Err(_) => self.server.create(path, &object),
        };
    }

    pub fn wait(&self, what: &str, so: impl FnMut() -> bool) {
        eventually_showing(what, so, || {
            let table = self.host.try_exec("nft list table inet tortie").stdout;
            format!("{}\n{}", String::from_utf8_lossy(&table), self.log())
        });
    }

    /// Waits until a pod reaches another at every address, or at none.
    pub fn wait_for(&self, from: &Pod, to: &Pod, reaches: bool) {
        let what =
            format!("{} {} {}", from.name, if reaches { "reaches" } else { "does not reach" }, to.name);
        for address in &to.addresses {
            self.wait(&format!("{what} at {address}"), || from.pings(address) == reaches);
        }
    }

    /// Nothing of any pod is left on the host, and no address is taken.
    pub fn assert_clean(&self) {
        for family in ["-4", "-6"] {
            let routes = run(Command::new("ip").args(["-n", self.host.name(), family, "route"]));
            assert!(!routes.contains(" dev cali"), "{routes}");
        }
        let check = self.tool("calicoctl", &["ipam", "check"], "");
        assert!(check.contains("found 0 problems"), "{check}");
        let handles =
            self.server.must("GET", &format!("/apis/{}/ipamhandles", self.group.api_version()), None);
        assert_eq!(handles["items"], json!([]), "{handles}");
    }
}

impl Pod {
    pub fn pings(&self, address: &str) -> bool {
        self.netns.reaches(address)
    }
}
