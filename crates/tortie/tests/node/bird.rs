//! A node that uses BIRD for BGP: the node reports every failure of BIRD and repairs its configuration.

use crate::textbook::neighbour;
use crate::world::{NodeFixture, TORTIE, TestNamespace, eventually};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tortie_testkit::TestProcess;

/// BIRD in a namespace, killed on drop.
pub struct BirdProcess {
    _process: TestProcess,
    socket: PathBuf,
}

impl BirdProcess {
    pub fn start(namespace: &TestNamespace, config: &Path, socket: &Path) -> BirdProcess {
        let mut command = namespace.command("bird");
        let process = TestProcess::quiet(command.arg("-f").arg("-c").arg(config).arg("-s").arg(socket));
        BirdProcess { _process: process, socket: socket.to_owned() }
    }

    pub fn says(&self, command: &str) -> String {
        let output = Command::new("birdc").arg("-s").arg(&self.socket).arg(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The node as seen from the command line of the host.
struct HostCommands<'a>(&'a NodeFixture);

impl HostCommands<'_> {
    fn run(&self, args: &[&str]) -> String {
        let run_dir = self.0.dir.path().join("run");
        let output = Command::new(TORTIE).args(args).arg("--run-dir").arg(run_dir).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    fn sessions(&self) -> Vec<String> {
        let answer: Value =
            serde_json::from_str(&self.run(&["bgp", "peers", "-o", "json"])).unwrap_or_default();
        let peers = answer["peers"].as_array().into_iter().flatten();
        peers.map(|peer| peer["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the readiness page followed by its status code.
    fn readiness(&self) -> String {
        let output =
            self.0.host.try_exec(&["curl", "-s", "-w", "%{http_code}", "http://localhost:9099/readiness"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn peer(name: &str, address: &str, key: &str) -> String {
    format!(
        "{{kind: BGPPeer, apiVersion: projectcalico.org/v3, metadata: {{name: {name}}}, spec: {{peerIP: '{address}', \
         asNumber: 64999, password: {{secretKeyRef: {{name: bgp, key: {key}}}}}}}}}"
    )
}

#[test]
fn bird_may_start_late_stop_or_be_changed() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let at = |name: &str| world.dir.path().join(name);
    let (config, socket, secrets) = (at("etc/bird.cfg"), at("bird.ctl"), at("secrets"));
    std::fs::create_dir_all(secrets.join("bgp")).unwrap();
    std::fs::write(secrets.join("bgp/good"), "hunter2").unwrap();
    std::fs::write(secrets.join("bgp/bad"), "hunter\"2").unwrap();
    world.start(&[
        ("CALICO_NETWORKING_BACKEND", "bird"),
        ("TORTIE_BIRD", "true"),
        ("TORTIE_BIRD_CONFIG", config.to_str().unwrap()),
        ("TORTIE_BIRD_SOCKET", socket.to_str().unwrap()),
        ("TORTIE_SECRETS_DIR", secrets.to_str().unwrap()),
        ("FELIX_HEALTHENABLED", "true"),
    ]);
    let host = HostCommands(&world);

    // BIRD is not running yet: every interface reports it, and the configuration file that BIRD will need exists.
    eventually("the configuration is written", || config.exists());
    assert_eq!(std::fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o640);
    eventually("the node is not ready", || host.readiness().ends_with("503"));
    for said in [host.readiness(), host.run(&["ctl", "node", "status"]), host.run(&["bgp", "peers"])] {
        assert!(said.contains("no BIRD answers at") && said.contains("unset the variable"), "{said}");
    }

    let bird = BirdProcess::start(&world.host, &config, &socket);
    eventually("the node is ready", || host.readiness().ends_with("200"));
    assert!(host.run(&["ctl", "node", "status"]).contains("No IPv4 peers found."));

    // A session that cannot be configured in BIRD does not prevent the other one.
    let both = [peer("one", "172.30.0.7", "good"), peer("two", "172.30.0.8", "bad")].join("\n---\n");
    world.calicoctl(&["apply", "-f", "-"], &both);
    eventually("the good session is there", || host.sessions() == ["Global_172_30_0_7"]);
    eventually("the node says so", || {
        host.readiness().contains("session Global_172_30_0_8 is left out: its password")
    });
    world.must("STATUS", "", "", &world.config());
    std::fs::write(secrets.join("bgp/bad"), "hunter3").unwrap();
    eventually("the other comes when its password is mended", || host.sessions().len() == 2);
    eventually("nothing is left out", || !host.readiness().contains("left out"));

    // The node overwrites manual changes of the file or of BIRD's running configuration.
    std::fs::write(&config, "router id 9.9.9.9;\nprotocol device {}\n").unwrap();
    bird.says("configure");
    eventually("both sessions are back", || {
        bird.says("show protocols").contains("Global_172_30_0_8") && host.sessions().len() == 2
    });
    assert!(std::fs::read_to_string(&config).unwrap().contains("hunter3"));

    // BIRD stops, and restarts with another configuration file.
    drop(bird);
    eventually("the node is not ready", || host.readiness().ends_with("503"));
    let other = world.dir.path().join("other.cfg");
    std::fs::write(&other, "router id 9.9.9.9;\nprotocol device {}\n").unwrap();
    let bird = BirdProcess::start(&world.host, &other, &socket);
    eventually("BIRD is configured again", || bird.says("show protocols").contains("Global_172_30_0_8"));
    world.await_status();
}

/// A router in another AS that uses BGP only on its loopback address.
const FAR_ROUTER_CONFIG: &str = "
    router id 192.0.2.9;
    protocol device { scan time 1; }
    protocol static far4 { ipv4; route 198.51.100.0/24 blackhole; }
    protocol static far6 { ipv6; route fd51::/64 blackhole; }
    template bgp host { connect delay time 1; error wait time 1, 2; multihop; }
    protocol bgp host4 from host {
      local 192.0.2.9 as 64999; neighbor 172.30.0.1 as 64512; ipv4 { import all; export where proto = \"far4\"; };
    }
    protocol bgp host6 from host {
      local fd99::9 as 64999; neighbor fd30::1 as 64512; ipv6 { import all; export where proto = \"far6\"; };
    }
";

#[test]
fn both_backends_reach_a_peer_behind_a_gateway() {
    for bird in [false, true] {
        let mut world = NodeFixture::without_node("10.77.0.0/24");
        let (gateway, _workload) = neighbour(&world);
        gateway.ip(&["addr", "add", "192.0.2.9/32", "dev", "lo"]);
        gateway.ip(&["addr", "add", "fd99::9/128", "dev", "lo", "nodad"]);
        let at = |name: &str| world.dir.path().join(name);
        std::fs::write(at("far.cfg"), FAR_ROUTER_CONFIG).unwrap();
        let _far = BirdProcess::start(&gateway, &at("far.cfg"), &at("far.ctl"));
        let (config, socket) = (at("bird.cfg"), at("bird.ctl"));
        world.start(&[
            ("CALICO_NETWORKING_BACKEND", "bird"),
            ("TORTIE_BIRD", if bird { "true" } else { "false" }),
            ("TORTIE_BIRD_CONFIG", config.to_str().unwrap()),
            ("TORTIE_BIRD_SOCKET", socket.to_str().unwrap()),
            ("IP", "172.30.0.1/24"),
            ("IP6", "fd30::1/64"),
        ]);
        eventually("BIRD could start", || !bird || config.exists());
        let _own = bird.then(|| BirdProcess::start(&world.host, &config, &socket));
        for (name, address, gateway) in [("v4", "192.0.2.9", "172.30.0.2"), ("v6", "fd99::9", "fd30::2")] {
            let spec = format!("{{peerIP: '{address}', asNumber: 64999, reachableBy: '{gateway}'}}");
            let peer = format!(
                "{{kind: BGPPeer, apiVersion: projectcalico.org/v3, metadata: {{name: {name}}}, spec: {spec}}}"
            );
            world.calicoctl(&["apply", "-f", "-"], &peer);
            let family = if address.contains(':') { "-6" } else { "-4" };
            eventually(&format!("{address} is reached through {gateway}\n{}", world.log()), || {
                world.host.ip(&[family, "route"]).contains(&format!("{address} via {gateway} dev eth0"))
            });
        }
        for learnt in ["198.51.100.0/24", "fd51::/64"] {
            eventually(&format!("{learnt} comes from there"), || {
                let family = if learnt.contains(':') { "-6" } else { "-4" };
                world.host.ip(&[family, "route"]).contains(learnt)
            });
        }
        world.calicoctl(&["delete", "bgppeer", "v4", "v6"], "");
        for gone in ["192.0.2.9", "fd99::9"] {
            eventually(&format!("the way to {gone} goes with the peer"), || {
                let family = if gone.contains(':') { "-6" } else { "-4" };
                !world.host.ip(&[family, "route"]).contains(gone)
            });
        }
    }
}
