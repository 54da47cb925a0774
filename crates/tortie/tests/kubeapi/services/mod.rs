//! Service addresses in BGP: the routes that an external router receives from a node with our BGP speaker and from
//! one with BIRD.

mod subnet;

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tortie_testkit::{
    ApiServer, CalicoGroup, PluginCall, TestInstallation, TestNamespace, TestProcess, eventually_showing,
};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const ENDPOINT_SLICES_PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const SERVICES_PATH: &str = "/api/v1/namespaces/shop/services";
/// A network behind the router.
const CLIENT_NETWORK: &str = "192.168.99.0/24";

/// A kube-apiserver, two nodes and a router on one network.
struct ServiceCluster {
    // Fields are dropped in this order.
    nodes: Vec<TestInstallation>,
    daemons: Vec<TestProcess>,
    server: ApiServer,
    namespaces: Vec<TestNamespace>,
    fabric: TestNamespace,
    dir: TempDir,
}

impl ServiceCluster {
    /// Starts a cluster in which n1 uses our BGP speaker and n2 uses BIRD; the router at 172.31.0.100 is in another
    /// AS.
    fn new() -> ServiceCluster {
        let fabric = TestNamespace::new("fabric");
        fabric.ip("link add br0 type bridge");
        fabric.ip("addr add 172.31.0.254/24 dev br0");
        fabric.ip("link set br0 up");
        let server = ApiServer::start_in(fabric.name(), "172.31.0.254");
        server.install(CalicoGroup::V3);
        server.add_namespace("shop", json!({}));
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = ServiceCluster {
            nodes: Vec::new(),
            daemons: Vec::new(),
            server,
            namespaces: Vec::new(),
            fabric,
            dir,
        };
        let configuration = json!({"apiVersion": "projectcalico.org/v3", "kind": "BGPConfiguration",
            "metadata": {"name": "default"}, "spec": {
                "serviceClusterIPs": [{"cidr": "10.96.0.0/16"}], "serviceExternalIPs": [{"cidr": "192.0.2.0/24"}],
                "serviceLoadBalancerIPs": [{"cidr": "198.51.100.0/24"}, {"cidr": "203.0.113.7/32"}]}});
        let peer = json!({"apiVersion": "projectcalico.org/v3", "kind": "BGPPeer", "metadata": {"name": "router"},
            "spec": {"peerIP": "172.31.0.100", "asNumber": 65000}});
        cluster.server.create("/apis/projectcalico.org/v3/bgpconfigurations", &configuration);
        cluster.server.create("/apis/projectcalico.org/v3/bgppeers", &peer);
        cluster.start_router();
        cluster.start_node(1, false);
        cluster.start_node(2, true);
        for node in ["n1", "n2"] {
            cluster.wait(&format!("{node} tells of the ranges"), |cluster| {
                ["10.96.0.0/16", "192.0.2.0/24", "198.51.100.0/24"]
                    .iter()
                    .all(|range| cluster.next_hops(range).contains(&node.to_owned()))
            });
        }
        cluster
    }

