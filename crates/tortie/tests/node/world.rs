//! Test fixture: a datastore, a namespace with a node in it, and namespaces for containers. Everything is removed on
//! drop.

use serde_json::{Value, json};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use tortie_testkit::{PluginCall, TestInstallation};

pub use tortie_testkit::{TestNamespace, eventually};

pub const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

/// Creates a namespace with an interface and a default route, like a host.
pub fn host() -> TestNamespace {
    let host = TestNamespace::new("node");
    host.ip("link add eth0 type veth peer name wire0");
    host.ip("addr add 172.30.0.1/24 dev eth0");
    for link in ["eth0", "wire0"] {
        host.ip(&["link", "set", link, "up"]);
    }
    // Without a default route the host does not answer ARP for its containers' gateway.
    host.ip("route add default via 172.30.0.254");
    host
}

/// Runs a function in a thread inside a namespace.
pub fn run_inside<T: Send>(namespace: &TestNamespace, function: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let netns = std::fs::File::open(namespace.path()).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(netns.as_fd(), Some(kind)).unwrap();
            function()
        });
        thread.join().unwrap()
    })
}

/// Result of a plugin call.
#[derive(Debug)]
pub struct PluginResult {
    pub success: bool,
    pub json: Value,
}

/// Waits until a plugin exits and returns its result.
pub fn said(plugin: Child) -> PluginResult {
    let output = plugin.wait_with_output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    PluginResult { success: output.status.success(), json }
}

impl PluginResult {
    pub fn code(&self) -> u64 {
        self.json["code"].as_u64().unwrap_or(0)
    }

    pub fn addresses(&self) -> Vec<String> {
        let ips = self.json["ips"].as_array().cloned().unwrap_or_default();
        ips.iter().map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
    }
}

/// Blocks the node at a failpoint until it is released.
pub struct FailpointHold(PathBuf);

impl FailpointHold {
    /// Returns the value of TORTIE_FAILPOINT for this hold.
    pub fn failpoint(&self, step: &str) -> String {
        format!("{step}:{}", self.0.display())
    }

    pub fn wait(&self) {
        eventually("the node reaches the step", || self.0.exists());
    }

    pub fn let_go(&self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

pub struct NodeFixture {
    // Fields are dropped in this order.
    installation: TestInstallation,
    pub host: TestNamespace,
    pool: &'static str,
}

impl Deref for NodeFixture {
    type Target = TestInstallation;

    fn deref(&self) -> &TestInstallation {
        &self.installation
    }
}

impl DerefMut for NodeFixture {
    fn deref_mut(&mut self) -> &mut TestInstallation {
        &mut self.installation
    }
}

impl NodeFixture {
    pub fn new() -> NodeFixture {
        NodeFixture::with_pool("10.77.0.0/24")
    }

    /// Starts a node with this pool and waits until it is ready.
    pub fn with_pool(pool: &'static str) -> NodeFixture {
        let mut world = NodeFixture::without_node(pool);
        world.start(&[]);
        world
    }

    pub fn without_node(pool: &'static str) -> NodeFixture {
        let mut world = NodeFixture { installation: TestInstallation::new(TORTIE), host: host(), pool };
        world.start_store();
        world
    }

    /// Returns a request as the plugin sends it to the node.
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

    pub fn container(&self) -> TestNamespace {
        TestNamespace::new("pod")
    }

    /// Starts the node and waits until it is ready.
    pub fn start(&mut self, environment: &[(&str, &str)]) {
        self.launch(&[], environment);
    }

    /// Starts the node through another program and waits until it is ready.
    pub fn start_by(&mut self, by: &[&str], environment: &[(&str, &str)]) {
        self.launch(by, environment);
    }

    /// Starts a node that can read but not change sysctls.
    pub fn start_read_only(&mut self) {
        for switch in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            assert!(self.host.try_exec(&["sysctl", "-w", switch]).status.success());
        }
        let script =
            "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$0\" \"$@\"";
        self.launch(&["sh", "-c", script], &[]);
    }

    /// Returns the `tortie node` command, run through another command in the node's namespace.
    pub fn command(&self, by: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut runner = Command::new("ip");
        runner.args(["netns", "exec", self.host.name()]).args(by);
        let mut command = self.node_command(runner);
        command
            .env("CALICO_IPV4POOL_CIDR", self.pool)
            .env("CALICO_IPV4POOL_BLOCK_SIZE", "30")
            .env("CALICO_IPV6POOL_CIDR", "fd77::/116")
            .envs(environment.iter().copied());
        command
    }

    fn launch(&mut self, by: &[&str], environment: &[(&str, &str)]) {
        let command = self.command(by, environment);
        self.start_node(command);
    }

    /// Starts a node that blocks once at a step.
    pub fn start_held_at(&mut self, step: &str) -> FailpointHold {
        let hold = self.hold();
        self.start(&[("TORTIE_FAILPOINT", &hold.failpoint(step))]);
        hold
    }

    pub fn hold(&self) -> FailpointHold {
        FailpointHold(self.dir.path().join("hold"))
    }

    /// Starts a node with a soft limit of open files, which it may raise.
    pub fn start_with_descriptors(&mut self, number: usize, environment: &[(&str, &str)]) {
        let script = format!("ulimit -Sn {number} && exec \"$0\" \"$@\"");
        self.launch(&["sh", "-c", &script], environment);
    }

    /// Returns whether the node's process has exited by itself.
    pub fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // A process that its parent has not waited for is a zombie.
        stat.rsplit(") ").next().is_none_or(|state| state.is_empty() || state.starts_with('Z'))
    }

