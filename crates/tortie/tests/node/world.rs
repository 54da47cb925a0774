//! The world of a test: a datastore, a namespace with a node in it, namespaces for containers. Gone when dropped.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A process that does not outlive the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace that does not outlive the test.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(what: &str) -> Namespace {
        let name = format!("tt{}-{}-{what}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &name]);
        let namespace = Namespace(name);
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    /// With an interface and a way out, as a host has them.
    pub fn host() -> Namespace {
        let host = Namespace::new("node");
        host.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "wire0"]);
        host.ip(&["addr", "add", "172.30.0.1/24", "dev", "eth0"]);
        for link in ["eth0", "wire0"] {
            host.ip(&["link", "set", link, "up"]);
        }
        // Without a way out, the host does not answer for the gateway of its containers.
        host.ip(&["route", "add", "default", "via", "172.30.0.254"]);
        host
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    pub fn ip(&self, args: &[&str]) -> String {
        let mut all = vec!["-n", &self.0];
        all.extend(args);
        ip(&all)
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new("ip").args(["netns", "exec", &self.0]).args(args).output().unwrap()
    }

    pub fn reaches(&self, address: &str) -> bool {
        self.run(&["ping", "-c", "1", "-W", "5", address]).status.success()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "these tests need root and iproute2: ip {args:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a plugin said.
#[derive(Debug)]
pub struct Said {
    pub success: bool,
    pub json: Value,
}

/// Waits for the end of a plugin.
pub fn said(plugin: Child) -> Said {
    let output = plugin.wait_with_output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    Said { success: output.status.success(), json }
}

impl Said {
    pub fn code(&self) -> u64 {
        self.json["code"].as_u64().unwrap_or(0)
    }

    pub fn addresses(&self) -> Vec<String> {
        let ips = self.json["ips"].as_array().cloned().unwrap_or_default();
        ips.iter().map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
    }
}

/// Holds the node up at a step until it is let go.
pub struct Hold(PathBuf);

impl Hold {
    pub fn wait(&self) {
        eventually("the node reaches the step", || self.0.exists());
    }

    pub fn let_go(&self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

pub struct World {
    // In the order in which they go.
    node: Option<Process>,
    store: Option<Process>,
    pub host: Namespace,
    endpoint: String,
    pub dir: TempDir,
    pool: &'static str,
}

impl World {
    pub fn new() -> World {
        World::with_pool("10.77.0.0/24")
    }

    /// A world whose node runs and is ready.
    pub fn with_pool(pool: &'static str) -> World {
        let mut world = World::without_node(pool);
        world.start(&[]);
        world
    }

    pub fn without_node(pool: &'static str) -> World {
        let dir = tempfile::Builder::new().prefix("tortie-node-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        for name in ["calico", "calico-ipam", "calicoctl"] {
            symlink(TORTIE, dir.path().join("bin").join(name)).unwrap();
        }
        let host = Namespace::host();
        let mut world = World { node: None, store: None, host, endpoint: String::new(), dir, pool };
        world.start_store();
        world
    }

    pub fn start_store(&mut self) {
        let mut store = Command::new(TORTIE)
            .args(["datastore", "--listen", "http://127.0.0.1:0", "--listen"])
            .arg(format!("unix://{}", self.dir.path().join("ds.sock").display()))
            .arg("--data-dir")
            .arg(self.dir.path().join("db"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(store.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.store = Some(Process(store));
        self.endpoint = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
    }

    /// kill -9
    pub fn stop_store(&mut self) {
        self.store = None;
    }

    /// What the plugin sends to the node.
    pub fn request(&self, command: &str, container: &str, netns: &str, config: &Value) -> Vec<u8> {
        let env = json!({
            "CNI_CONTAINERID": container, "CNI_NETNS": netns, "CNI_IFNAME": "eth0",
            "CNI_PATH": self.dir.path().join("bin"),
        });
        let request =
            json!({"plugin": "calico", "command": command, "env": env, "config": config.to_string()});
        request.to_string().into_bytes()
    }

    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("run/cni.sock")).unwrap()
    }

    pub fn container(&self) -> Namespace {
        Namespace::new("pod")
    }

    /// Starts the node and waits until it is ready.
    pub fn start(&mut self, environment: &[(&str, &str)]) {
        self.launch(&[], environment);
    }

    /// Starts a node that can read the settings of the kernel and not change them.
    pub fn start_read_only(&mut self) {
        for switch in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            assert!(self.host.run(&["sysctl", "-w", switch]).status.success());
        }
        let script =
            "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$0\" \"$@\"";
        self.launch(&["sh", "-c", script], &[]);
    }

    /// The node, started by another command in its namespace.
    fn launch(&mut self, by: &[&str], environment: &[(&str, &str)]) {
        self.stop();
        let log = std::fs::File::create(self.dir.path().join("node.log")).unwrap();
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.host.0])
            .args(by)
            .args([TORTIE, "node"])
            .arg("--state-dir")
            .arg(self.dir.path().join("state"))
            .arg("--run-dir")
            .arg(self.dir.path().join("run"))
            .env("NODENAME", "n1")
            .env("ETCD_ENDPOINTS", format!("unix://{}", self.dir.path().join("ds.sock").display()))
            .env("CALICO_IPV4POOL_CIDR", self.pool)
            .env("CALICO_IPV4POOL_BLOCK_SIZE", "30")
            .env("CALICO_IPV6POOL_CIDR", "fd77::/116")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.node = Some(Process(child));
        assert!(line.starts_with("ready: "), "{line:?}\n{}", self.log());
    }

    /// Starts a node that is held up, once, at a step of its work.
    pub fn start_held_at(&mut self, step: &str) -> Hold {
        let hold = Hold(self.dir.path().join("hold"));
        self.start(&[("TORTIE_FAILPOINT", &format!("{step}:{}", hold.0.display()))]);
        hold
    }

    /// The process of the node.
    pub fn pid(&self) -> u32 {
        self.node.as_ref().unwrap().0.id()
    }

    /// kill -9
    pub fn stop(&mut self) {
        self.node = None;
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("node.log")).unwrap_or_default()
    }

    pub fn config(&self) -> Value {
        json!({
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "calico",
            "tortie_socket": self.dir.path().join("run/cni.sock"),
            "ipam": {"type": "calico-ipam", "assign_ipv6": "true"},
        })
    }

    pub fn cni(&self, command: &str, container: &str, netns: &str, config: &Value) -> Said {
        self.plugin("calico", command, container, netns, &config.to_string(), "")
    }

    pub fn plugin(
        &self,
        plugin: &str,
        command: &str,
        container: &str,
        netns: &str,
        config: &str,
        args: &str,
    ) -> Said {
        said(self.begin(plugin, command, container, netns, config, args))
    }

    /// A plugin that has got its request.
    pub fn begin(
        &self,
        plugin: &str,
        command: &str,
        container: &str,
        netns: &str,
        config: &str,
        args: &str,
    ) -> Child {
        let mut child = Command::new(self.dir.path().join("bin").join(plugin))
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", self.dir.path().join("bin"))
            .env("CNI_ARGS", args)
            .env("TORTIE_CNI_SOCKET", self.dir.path().join("run/cni.sock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A plugin that finds no daemon answers without reading.
        let _ = child.stdin.take().unwrap().write_all(config.as_bytes());
        child
    }

    /// Fails the test unless it succeeds.
    pub fn must(&self, command: &str, container: &str, netns: &str, config: &Value) -> Said {
        let said = self.cni(command, container, netns, config);
        assert!(said.success, "{command} {container}: {said:?}\n{}", self.log());
        said
    }

    pub fn calicoctl(&self, args: &[&str], input: &str) -> String {
        let mut child = Command::new(self.dir.path().join("bin/calicoctl"))
            .args(args)
            .env("ETCD_ENDPOINTS", &self.endpoint)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "calicoctl {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn stored(&self, what: &str) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint, "get", "--prefix", "/calico/", what])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn stored_at(&self, key: &str) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint, "get", "--print-value-only", key])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Everything a container could have left: links, routes to it, endpoints, handles, addresses, records.
    pub fn traces(&self) -> Vec<String> {
        let links: Value = serde_json::from_str(&self.host.ip(&["-j", "link"])).unwrap();
        let mut traces: Vec<String> = links
            .as_array()
            .unwrap()
            .iter()
            .map(|link| link["ifname"].as_str().unwrap().to_owned())
            .filter(|name| name.starts_with("cali"))
            .collect();
        for family in ["-4", "-6"] {
            let routes = self.host.ip(&[family, "route"]);
            traces.extend(routes.lines().filter(|line| line.contains(" dev cali")).map(str::to_owned));
        }
        let keys = self.stored("--keys-only");
        let left = |key: &&str| key.contains("/workloadendpoints/") || key.contains("/handle/");
        traces.extend(keys.lines().filter(left).map(str::to_owned));
        if self.stored("--print-value-only").contains("\"handle_id\"") {
            traces.push("an allocated address".to_owned());
        }
        traces.extend(self.files("state/attachments"));
        traces
    }

    fn files(&self, dir: &str) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.path().join(dir));
        files.into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub fn assert_clean(&self, after: &str) {
        let traces = self.traces();
        assert!(traces.is_empty(), "after {after} there are {traces:#?}\n{}", self.log());
        let check = self.calicoctl(&["ipam", "check"], "");
        assert!(check.contains("found 0 problems"), "after {after}: {check}");
        eventually("no endpoint has a file", || self.files("run/endpoint-status").is_empty());
    }
}

/// Waits for something that must come to be.
pub fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < deadline, "it never happened that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
