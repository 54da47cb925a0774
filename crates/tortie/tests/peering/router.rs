//! A BGP neighbour of the node: BIRD in its own namespace on the node's network.

use std::fmt::Write;
use tempfile::TempDir;
use tortie_testkit::{TestNamespace, TestProcess};

/// The AS number of the node.
pub const NODE_AS: u32 = 64512;

pub struct BirdRouter {
    // Fields are dropped in this order.
    _daemon: TestProcess,
    namespace: TestNamespace,
    dir: TempDir,
    config: RouterConfig,
}

/// Configuration of a router. Its number determines its addresses: 10.88.0.NUMBER and fd88::NUMBER.
#[derive(Clone, Debug, Default)]
pub struct RouterConfig {
    pub number: u8,
    pub asn: u32,
    pub password: Option<String>,
    /// Whether it uses ADD-PATH in both directions.
    pub add_paths: bool,
    /// Prefixes that it announces, each with BIRD statements for its attributes.
    pub announces: Vec<(String, String)>,
}

impl BirdRouter {
    pub fn start(host: &TestNamespace, config: RouterConfig) -> BirdRouter {
        let number = config.number;
        let namespace = TestNamespace::new("router");
        host.ip(&format!("link add r{number} type veth peer name eth0 netns {}", namespace.name()));
        host.ip(&format!("link set r{number} master eth0 up"));
        namespace.exec("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
        namespace.ip(&format!("addr add 10.88.0.{number}/24 dev eth0"));
        namespace.ip(&format!("addr add fd88::{number:x}/64 dev eth0 nodad"));
        namespace.ip("link set eth0 up");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("bird.conf"), config.text()).unwrap();
        let mut command = namespace.command("bird");
        command
            .arg("-f")
            .arg("-c")
            .arg(dir.path().join("bird.conf"))
            .arg("-s")
            .arg(dir.path().join("bird.ctl"));
        let daemon = TestProcess::quiet(&mut command);
        BirdRouter { _daemon: daemon, namespace, dir, config }
    }

    pub fn birdc(&self, command: &str) -> String {
        let socket = self.dir.path().join("bird.ctl");
        let output = self.namespace.command("birdc").arg("-s").arg(socket).arg(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Applies a changed configuration.
    pub fn configure(&mut self, change: impl FnOnce(&mut RouterConfig)) {
        change(&mut self.config);
        std::fs::write(self.dir.path().join("bird.conf"), self.config.text()).unwrap();
        let said = self.birdc("configure");
        assert!(said.contains("Reconfigured") || said.contains("in progress"), "{said}");
    }

    /// Stops or resumes its announcements.
    pub fn announce(&self, on: bool) {
        let (word, done) = if on { ("enable", "enabled") } else { ("disable", "disabled") };
        for protocol in ["own_node4", "own_node6"] {
            let said = self.birdc(&format!("{word} {protocol}"));
            assert!(said.contains(done), "{said}");
        }
    }

    pub fn address(&self, v6: bool) -> String {
        if v6 { format!("fd88::{:x}", self.config.number) } else { format!("10.88.0.{}", self.config.number) }
    }

    /// Returns the time of day in milliseconds since which the session with the node is established; `None` if it is
    /// not. BIRD computes the time again for each reply, so it may differ by a few milliseconds.
    pub fn up_since(&self, v6: bool) -> Option<u64> {
        let listed = self.birdc(&format!("show protocols {}", name(v6)));
        let line = listed.lines().find(|line| line.starts_with(name(v6)))?;
        if !line.contains("Established") {
            return None;
        }
        let time = line.split_whitespace().find(|word| word.matches(':').count() == 2)?;
        let parts: Vec<f64> = time.split(':').filter_map(|part| part.parse().ok()).collect();
        Some((((parts[0] * 60.0 + parts[1]) * 60.0 + parts[2]) * 1000.0) as u64)
    }

    /// Returns the prefixes that the node has advertised, each with its attributes as BIRD prints them.
    pub fn heard(&self, v6: bool) -> Vec<(String, String)> {
        let text = self.birdc(&format!("show route protocol {} all", name(v6)));
        let mut routes: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            match line.split_whitespace().next() {
                Some(word) if word.contains('/') && !line.starts_with(char::is_whitespace) => {
                    routes.push((word.to_owned(), String::new()));
                }
                _ => {
                    if let Some((_, attributes)) = routes.last_mut() {
                        let _ = writeln!(attributes, "{}", line.trim());
                    }
                }
            }
        }
        routes.sort();
        routes
    }
}

fn name(v6: bool) -> &'static str {
    if v6 { "node6" } else { "node4" }
}

impl RouterConfig {
    fn text(&self) -> String {
        let RouterConfig { number, asn, password, add_paths, announces } = self;
        let paths = if *add_paths { "add paths on;" } else { "" };
        let mut text = format!(
            "router id 10.88.0.{number};\ntimeformat protocol iso long ms;\nprotocol device {{}}\nprotocol direct {{ ipv4; ipv6; }}\n"
        );
        let password = password.as_ref().map(|word| format!("password \"{word}\";")).unwrap_or_default();
        for (v6, channel) in [(false, "ipv4"), (true, "ipv6")] {
            let own = announces.iter().filter(|(prefix, _)| prefix.contains(':') == v6);
            let (mut routes, mut changes) = (String::new(), String::new());
            for (prefix, change) in own {
                let _ = write!(routes, " route {prefix} blackhole;");
                let _ = write!(changes, " if net = {prefix} then {{ {change} }}");
            }
            let (name, node) = (name(v6), if v6 { "fd88::1" } else { "10.88.0.1" });
            let _ = write!(
                text,
                "protocol static own_{name} {{ {channel};{routes} }}
                protocol bgp {name} {{
                  local as {asn}; neighbor {node} as {NODE_AS}; {password} graceful restart on;
                  connect delay time 1; connect retry time 1; error wait time 1, 2;
                  {channel} {{ {paths} import all; export filter {{ if source != RTS_STATIC then reject;{changes} accept; }}; }};
                }}\n"
            );
        }
        text
    }
}
