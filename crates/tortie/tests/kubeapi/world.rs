//! Test fixture: a network namespace with a kube-apiserver and a node in it, and namespaces for pods.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use tortie_testkit::{
    ApiServer, CalicoGroup, PluginCall, TestInstallation, TestNamespace, eventually_showing, run,
};

pub const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
pub const NODE_NAME: &str = "n1";

pub struct KubernetesNodeFixture {
    // Fields are dropped in this order.
    installation: TestInstallation,
    pub server: ApiServer,
    pub host: TestNamespace,
    group: CalicoGroup,
    /// CIDR and block size of the default IPv4 pool.
    pool: [&'static str; 2],
    /// `feature_control` of the CNI network configuration.
    pub feature_control: Value,
    /// Additional environment variables of the node.
    pub variables: Vec<(&'static str, &'static str)>,
}

/// A pod with its network namespace.
pub struct AttachedPod {
    pub namespace: String,
    pub name: String,
    pub netns: TestNamespace,
    pub addresses: Vec<String>,
}

impl KubernetesNodeFixture {
    /// Starts a node that is registered in Kubernetes and ready; the namespaces shop and other exist.
    pub fn new(group: CalicoGroup) -> KubernetesNodeFixture {
        let mut world = KubernetesNodeFixture::without_node(group);
        let kubeconfig = world.server.node_kubeconfig();
        world.start(&kubeconfig);
        world
    }

    pub fn with_pool(
        group: CalicoGroup,
        cidr: &'static str,
        block_size: &'static str,
    ) -> KubernetesNodeFixture {
        let mut world =
            KubernetesNodeFixture { pool: [cidr, block_size], ..KubernetesNodeFixture::without_node(group) };
        let kubeconfig = world.server.node_kubeconfig();
        world.start(&kubeconfig);
        world
    }

    pub fn without_node(group: CalicoGroup) -> KubernetesNodeFixture {
        let host = TestNamespace::new("node");
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
        server.add_node(NODE_NAME);
        KubernetesNodeFixture {
            installation: TestInstallation::new(TORTIE),
            server,
            host,
            group,
            pool: ["10.77.0.0/24", "28"],
            feature_control: json!({}),
            variables: Vec::new(),
        }
    }

    /// Starts the node, replacing a running one, and waits until it is ready.
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

    /// Restarts the node without its attachment records, as if another program had attached all pods.
    pub fn restart_without_journal(&mut self) {
        self.installation.stop_node();
        std::fs::remove_dir_all(self.installation.path("state/attachments")).unwrap();
        let kubeconfig = self.server.node_kubeconfig();
        self.start(&kubeconfig);
    }

    pub fn log(&self) -> String {
        self.installation.log()
    }

    /// Runs one of our programs with the settings of the API server.
    pub fn try_tool(&self, name: &str, args: &[&str], input: &str) -> Output {
        let program = self.installation.path("bin").join(name);
        let mut command = self.host.command(program.to_str().unwrap());
        command.args(args).envs(self.server.environment(self.group));
        tortie_testkit::output(&mut command, input)
    }

    /// Runs one of our programs, which must succeed, and returns its output.
    pub fn tool(&self, name: &str, args: &[&str], input: &str) -> String {
        let output = self.try_tool(name, args, input);
        assert!(output.status.success(), "{name} {args:?}: {output:?}\n{input}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns a pod as stored in the API server.
    pub fn stored(&self, pod: &AttachedPod) -> Value {
        self.server.must("GET", &format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name), None)
    }

    pub fn annotation(&self, pod: &AttachedPod, name: &str) -> String {
        let annotations = self.stored(pod)["metadata"]["annotations"].take();
        annotations[format!("cni.projectcalico.org/{name}")].as_str().unwrap_or("none").to_owned()
    }

    /// Creates a pod on this node, attaches it and reports it as running.
    pub fn add(&self, namespace: &str, name: &str, labels: Value) -> AttachedPod {
        self.server.add_pod(namespace, name, NODE_NAME, labels, json!([]));
        let pod = self.attach(namespace, name, "1");
        self.server.set_pod_addresses(namespace, name, &pod.addresses);
        pod
    }

    /// Attaches a sandbox for a pod.
    pub fn attach(&self, namespace: &str, name: &str, sandbox: &str) -> AttachedPod {
        let netns = TestNamespace::new("pod");
        let mut pod = AttachedPod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            netns,
            addresses: Vec::new(),
        };
        let said = self.plugin("ADD", &pod, sandbox).unwrap_or_else(|said| panic!("{said}\n{}", self.log()));
        let ips = said["ips"].as_array().cloned().unwrap_or_default();
        let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        pod.addresses = ips.iter().map(address).collect();
        assert_eq!(pod.addresses.len(), 2, "{said}");
        pod
    }

    pub fn detach(&self, pod: &AttachedPod, sandbox: &str) {
        self.plugin("DEL", pod, sandbox).unwrap_or_else(|said| panic!("{said}\n{}", self.log()));
    }

    /// Runs the CNI plugin as the container runtime does and returns its result.
    pub fn plugin(&self, command: &str, pod: &AttachedPod, sandbox: &str) -> Result<Value, String> {
        let config = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes",
            "nodename": NODE_NAME, "ipam": {"type": "calico-ipam", "assign_ipv6": "true"},
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

    /// Applies a Kubernetes NetworkPolicy in the namespace shop.
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
    pub fn wait_for(&self, from: &AttachedPod, to: &AttachedPod, reaches: bool) {
        let what =
            format!("{} {} {}", from.name, if reaches { "reaches" } else { "does not reach" }, to.name);
        for address in &to.addresses {
            self.wait(&format!("{what} at {address}"), || from.pings(address) == reaches);
        }
    }

    /// Asserts that no pod has left anything on the host and no address is assigned.
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

impl AttachedPod {
    pub fn pings(&self, address: &str) -> bool {
        self.netns.reaches(address)
    }
}
