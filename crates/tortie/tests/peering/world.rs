//! A datastore, a node that speaks BGP in a namespace, and workloads. Gone when dropped.

use crate::place::{Namespace, Process, eventually};
use crate::router::{Config, Router};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

pub struct World {
    // In the order in which they go.
    node: Option<Process>,
    _store: Process,
    pub host: Namespace,
    pods: Vec<Namespace>,
    endpoint: String,
    pub dir: TempDir,
}

impl World {
    /// A node at 10.88.0.1 and fd88::1 with blocks of 10.77.0.0/24 and fd77::/120.
    pub fn new() -> World {
        let dir = tempfile::Builder::new().prefix("tortie-peering-").tempdir().unwrap();
        for name in ["bin", "secrets"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["calico", "calico-ipam", "calicoctl"] {
            symlink(TORTIE, dir.path().join("bin").join(name)).unwrap();
        }
        let host = Namespace::new("node");
        // A bridge for an interface: the routers are plugged into it. One without an address of its own takes another with
        // each new port, and who knows the old one then talks to nobody.
        host.ip("link add eth0 address 02:88:00:00:00:01 type bridge");
        host.run("sysctl", &["-qw", "net.ipv6.conf.eth0.accept_dad=0"]);
        host.ip("addr add 10.88.0.1/24 dev eth0");
        host.ip("addr add fd88::1/64 dev eth0 nodad");
        host.ip("link set eth0 up");
        let (store, endpoint) = start_store(&dir);
        let mut world = World { node: None, _store: store, host, pods: Vec::new(), endpoint, dir };
        world.start_node();
        world
    }

    pub fn start_node(&mut self) {
        self.node = None;
        let path = |part: &str| self.dir.path().join(part);
        let log = std::fs::File::options().create(true).append(true).open(path("node.log")).unwrap();
        let mut command = self.host.command(TORTIE);
        command.arg("node").envs([("NODENAME", "n1"), ("IP", "10.88.0.1/24"), ("IP6", "fd88::1/64")]);
        command.envs([
            ("TORTIE_STATE_DIR", path("state")),
            ("TORTIE_RUN_DIR", path("run")),
            ("TORTIE_SECRETS_DIR", path("secrets")),
        ]);
        command.envs([
            ("ETCD_ENDPOINTS", self.endpoint.as_str()),
            ("CALICO_IPV4POOL_CIDR", "10.77.0.0/24"),
            ("CALICO_IPV4POOL_BLOCK_SIZE", "30"),
            ("CALICO_IPV4POOL_IPIP", "Never"),
            ("CALICO_IPV6POOL_CIDR", "fd77::/120"),
            ("CALICO_IPV6POOL_BLOCK_SIZE", "126"),
            ("CALICO_NETWORKING_BACKEND", "tortie"),
            ("FELIX_HEALTHENABLED", "true"),
            ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
        ]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.node = Some(Process(child));
        assert!(line.starts_with("ready: "), "{line:?}\n{}", self.log());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("node.log")).unwrap_or_default()
    }

    pub fn calicoctl(&self, words: &[&str], input: &str) -> String {
        let mut child = Command::new(self.dir.path().join("bin/calicoctl"))
            .args(words)
            .env("ETCD_ENDPOINTS", &self.endpoint)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "calicoctl {words:?}: {output:?}\n{input}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn apply(&self, kind: &str, name: &str, spec: &Value) {
        let object = json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.calicoctl(&["apply", "-f", "-"], &object.to_string());
    }

    /// The node's part of the sessions with a router, one of each family.
    pub fn peer(&self, name: &str, router: &Router, asn: u32, more: &Value) {
        for v6 in [false, true] {
            let mut spec = json!({"node": "n1", "peerIP": router.address(v6), "asNumber": asn});
            for (key, value) in more.as_object().into_iter().flatten() {
                spec[key] = value.clone();
            }
            self.apply("BGPPeer", &format!("{name}-v{}", if v6 { 6 } else { 4 }), &spec);
        }
    }

    pub fn router(&self, config: Config) -> Router {
        Router::start(&self.host, config)
    }

    /// A workload with an address of each family from these pools; returns the addresses.
    pub fn pod(&mut self, name: &str, pools: [&str; 2]) -> Vec<String> {
        let pod = Namespace::new("pod");
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "calico",
            "ipam": {"type": "calico-ipam", "assign_ipv6": "true", "ipv4_pools": [pools[0]], "ipv6_pools": [pools[1]]},
        });
        let mut child = Command::new(self.dir.path().join("bin/calico"))
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", name)
            .env("CNI_NETNS", format!("/run/netns/{}", pod.0))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", self.dir.path().join("bin"))
            .env("TORTIE_CNI_SOCKET", self.dir.path().join("run/cni.sock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        self.pods.push(pod);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success(), "{said}\n{}", self.log());
        let addresses = said["ips"].as_array().unwrap().iter();
        addresses.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
    }

    /// What the node answers to a question, as `tortie bgp` asks it. Nothing while it cannot.
    fn ask(&self, question: &str) -> Value {
        let answered = || -> std::io::Result<Value> {
            let mut stream = UnixStream::connect(self.dir.path().join("run/node.sock"))?;
            stream.write_all(json!({"ask": question}).to_string().as_bytes())?;
            stream.shutdown(std::net::Shutdown::Write)?;
            Ok(serde_json::from_reader(stream)?)
        };
        answered().unwrap_or_default()
    }

    /// The node's session with an address.
    pub fn session(&self, address: &str) -> Value {
        let answer = self.ask("bgp peers");
        let mut peers = answer["peers"].as_array().cloned().unwrap_or_default().into_iter();
        peers.find(|peer| peer["address"] == address).unwrap_or_default()
    }

    pub fn wait_until_up(&self, router: &Router) {
        for v6 in [false, true] {
            let address = router.address(v6);
            let up = || self.session(&address)["state"] == "Established" && router.up_since(v6).is_some();
            eventually(&format!("the session with {address} is up"), up, || self.picture());
        }
    }

    /// Paths that the node has from a router: the whole of what it knows of each.
    pub fn learnt(&self, router: &Router, v6: bool) -> Vec<Value> {
        let name = self.session(&router.address(v6))["name"].clone();
        let answer = self.ask("bgp routes");
        let routes = answer["routes"].as_array().cloned().unwrap_or_default();
        routes.into_iter().filter(|route| route["peer"] == name).collect()
    }

    /// Routes that BGP put into the node's kernel.
    pub fn kernel(&self, v6: bool) -> String {
        self.host.ip(if v6 { "-6 route show proto bird" } else { "-4 route show proto bird" })
    }

    /// For whoever looks at a failure.
    pub fn picture(&self) -> String {
        let routes = self.ask("bgp routes");
        format!("{:#}\n{routes:#}\n{}", self.ask("bgp peers"), self.log())
    }
}

fn start_store(dir: &TempDir) -> (Process, String) {
    let socket = format!("unix://{}", dir.path().join("ds.sock").display());
    let mut store = Command::new(TORTIE)
        .args(["datastore", "--listen", &socket, "--data-dir"])
        .arg(dir.path().join("db"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(store.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("unix://"), "{line}");
    (Process(store), socket)
}
