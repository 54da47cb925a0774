//! Network namespaces that go away with the test, and what a person would type in them.

use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tortie_dataplane::pod::{self, Attach};
use tortie_dataplane::{Dataplane, Netns, Reports};
use tortie_plan::{
    Action, EndpointToHost, Guard, Plan, Profile, Route, Rule, Settings, Workload, WorkloadId,
};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A namespace made by `ip netns add`, removed when dropped, also by a panic.
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new() -> Namespace {
        let name = format!("tortie-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]));
        let namespace = Namespace { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// A node with `eth0` (192.168.77.1/24, fd77::1/64) that leads to the other node, 192.168.77.2.
    pub fn node_pair() -> (Namespace, Namespace) {
        let (node, other) = (Namespace::new(), Namespace::new());
        node.ip(&format!("link add eth0 type veth peer name eth0 netns {}", other.name));
        for (namespace, number) in [(&node, 1), (&other, 2)] {
            namespace.exec(&["sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0"]);
            namespace.ip(&format!("addr add 192.168.77.{number}/24 dev eth0"));
            namespace.ip(&format!("addr add fd77::{number}/64 dev eth0 nodad"));
            namespace.ip("link set eth0 up");
        }
        (node, other)
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    pub fn open(&self) -> Netns {
        Netns::open(self.path()).unwrap()
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    pub fn try_exec(&self, words: &[&str]) -> Output {
        self.command(words[0]).args(&words[1..]).output().unwrap()
    }

    pub fn exec(&self, words: &[&str]) -> String {
        run(self.command(words[0]).args(&words[1..]))
    }

    /// `ip WORDS...` inside.
    pub fn ip(&self, words: &str) -> String {
        run(Command::new("ip").args(["-n", &self.name]).args(words.split_whitespace()))
    }

    pub fn try_ip(&self, words: &str) -> Output {
        Command::new("ip").args(["-n", &self.name]).args(words.split_whitespace()).output().unwrap()
    }

    /// `ip -j WORDS...` as JSON.
    pub fn json(&self, words: &str) -> Vec<Value> {
        let text = self.ip(&format!("-j -d {words}"));
        if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
    }

    pub fn has_link(&self, name: &str) -> bool {
        self.try_ip(&format!("link show dev {name}")).status.success()
    }

    /// The lines of `ip route` for a destination, both families.
    pub fn routes(&self, destination: &str) -> Vec<String> {
        let family = if destination.contains(':') { "-6" } else { "-4" };
        let text = self.ip(&format!("{family} -d route show exact {destination}"));
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    pub fn sysctl(&self, key: &str) -> String {
        self.exec(&["cat", &format!("/proc/sys/{key}")]).trim().to_owned()
    }

    pub fn pings(&self, address: &str) -> bool {
        self.try_exec(&["ping", "-c", "1", "-W", "5", address]).status.success()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until something is so; a test on a busy machine may take its time.
pub async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < patience, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn start(node: &Namespace) -> (Dataplane, Reports) {
    let mut settings = Settings::default();
    // As the reference's manifests have it.
    settings.policy.endpoint_to_host = EndpointToHost::Accept;
    Dataplane::start(node.open(), settings).await.unwrap()
}

pub fn id(name: &str) -> WorkloadId {
    WorkloadId { orchestrator: "cni".into(), workload: format!("default/{name}"), endpoint: "eth0".into() }
}

pub fn addresses(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

pub fn workload(interface: &str, with: &[&str]) -> Workload {
    Workload { interface: interface.into(), mac: None, addresses: addresses(with), may_spoof: false }
}

pub fn plan(workloads: &[(&str, Workload)], routes: &[(&str, Route)]) -> Plan {
    let guards = workloads.iter().map(|(name, workload)| (id(name), guard(workload))).collect();
    let workloads: BTreeMap<_, _> = workloads.iter().map(|(name, w)| (id(name), w.clone())).collect();
    let routes = routes.iter().map(|(net, route)| (net.parse().unwrap(), *route)).collect();
    let profiles = BTreeMap::from([("open".to_owned(), Arc::new(open_profile()))]);
    Plan { workloads, routes, guards, profiles, ..Plan::default() }
}

/// Everything is allowed, both ways.
pub fn open_profile() -> Profile {
    let everything = vec![Rule::new(Action::Allow)];
    Profile { ingress: everything.clone(), egress: everything }
}

/// What lets a workload do as it likes.
pub fn guard(workload: &Workload) -> Guard {
    Guard {
        interface: workload.interface.clone(),
        up: true,
        addresses: workload.addresses.clone(),
        profiles: vec!["open".into()],
        ..Guard::default()
    }
}

pub fn request(pod: &Namespace, host_interface: &str, with: &[&str]) -> Attach {
    Attach {
        netns: pod.path(),
        container_interface: "eth0".into(),
        host_interface: host_interface.into(),
        addresses: addresses(with),
        routes: Vec::new(),
        mtu: None,
        mac: None,
        queues: 0,
        allow_ip_forwarding: false,
    }
}

/// A pod wired to a node.
pub async fn pod(node: &Namespace, host_interface: &str, with: &[&str]) -> Namespace {
    let pod = Namespace::new();
    pod::attach(&node.open(), &request(&pod, host_interface, with)).await.unwrap();
    pod
}
