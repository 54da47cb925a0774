//! Tests of `tortie lab`: a cluster on this machine, from `lab up` to `lab down` without leftovers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bgp;
mod capture;
mod conformance;
mod encap;
#[path = "../node/felix_chains.rs"]
mod felix_chains;
mod hub;
mod l7;
mod lab;
mod migration;
mod pinger;
mod podman;
mod restart;
mod stream;
#[path = "../node/soak/traffic.rs"]
mod traffic;

use lab::{TestLab, family};
use serde_json::Value;
use std::process::{Command, Stdio};

#[test]
fn three_nodes_and_their_pods() {
    let lab = TestLab::up(&["--nodes", "3"]);
    let again = lab.refused(&["up"]);
    let hint = format!("`tortie lab --name {} down`", lab.name);
    assert!(again.contains("already") && again.contains(&hint), "a second lab of the same name: {again}");
    let nodes = ["node1", "node2", "node3"];
    let pods: Vec<(String, Vec<String>)> = nodes
        .iter()
        .map(|node| {
            let pod = node.replace("node", "pod");
            let addresses = lab.add(&pod, node, &["--namespace", "shop", "--label", "app=web"]);
            assert_eq!(addresses.len(), 2, "{addresses:?}");
            (pod, addresses)
        })
        .collect();
    for (from, _) in &pods {
        for address in pods.iter().filter(|(to, _)| to != from).flat_map(|(_, addresses)| addresses) {
            lab.ping(from, address);
        }
    }
    // A node reaches pods on other nodes too.
    lab.ping("node1", family(&pods[2].1, false));

    let status = lab.status();
    for (index, (pod, addresses)) in pods.iter().enumerate() {
        let node = &status["nodes"][index];
        assert_eq!(node["name"], nodes[index]);
        assert_eq!(node["problem"], Value::Null);
        assert!(node["pid"].is_u64(), "{node}");
        assert_eq!(node["blocks"].as_array().unwrap().len(), 2, "{node}");
        assert_eq!(node["pods"][0]["name"], pod.as_str());
        assert_eq!(node["pods"][0]["addresses"], serde_json::json!(addresses));
    }
    let routes = lab.run(&["exec", "node1", "--", "ip", "route"]);
    let own = family(&pods[0].1, false);
    assert!(routes.contains(&format!("{own} dev cali")), "{routes}");
    assert_eq!(routes.matches("blackhole ").count(), 1, "{routes}");
    assert!(routes.contains("/26 via 10.10.1.2") && routes.contains("/26 via 10.10.1.3"), "{routes}");
    assert!(lab.picture().contains(&format!("{own} dev cali")), "{}", lab.picture());

    // Commands on a node use that host's tools and configuration.
    let listed = lab.run(&["exec", "node2", "--", "calicoctl", "get", "nodes"]);
    assert!(nodes.iter().all(|node| listed.contains(node)), "{listed}");
    assert!(lab.run(&["exec", "node2", "--", "tortie", "version"]).starts_with("tortie "));
    let code = lab.output(&["exec", "pod1", "--", "sh", "-c", "exit 7"]).status.code();
    assert_eq!(code, Some(7), "a command's exit code is passed on");
    let endpoint = lab.run(&["ctl", "get", "workloadendpoints", "-n", "shop", "-o", "yaml"]);
    assert!(endpoint.contains("app: web"), "{endpoint}");
    assert!(endpoint.contains("- kns.shop"), "{endpoint}");
    let profile = lab.run(&["ctl", "get", "profile", "kns.shop", "-o", "yaml"]);
    for label in ["pcns.kubernetes.io/metadata.name: shop", "pcns.projectcalico.org/name: shop"] {
        assert!(profile.contains(label), "{profile}");
    }

    let explained = lab.run(&["explain", "--from", "shop/pod1", "--to", "shop/pod2", "--port", "80"]);
    assert!(explained.starts_with("ALLOWED: tcp/80"), "{explained}");
    let logged = lab.run(&["logs", "node1"]);
    assert!(!logged.is_empty() && logged.lines().all(|line| line.starts_with("node1 | ")), "{logged}");
    assert!(lab.run(&["bgp", "node2"]).contains("node2  no sessions"));
    // CALICOCTL_CONFIG is set only if the machine has a calicoctl.cfg, so that an ETCD_ENDPOINTS that the user sets
    // afterwards takes effect.
    let by_file = std::path::Path::new("/etc/calico/calicoctl.cfg").exists();
    assert_eq!(lab.run(&["env"]).contains("CALICOCTL_CONFIG"), by_file);

    assert!(lab.refused(&["pod", "add", "pod1", "--node", "node2"]).contains("already"));
    assert!(lab.refused(&["pod", "add", "x", "--node", "node9"]).contains("there are node1, node2, node3"));
    assert!(lab.refused(&["exec", "nobody", "--", "true"]).contains("neither a node nor a pod"));

    // Pods keep their network while their node's daemon is down; after a restart it accepts requests again.
    lab.run(&["node", "stop", "node3", "--kill"]);
    lab.ping("pod1", family(&pods[2].1, true));
    assert!(lab.refused(&["pod", "add", "late", "--node", "node3"]).contains("code 11"));
    lab.run(&["node", "start", "node3"]);

    for (pod, _) in &pods {
        lab.run(&["pod", "del", pod]);
    }
    assert!(lab.refused(&["pod", "del", "pod1"]).contains("there is no pod pod1"));
    let remaining = lab.namespaces();
    assert!(remaining.iter().all(|name| !name.contains("-pod-")), "{remaining:?}");
    for node in nodes {
        let left = lab.run(&["exec", node, "--", "ip", "-o", "link"]);
        assert!(!left.contains("cali"), "{node}: {left}");
        let left = lab.run(&["exec", node, "--", "ip", "route"]);
        assert!(!left.contains("cali"), "{node}: {left}");
    }
    let left = lab.run(&["ctl", "get", "workloadendpoints", "-A", "-o", "yaml"]);
    assert!(left.contains("items: []"), "{left}");
    let check = lab.run(&["ctl", "ipam", "check"]);
    assert!(check.contains("found 0 problems"), "{check}");

    lab.run(&["down"]);
    assert_eq!(lab.traces(), Vec::<String>::new());
    lab.run(&["down"]);
    assert!(lab.refused(&["status"]).contains("no lab"));
}

