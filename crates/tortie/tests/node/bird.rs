//! A node whose BGP is BIRD's business: whatever happens to BIRD, the node says what is wrong and puts it right.

use crate::world::{Namespace, TORTIE, World, eventually};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// BIRD in a namespace; gone with the test.
pub struct Bird {
    child: Child,
    socket: PathBuf,
}

impl Bird {
    pub fn start(namespace: &Namespace, config: &Path, socket: &Path) -> Bird {
        // `ip netns exec` becomes the program, so this is its process.
        let child = Command::new("ip")
            .args(["netns", "exec", &namespace.0, "bird", "-f", "-c"])
            .arg(config)
            .arg("-s")
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Bird { child, socket: socket.to_owned() }
    }

    pub fn says(&self, command: &str) -> String {
        let output = Command::new("birdc").arg("-s").arg(&self.socket).arg(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What somebody on the host sees.
struct Host<'a>(&'a World);

impl Host<'_> {
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

    /// The page and its status code.
    fn readiness(&self) -> String {
        let output =
            self.0.host.run(&["curl", "-s", "-w", "%{http_code}", "http://localhost:9099/readiness"]);
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
fn bird_may_come_late_go_and_be_meddled_with() {
    let mut world = World::without_node("10.77.0.0/24");
    let at = |name: &str| world.dir.path().join(name);
    let (config, socket, secrets) = (at("etc/bird.cfg"), at("bird.ctl"), at("secrets"));
    std::fs::create_dir_all(secrets.join("bgp")).unwrap();
    std::fs::write(secrets.join("bgp/good"), "hunter2").unwrap();
    std::fs::write(secrets.join("bgp/bad"), "hunter\"2").unwrap();
    world.start(&[
        ("CALICO_NETWORKING_BACKEND", "bird"),
        ("TORTIE_BIRD_CONFIG", config.to_str().unwrap()),
        ("TORTIE_BIRD_SOCKET", socket.to_str().unwrap()),
        ("TORTIE_SECRETS_DIR", secrets.to_str().unwrap()),
        ("FELIX_HEALTHENABLED", "true"),
    ]);
    let host = Host(&world);

    // Not there yet: said everywhere, and the file that it will need is in its place.
    eventually("the configuration is written", || config.exists());
    assert_eq!(std::fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o640);
    eventually("the node is not ready", || host.readiness().ends_with("503"));
    for told in [host.readiness(), host.run(&["ctl", "node", "status"]), host.run(&["bgp", "peers"])] {
        assert!(told.contains("no BIRD answers at") && told.contains("unset the variable"), "{told}");
    }

    let bird = Bird::start(&world.host, &config, &socket);
    eventually("the node is ready", || host.readiness().ends_with("200"));
    assert!(host.run(&["ctl", "node", "status"]).contains("No IPv4 peers found."));

    // One session that BIRD cannot be told of does not keep the other from it.
    let both = [peer("one", "172.30.0.7", "good"), peer("two", "172.30.0.8", "bad")].join("\n---\n");
    world.calicoctl(&["apply", "-f", "-"], &both);
    eventually("the good session is there", || host.sessions() == ["Global_172_30_0_7"]);
    eventually("the node says so and is ready", || {
        let told = host.readiness();
        told.contains("session Global_172_30_0_8 is left out: its password") && told.ends_with("200")
    });
    std::fs::write(secrets.join("bgp/bad"), "hunter3").unwrap();
    eventually("the other comes when its password is mended", || host.sessions().len() == 2);
    eventually("nothing is left out", || !host.readiness().contains("left out"));

    // Whoever edits the file or BIRD's memory is overruled.
    std::fs::write(&config, "router id 9.9.9.9;\nprotocol device {}\n").unwrap();
    bird.says("configure");
    eventually("both sessions are back", || {
        bird.says("show protocols").contains("Global_172_30_0_8") && host.sessions().len() == 2
    });
    assert!(std::fs::read_to_string(&config).unwrap().contains("hunter3"));

    // BIRD goes, and comes back with another file than ours.
    drop(bird);
    eventually("the node is not ready", || host.readiness().ends_with("503"));
    let other = world.dir.path().join("other.cfg");
    std::fs::write(&other, "router id 9.9.9.9;\nprotocol device {}\n").unwrap();
    let bird = Bird::start(&world.host, &other, &socket);
    eventually("it is told what to do again", || bird.says("show protocols").contains("Global_172_30_0_8"));
    eventually("the node is ready", || host.readiness().ends_with("200"));
}