    /// Adds a machine to the network and returns its index.
    fn machine(&mut self, name: &str, number: u8) -> usize {
        let machine = TestNamespace::new(name);
        self.fabric.ip(&format!("link add p{number} type veth peer name eth0 netns {}", machine.name()));
        self.fabric.ip(&format!("link set p{number} master br0 up"));
        machine.ip(&format!("addr add 172.31.0.{number}/24 dev eth0"));
        machine.ip(&format!("addr add fd31::{number}/64 dev eth0 nodad"));
        machine.ip("link set eth0 up");
        machine.ip("route add default via 172.31.0.254");
        self.namespaces.push(machine);
        self.namespaces.len() - 1
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start_bird(&mut self, machine: usize, config: &str, socket: &str) {
        let mut command = self.namespaces[machine].command("bird");
        command.arg("-f").arg("-c").arg(self.path(config)).arg("-s").arg(self.path(socket));
        self.daemons.push(TestProcess::quiet(&mut command));
    }

    fn start_router(&mut self) {
        let mut text = "router id 172.31.0.100;\nprotocol device {}\nprotocol direct { ipv4; }\n\
            protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }\n"
            .to_owned();
        for node in ["n1", "n2"] {
            text += &format!(
                "protocol bgp {node} {{ local as 65000; neighbor 172.31.0.{} as 64512; connect delay time 1; connect retry \
                 time 1; error wait time 1, 2; ipv4 {{ import all; export where net = {CLIENT_NETWORK}; }}; }}\n",
                &node[1..]
            );
        }
        std::fs::write(self.path("router.conf"), text).unwrap();
        let machine = self.machine("router", 100);
        self.start_bird(machine, "router.conf", "router.ctl");
    }

    fn start_node(&mut self, number: u8, by_bird: bool) {
        let name = format!("n{number}");
        self.server.add_node(&name);
        let machine = self.machine(&name, number);
        let mut installation = TestInstallation::new(TORTIE);
        let mut runner = Command::new("ip");
        runner.args(["netns", "exec", self.namespaces[machine].name()]);
        let mut command = installation.node_command(runner);
        command
            .envs(self.server.environment(CalicoGroup::V3))
            .env("NODENAME", &name)
            .env("IP", format!("172.31.0.{number}/24"))
            .env("IP6", format!("fd31::{number}/64"))
            .env("CALICO_IPV4POOL_CIDR", "10.77.0.0/24")
            .env("CALICO_IPV6POOL_CIDR", "none");
        if by_bird {
            command
                .env("TORTIE_BIRD", "true")
                .env("TORTIE_BIRD_CONFIG", self.path("node.conf"))
                .env("TORTIE_BIRD_SOCKET", self.path("node.ctl"));
        }
        installation.start_node(command);
        self.nodes.push(installation);
        if by_bird {
            self.wait("the configuration for BIRD is there", |cluster| cluster.path("node.conf").exists());
            self.start_bird(machine, "node.conf", "node.ctl");
        }
    }

    fn birdc(&self, socket: &str, command: &str) -> String {
        let output = Command::new("birdc").arg("-s").arg(self.path(socket)).arg(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the nodes that the router uses as next hops for a prefix.
    fn next_hops(&self, prefix: &str) -> Vec<String> {
        let listed = self.birdc("router.ctl", &format!("show route for {prefix} all"));
        let exactly = listed.lines().any(|line| line.split_whitespace().next() == Some(prefix));
        let hops = listed.lines().filter_map(|line| line.trim().strip_prefix("BGP.next_hop: 172.31.0."));
        let mut nodes: Vec<String> = hops.filter(|_| exactly).map(|number| format!("n{number}")).collect();
        nodes.sort();
        nodes
    }

    fn wait(&self, what: &str, mut so: impl FnMut(&ServiceCluster) -> bool) {
        eventually_showing(
            what,
            || so(self),
            || {
                let mut logs: String = self.nodes.iter().map(TestInstallation::log).collect();
                logs += &std::fs::read_to_string(self.path("controllers.log")).unwrap_or_default();
                format!("{}\n{logs}", self.birdc("router.ctl", "show route all"))
            },
        );
    }

    fn wait_for(&self, prefix: &str, nodes: &[&str]) {
        self.wait(&format!("the router has {prefix} by {nodes:?}"), |cluster| {
            cluster.next_hops(prefix) == nodes
        });
    }

    /// Starts the controllers, with a pool for load balancers.
    fn start_controllers(&mut self) {
        let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "services"},
            "spec": {"cidr": "198.51.100.0/24", "blockSize": 28, "allowedUses": ["LoadBalancer"], "nodeSelector": "all()"}});
        self.server.create("/apis/projectcalico.org/v3/ippools", &pool);
        let mut command = self.fabric.command(TORTIE);
        command
            .args(["controllers", "--identity", "a", "--status-file"])
            .arg(self.path("status"))
            .envs(self.server.environment(CalicoGroup::V3))
            .stderr(std::fs::File::create(self.path("controllers.log")).unwrap());
        let (controllers, line) = TestProcess::until_first_line(&mut command);
        assert!(line.starts_with("ready: "), "{line:?}");
        self.daemons.push(controllers);
    }