#[test]
fn on_etcd_with_one_family_and_racks() {
    let lab =
        TestLab::up(&["--nodes", "3", "--datastore", "etcd", "--topology", "l3", "--pool", "10.99.0.0/24"]);
    let first = lab.add("a", "node1", &[]);
    let second = lab.add("b", "node2", &[]);
    assert_eq!((first.len(), second.len()), (1, 1), "{first:?} {second:?}");
    assert!(first[0].starts_with("10.99.0."), "{first:?}");
    lab.ping("a", &second[0]);
    // The other rack is behind the router.
    lab.ping("node1", "10.10.2.3");
    lab.ping("node3", "fd00:10:10:1::1");

    let script = format!("{}\netcdctl get --prefix --keys-only /calico/resources", lab.run(&["env"]));
    let keys = Command::new("sh").args(["-c", &script]).output().unwrap();
    let keys = String::from_utf8(keys.stdout).unwrap();
    assert!(keys.contains("/nodes/node3") && keys.contains("/ippools/lab-ipv4-1"), "{keys}");

    lab.run(&["down"]);
    assert_eq!(lab.traces(), Vec::<String>::new());
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let lab = TestLab::new();
    let output = lab.command(&["up", "--datastore", "etcd"]).env("PATH", "/nonexistent").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("etcd"), "{said}");
    assert_eq!(lab.traces(), Vec::<String>::new());
}

#[test]
fn what_a_killed_start_left_is_removed() {
    for step in ["-net", "-node2"] {
        let lab = TestLab::new();
        let mut up = lab.command(&["up"]).stderr(Stdio::null()).spawn().unwrap();
        while !lab.namespaces().iter().any(|name| name.ends_with(step)) {
            assert!(up.try_wait().unwrap().is_none(), "up ended before {step}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        up.kill().unwrap();
        up.wait().unwrap();
        assert!(lab.refused(&["up"]).contains("already"));
        lab.run(&["down"]);
        assert_eq!(lab.traces(), Vec::<String>::new());
    }
}

#[test]
fn lab_follows_logs_and_shows_resource_usage() {
    let lab = TestLab::up(&["--nodes", "1"]);
    let file = lab.dir().join("followed");
    let mut command = lab.command(&["logs", "-f", "node1"]);
    let _follower = tortie_testkit::TestProcess::start(command.stdout(std::fs::File::create(&file).unwrap()));
    let followed = || std::fs::read_to_string(&file).unwrap();
    tortie_testkit::eventually("what is there is printed", || !followed().is_empty());
    let before = followed().lines().count();
    // Adding a pod writes a line to the node's log.
    lab.add("web", "node1", &[]);
    tortie_testkit::eventually("what comes is printed", || followed().lines().count() > before);
    assert!(followed().lines().all(|line| line.starts_with("node1 | ")), "{}", followed());

    let table = lab.run(&["top", "--count", "2", "--interval", "1"]);
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("node1")).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert!(rows.iter().all(|row| row.contains("running") && row.contains(" MiB")), "{table}");
    lab.run(&["node", "stop", "node1"]);
    assert!(lab.run(&["top", "--count", "1", "--interval", "1"]).contains("node1  stopped"));
    let hint = lab.refused(&["exec", "wbe", "--", "true"]);
    assert!(hint.contains("did you mean web?"), "{hint}");
}

/// On a machine where `ip netns add` has never been used: the first use turns the directory of namespaces into a
/// mount.
#[test]
fn later_namespaces_do_not_hide_the_lab() {
    let script = r#"
        mount --make-rprivate /
        mount -t tmpfs none /run
        "$0" lab --name "$1" up --nodes 1
        ip netns add "$1-other"
        "$0" lab --name "$1" down
        ip netns del "$1-other"
        test -z "$(ls /run/netns)""#;
    let name = TestLab::new().name.clone();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, env!("CARGO_BIN_EXE_tortie"), &name]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
