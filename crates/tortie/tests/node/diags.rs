//! calicoctl commands for a host: node run, node diags, cluster diags, node checksystem.

use crate::world::{NodeFixture, TORTIE, eventually};
use std::process::Output;
use tortie_testkit::run;

fn calicoctl(world: &NodeFixture, args: &[&str]) -> Output {
    let program = world.path("bin/calicoctl");
    let endpoint = format!("ETCD_ENDPOINTS={}", world.socket());
    let words = [&["env", endpoint.as_str(), program.to_str().unwrap()], args].concat();
    world.host.try_exec(&words)
}

fn said(world: &NodeFixture, args: &[&str]) -> String {
    let output = calicoctl(world, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the file names and the combined text of the archive that a command reports.
fn archive(world: &NodeFixture, said: &str) -> (Vec<String>, String) {
    let path = said.lines().last().unwrap().split_whitespace().last().unwrap().to_owned();
    let list = run(std::process::Command::new("tar").args(["-tzf", &path]));
    let names = list.lines().filter_map(|line| line.split_once('/')).map(|(_, name)| name.to_owned());
    let text = run(std::process::Command::new("tar").args(["-xzOf", &path]));
    let left = std::fs::read_dir(world.path("")).unwrap();
    let dirs = left
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains("diag") && entry.path().is_dir());
    assert_eq!(dirs.count(), 0, "only the archive stays");
    (names.filter(|name| !name.is_empty()).collect(), text)
}

#[test]
fn diagnostics_are_collected_without_secrets() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let secrets = world.path("secrets");
    std::fs::create_dir_all(secrets.join("bgp")).unwrap();
    std::fs::write(secrets.join("bgp/key"), "hunter2").unwrap();
    world.start(&[("TORTIE_SECRETS_DIR", secrets.to_str().unwrap())]);
    let peer = "{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: p}, spec: {peerIP: 172.30.0.9, asNumber: \
        65001, password: {secretKeyRef: {name: bgp, key: key}}}}";
    world.calicoctl(&["apply", "-f", "-"], peer);
    eventually("the session is known", || !world.ask("bgp peers")["peers"].as_array().unwrap().is_empty());
    let (dir, run_dir) = (world.path(""), world.path("run"));
    let (dir, run_dir) = (dir.to_str().unwrap(), run_dir.to_str().unwrap());
    let (names, text) =
        archive(&world, &said(&world, &["node", "diags", "--run-dir", run_dir, "--output-dir", dir]));
    for name in [
        "version",
        "nft_ruleset",
        "ipv4_route",
        "ipv6_addr",
        "health.json",
        "settings.json",
        "bgp_peers.json",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    for part in ["table inet tortie", "defaultEndpointToHostAction", "Global_172_30_0_9", "172.30.0.1/24"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("hunter2"));
    let (names, text) = archive(&world, &said(&world, &["cluster", "diags", "--output-dir", dir]));
    assert!(
        names.iter().any(|name| name == "bgppeers.json") && names.iter().any(|name| name == "nodes.json"),
        "{names:?}"
    );
    assert!(text.contains("secretKeyRef") && !text.contains("hunter2"));
}

#[test]
fn node_run_prints_and_runs_its_command() {
    let world = NodeFixture::without_node("10.77.0.0/24");
    let flags =
        ["node", "run", "--name", "n7", "--ip", "172.30.0.1/24", "--no-default-ippools", "--backend", "bird"];
    let line =
        "NODENAME=n7 IP=172.30.0.1/24 CALICO_NETWORKING_BACKEND=bird NO_DEFAULT_POOLS=true tortie node";
    let dry = said(&world, &[&flags[..], &["--dryrun"]].concat());
    assert!(dry.contains(line), "{dry}");
    let unit = said(&world, &[&flags[..], &["--init-system"]].concat());
    assert!(
        unit.contains("Environment=NODENAME=n7\n") && unit.contains(&format!("ExecStart={TORTIE} node\n")),
        "{unit}"
    );
    let mut command = world.host.command("env");
    command.arg(format!("ETCD_ENDPOINTS={}", world.socket()));
    command.arg(format!("TORTIE_STATE_DIR={}", world.path("state").display()));
    command.arg(format!("TORTIE_RUN_DIR={}", world.path("run").display()));
    command.arg(world.path("bin/calicoctl")).args(flags);
    let _node = tortie_testkit::TestProcess::quiet(&mut command);
    let registered = || world.calicoctl(&["get", "nodes"], "").contains("n7");
    eventually("the node runs", || registered() && !world.ask("health").is_null());
}

#[test]
fn deleting_a_lost_node_leaves_nothing() {
    let mut world = NodeFixture::new();
    let pod = world.container();
    world.must("ADD", "one", &pod.path(), &world.config());
    world.stop();
    world.etcdctl(&["del", "/calico/resources/v3/projectcalico.org/nodes/n1"]);
    let output = calicoctl(&world, &["delete", "node", "n1"]);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("does not exist")
            || String::from_utf8_lossy(&output.stderr).contains("does not exist"),
        "{output:?}"
    );
    let keys = world.stored("--keys-only");
    for part in ["/workloadendpoints/", "/handle/", "node.n1", "/host/n1/ipv4"] {
        assert!(!keys.contains(part), "{part}: {keys}");
    }
}

#[test]
fn the_system_is_checked() {
    let world = NodeFixture::without_node("10.77.0.0/24");
    let config = world.path("config");
    std::fs::write(&config, "CONFIG_NF_TABLES=y\n").unwrap();
    let output = calicoctl(&world, &["node", "checksystem", "-f", config.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.starts_with("Checking kernel version...\n\t\t") && text.contains("Checking kernel modules...\n"),
        "{text}"
    );
    assert!(text.contains("\t\tnf_tables           \t\t\t\t\tOK\n"), "{text}");
    assert_eq!(output.status.success(), !text.contains("FAIL"), "{output:?}");
}