    /// Starts kube-proxy on both nodes.
    fn start_proxies(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kube/build");
        let programs = PathBuf::from(tortie_testkit::run(Command::new(script).arg("dir")).trim());
        for (number, machine) in [1, 2].iter().zip(&self.namespaces[1..]) {
            let address = json!([{"type": "InternalIP", "address": format!("172.31.0.{number}")}]);
            let status = json!({"status": {"addresses": address}});
            self.server.merge(&format!("/api/v1/nodes/n{number}/status"), &status);
            let mut command = machine.command(programs.join("kube-proxy").to_str().unwrap());
            command
                .arg(format!("--kubeconfig={}", self.server.kubeconfig().display()))
                .arg(format!("--hostname-override=n{number}"))
                .args(["--proxy-mode=nftables", "--cluster-cidr=10.77.0.0/24"]);
            // kube-proxy would otherwise set these for the whole machine.
            for limit in ["max-per-core", "min", "tcp-timeout-established", "tcp-timeout-close-wait"] {
                command.arg(format!("--conntrack-{limit}=0"));
            }
            self.daemons.push(TestProcess::quiet(&mut command));
        }
    }

    /// Starts a pod on n2 that serves its name and returns its address.
    fn start_web_server(&mut self) -> String {
        self.server.add_pod("shop", "web", "n2", json!({"app": "web"}), json!([]));
        let pod = TestNamespace::new("pod");
        let config = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes",
            "nodename": "n2", "ipam": {"type": "calico-ipam"}, "policy": {"type": "k8s"},
            "kubernetes": {"kubeconfig": self.server.kubeconfig()},
        });
        let call = PluginCall {
            plugin: "calico",
            command: "ADD",
            container: "web",
            netns: &pod.path(),
            ifname: "eth0",
            config: &config.to_string(),
            args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
        };
        let output = self.nodes[1].begin(&call).wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}\n{}", self.nodes[1].log());
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let address = said["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        self.server.set_pod_addresses("shop", "web", std::slice::from_ref(&address));
        std::fs::create_dir(self.path("www")).unwrap();
        std::fs::write(self.path("www/index.html"), "web").unwrap();
        let mut command = pod.command("busybox");
        command.args(["httpd", "-f", "-p", "80", "-h"]).arg(self.path("www"));
        self.daemons.push(TestProcess::quiet(&mut command));
        self.namespaces.push(pod);
        address
    }

    /// Returns a client host behind the router.
    fn client(&mut self) -> TestNamespace {
        let (router, client) = (&self.namespaces[0], TestNamespace::new("client"));
        router.ip(&format!("link add clients type veth peer name eth0 netns {}", client.name()));
        router.ip("addr add 192.168.99.1/24 dev clients");
        router.ip("link set clients up");
        router.exec("sysctl -qw net.ipv4.ip_forward=1");
        client.ip("addr add 192.168.99.2/24 dev eth0");
        client.ip("link set eth0 up");
        client.ip("route add default via 192.168.99.1");
        client
    }

    /// Returns the load balancer address of a service.
    fn given(&self, service: &str) -> String {
        let service = self.server.must("GET", &format!("{SERVICES_PATH}/{service}"), None);
        service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().unwrap_or_default().to_owned()
    }

    /// Sets the endpoints of a service, each on a node and ready or not.
    fn endpoints(&self, service: &str, endpoints: &[(&str, bool)]) {
        let at = |number: usize| format!("10.77.0.{}", number + 1);
        let listed: Vec<(String, &str, bool)> =
            endpoints.iter().enumerate().map(|(number, (node, ready))| (at(number), *node, *ready)).collect();
        self.endpoints_at(service, &listed);
    }

    fn endpoints_at(&self, service: &str, endpoints: &[(String, &str, bool)]) {
        let listed: Vec<Value> = endpoints
            .iter()
            .map(|(address, node, ready)| {
                json!({"addresses": [address], "nodeName": node, "conditions": {"ready": ready}})
            })
            .collect();
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "endpoints": listed, "ports": [{"port": 80}]});
        let there = format!("{ENDPOINT_SLICES_PATH}/{service}");
        match self.server.send("GET", &there, None) {
            Ok(_) => self.server.must("PUT", &there, Some(&slice)),
            Err(_) => self.server.create(ENDPOINT_SLICES_PATH, &slice),
        };
    }
}