    /// Returns the process ID of the node.
    pub fn pid(&self) -> u32 {
        self.node_pid()
    }

    /// Kills the node with SIGKILL.
    pub fn stop(&mut self) {
        self.stop_node();
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

    /// Sets the default FelixConfiguration.
    pub fn felix(&self, spec: &str) {
        let head = "apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}";
        self.calicoctl(&["apply", "-f", "-"], &format!("{{{head}, spec: {{{spec}}}}}"));
    }

    pub fn cni(&self, command: &str, container: &str, netns: &str, config: &Value) -> PluginResult {
        self.plugin("calico", command, container, netns, &config.to_string(), "")
    }

    /// Runs the plugin for another interface.
    pub fn cni_at(
        &self,
        ifname: &str,
        command: &str,
        container: &str,
        netns: &str,
        config: &Value,
    ) -> PluginResult {
        let (config, args) = (&config.to_string(), "");
        let call = PluginCall { plugin: "calico", command, container, netns, ifname, config, args };
        said(self.installation.begin(&call))
    }

    pub fn plugin(
        &self,
        plugin: &str,
        command: &str,
        container: &str,
        netns: &str,
        config: &str,
        args: &str,
    ) -> PluginResult {
        said(self.begin(plugin, command, container, netns, config, args))
    }

    /// Starts a plugin with its request.
    pub fn begin(
        &self,
        plugin: &str,
        command: &str,
        container: &str,
        netns: &str,
        config: &str,
        args: &str,
    ) -> Child {
        let ifname = "eth0";
        self.installation.begin(&PluginCall { plugin, command, container, netns, ifname, config, args })
    }

    /// Runs the plugin, which must succeed. Retries on "try again later", as a runtime does on a busy machine.
    pub fn must(&self, command: &str, container: &str, netns: &str, config: &Value) -> PluginResult {
        const TRY_AGAIN: u64 = 11;
        let mut said = self.cni(command, container, netns, config);
        for _ in 0..4 {
            if said.code() != TRY_AGAIN {
                break;
            }
            said = self.cni(command, container, netns, config);
        }
        assert!(said.success, "{command} {container}: {said:?}\n{}", self.log());
        said
    }

    /// Waits until STATUS succeeds, as a runtime does before it starts pods: a starting node is not ready at once.
    pub fn await_status(&self) {
        eventually("the node takes pods", || self.cni("STATUS", "", "", &self.config()).success);
    }

    pub fn stored(&self, what: &str) -> String {
        self.etcdctl(&["get", "--prefix", "/calico/", what])
    }

    pub fn stored_at(&self, key: &str) -> String {
        self.etcdctl(&["get", "--print-value-only", key]).trim().to_owned()
    }

    /// Returns everything that a container could have left: links, routes, endpoints, handles, addresses, records.
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
