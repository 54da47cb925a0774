//! Test fixture: a datastore, a node with BGP in a namespace, and workloads. Everything is removed on drop.

use crate::router::{BirdRouter, RouterConfig};
use serde_json::{Value, json};
use std::ops::Deref;
use tortie_testkit::{PluginCall, TestInstallation, TestNamespace, eventually_showing};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

pub struct PeeringFixture {
    // Fields are dropped in this order.
    installation: TestInstallation,
    pub host: TestNamespace,
    pods: Vec<TestNamespace>,
}

impl Deref for PeeringFixture {
    type Target = TestInstallation;

    fn deref(&self) -> &TestInstallation {
        &self.installation
    }
}

impl PeeringFixture {
    /// Starts a node at 10.88.0.1 and fd88::1 with pools 10.77.0.0/24 and fd77::/120.
    pub fn new() -> PeeringFixture {
        let mut world = PeeringFixture::without_node();
        world.start_node();
        world
    }

    /// Creates the node's namespace and a datastore.
    pub fn without_node() -> PeeringFixture {
        let mut installation = TestInstallation::new(TORTIE);
        std::fs::create_dir(installation.path("secrets")).unwrap();
        let host = TestNamespace::new("node");
        // The interface is a bridge, to which the routers are attached. A bridge without a fixed MAC takes another
        // one with each new port, which would invalidate the neighbours' ARP entries.
        host.ip("link add eth0 address 02:88:00:00:00:01 type bridge");
        host.exec("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
        host.ip("addr add 10.88.0.1/24 dev eth0");
        host.ip("addr add fd88::1/64 dev eth0 nodad");
        host.ip("link set eth0 up");
        installation.start_store();
        PeeringFixture { installation, host, pods: Vec::new() }
    }

    pub fn start_node(&mut self) {
        self.start_node_with(&[]);
    }

    /// Starts the node with additional environment variables.
    pub fn start_node_with(&mut self, variables: &[(&str, &str)]) {
        let mut runner = std::process::Command::new("ip");
        runner.args(["netns", "exec", self.host.name()]);
        let mut command = self.node_command(runner);
        command.env("TORTIE_SECRETS_DIR", self.path("secrets")).envs([
            ("IP", "10.88.0.1/24"),
            ("IP6", "fd88::1/64"),
            ("CALICO_IPV4POOL_CIDR", "10.77.0.0/24"),
            ("CALICO_IPV4POOL_BLOCK_SIZE", "30"),
            ("CALICO_IPV4POOL_IPIP", "Never"),
            ("CALICO_IPV6POOL_CIDR", "fd77::/120"),
            ("CALICO_IPV6POOL_BLOCK_SIZE", "126"),
            ("CALICO_NETWORKING_BACKEND", "tortie"),
            ("FELIX_HEALTHENABLED", "true"),
            ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
        ]);
        command.envs(variables.iter().copied());
        self.installation.start_node(command);
    }

    pub fn apply(&self, kind: &str, name: &str, spec: &Value) {
        let object = json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.calicoctl(&["apply", "-f", "-"], &object.to_string());
    }

    /// Configures the node's sessions with a router, one per family.
    pub fn peer(&self, name: &str, router: &BirdRouter, asn: u32, more: &Value) {
        for v6 in [false, true] {
            let mut spec = json!({"node": "n1", "peerIP": router.address(v6), "asNumber": asn});
            for (key, value) in more.as_object().into_iter().flatten() {
                spec[key] = value.clone();
            }
            self.apply("BGPPeer", &format!("{name}-v{}", if v6 { 6 } else { 4 }), &spec);
        }
    }

    pub fn router(&self, config: RouterConfig) -> BirdRouter {
        BirdRouter::start(&self.host, config)
    }

    /// Adds a workload with an address of each family from these pools and returns the addresses.
    pub fn pod(&mut self, name: &str, pools: [&str; 2]) -> Vec<String> {
        let pod = TestNamespace::new("pod");
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "calico",
            "ipam": {"type": "calico-ipam", "assign_ipv6": "true", "ipv4_pools": [pools[0]], "ipv6_pools": [pools[1]]},
        });
        let call = PluginCall {
            plugin: "calico",
            command: "ADD",
            container: name,
            netns: &pod.path(),
            ifname: "eth0",
            config: &config.to_string(),
            args: "",
        };
        let output = self.begin(&call).wait_with_output().unwrap();
        self.pods.push(pod);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success(), "{said}\n{}", self.log());
        let addresses = said["ips"].as_array().unwrap().iter();
        addresses.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
    }

    /// Returns the namespace of a workload, by order of creation.
    pub fn container(&self, number: usize) -> &TestNamespace {
        &self.pods[number]
    }

    /// Returns the node's session with an address.
    pub fn session(&self, address: &str) -> Value {
        let answer = self.ask("bgp peers");
        let mut peers = answer["peers"].as_array().cloned().unwrap_or_default().into_iter();
        peers.find(|peer| peer["address"] == address).unwrap_or_default()
    }

    pub fn wait_until_up(&self, router: &BirdRouter) {
        for v6 in [false, true] {
            let address = router.address(v6);
            let up = || self.session(&address)["state"] == "Established" && router.up_since(v6).is_some();
            eventually_showing(&format!("the session with {address} is up"), up, || self.picture());
        }
    }

    /// Returns the paths that the node has received from a router, with all attributes.
    pub fn learnt(&self, router: &BirdRouter, v6: bool) -> Vec<Value> {
        let name = self.session(&router.address(v6))["name"].clone();
        let answer = self.ask("bgp routes");
        let routes = answer["routes"].as_array().cloned().unwrap_or_default();
        routes.into_iter().filter(|route| route["peer"] == name).collect()
    }

    /// Returns the BGP routes in the node's kernel.
    pub fn kernel(&self, v6: bool) -> String {
        self.host.ip(if v6 { "-6 route show proto bird" } else { "-4 route show proto bird" })
    }

    /// Returns sessions, routes and log, for failure messages.
    pub fn picture(&self) -> String {
        let routes = self.ask("bgp routes");
        format!("{:#}\n{routes:#}\n{}", self.ask("bgp peers"), self.log())
    }
}