#[test]
fn nodes_with_endpoints_advertise_their_services() {
    let cluster = ServiceCluster::new();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
        "type": "LoadBalancer", "clusterIP": "10.96.7.7", "externalIPs": ["192.0.2.7"], "externalTrafficPolicy": "Local",
        "ports": [{"port": 80}], "selector": {"app": "web"}}});
    cluster.server.create(SERVICES_PATH, &service);
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}});
    cluster.server.merge(&format!("{SERVICES_PATH}/web/status"), &status);
    let single = ["10.96.7.7/32", "192.0.2.7/32", "198.51.100.7/32"];
    let wait_for_all = |nodes: &[&str]| single.iter().for_each(|prefix| cluster.wait_for(prefix, nodes));

    // Only nodes with a ready endpoint announce an address; nodes do not pass on each other's routes.
    cluster.endpoints("web", &[("n1", true), ("n2", false)]);
    wait_for_all(&["n1"]);
    cluster.endpoints("web", &[("n1", true), ("n2", true)]);
    wait_for_all(&["n1", "n2"]);
    cluster.endpoints("web", &[("n1", false), ("n2", true)]);
    wait_for_all(&["n2"]);

    // No service route is installed in the nodes' kernels, where kube-proxy handles the addresses.
    for machine in &cluster.namespaces[1..] {
        let routes = machine.ip("route show table all");
        let services = ["10.96.", "192.0.2.", "198.51.100."];
        assert!(!services.iter().any(|part| routes.contains(part)), "{routes}");
    }

    // A node that is excluded from external load balancers announces no service addresses.
    let node = |name: &str, value: Value| {
        let label = json!({"node.kubernetes.io/exclude-from-external-load-balancers": value});
        cluster.server.merge(&format!("/api/v1/nodes/{name}"), &json!({"metadata": {"labels": label}}));
    };
    node("n2", json!("true"));
    wait_for_all(&[]);
    cluster.wait_for("10.96.0.0/16", &["n1"]);
    node("n2", json!(null));
    wait_for_all(&["n2"]);
    cluster.wait_for("10.96.0.0/16", &["n1", "n2"]);

    // A single address in the configuration is announced by all nodes, with or without endpoints.
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "alone"}, "spec": {
        "type": "LoadBalancer", "clusterIP": "10.96.7.8", "ports": [{"port": 80}]}});
    cluster.server.create(SERVICES_PATH, &service);
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}});
    cluster.server.merge(&format!("{SERVICES_PATH}/alone/status"), &status);
    cluster.wait_for("203.0.113.7/32", &["n1", "n2"]);
    for machine in &cluster.namespaces[1..] {
        let routes = machine.ip("route show table all");
        assert!(!routes.contains("blackhole 203.0.113.7"), "{routes}");
    }
    cluster.server.must("DELETE", &format!("{SERVICES_PATH}/alone"), None);
    cluster.wait_for("203.0.113.7/32", &[]);

    // Deleting the slice or the service withdraws its addresses; only the ranges remain.
    cluster.server.must("DELETE", &format!("{ENDPOINT_SLICES_PATH}/web"), None);
    wait_for_all(&[]);
    cluster.endpoints("web", &[("n1", true)]);
    wait_for_all(&["n1"]);
    cluster.server.must("DELETE", &format!("{SERVICES_PATH}/web"), None);
    wait_for_all(&[]);
    cluster.wait_for("192.0.2.0/24", &["n1", "n2"]);
}

/// A service without an address gets one, is announced outside the cluster, and is answered by its pod.
#[test]
fn external_clients_reach_load_balancer_addresses() {
    let mut cluster = ServiceCluster::new();
    cluster.start_controllers();
    cluster.start_proxies();
    let address = cluster.start_web_server();
    let client = cluster.client();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}], "selector": {"app": "web"}}});
    cluster.server.create(SERVICES_PATH, &service);
    cluster.wait("the service has an address", |cluster| cluster.given("web").starts_with("198.51.100."));
    let given = cluster.given("web");
    let route = format!("{given}/32");
    cluster.endpoints_at("web", &[(address, "n2", true)]);
    cluster.wait_for(&route, &["n2"]);
    cluster.wait("the client is answered", |_| {
        let answer = client.try_exec(&["curl", "-s", "--max-time", "5", &format!("http://{given}/")]);
        answer.stdout == b"web"
    });
    cluster.server.must("DELETE", &format!("{SERVICES_PATH}/web"), None);
    cluster.wait_for(&route, &[]);
}
