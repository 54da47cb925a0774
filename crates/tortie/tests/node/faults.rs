//! Invalid requests are rejected and leave nothing behind.

use crate::world::{NodeFixture, eventually};
use serde_json::json;

#[test]
fn bad_requests_leave_nothing() {
    let world = NodeFixture::new();
    let pod = world.container();
    let good = world.config();
    let with = |key: &str, value: serde_json::Value| {
        let mut config = good.clone();
        config[key] = value;
        config.to_string()
    };
    let good = good.to_string();
    let none = "/run/netns/no-such-namespace";
    for (what, config, netns, args, code) in [
        ("bad JSON", "{\"name\":".to_owned(), pod.path(), "", 6),
        ("no name", with("name", json!("")), pod.path(), "", 7),
        ("unknown version", with("cniVersion", json!("9.9.9")), pod.path(), "", 1),
        ("MTU out of range", with("mtu", json!(20)), pod.path(), "", 7),
        ("MTU too small for IPv6", with("mtu", json!(1000)), pod.path(), "", 7),
        ("other node", with("nodename", json!("n2")), pod.path(), "", 7),
        ("unknown IPAM", with("ipam", json!({"type": "no-such-plugin"})), pod.path(), "", 999),
        (
            "unknown pool",
            with("ipam", json!({"type": "calico-ipam", "ipv4_pools": ["nope"]})),
            pod.path(),
            "",
            7,
        ),
        ("missing namespace", good.clone(), none.to_owned(), "", 999),
        ("address outside pools", good.clone(), pod.path(), "IP=192.0.2.1", 999),
        ("no address", good.clone(), pod.path(), "IP=nonsense", 4),
        ("bad arguments", good.clone(), pod.path(), "nonsense", 4),
    ] {
        let said = world.plugin("calico", "ADD", "c1", &netns, &config, args);
        assert_eq!(said.code(), code, "{what}: {said:?}\n{}", world.log());
        world.assert_clean(what);
        assert!(!pod.ip(&["link"]).contains("eth0"), "{what}");
    }
}

#[test]
fn a_full_pool_refuses_without_a_trace() {
    let world = NodeFixture::with_pool("10.77.0.0/30");
    let mut config = world.config();
    config["ipam"] = json!({"type": "calico-ipam"});
    let pods: Vec<_> = (0..5).map(|_| world.container()).collect();
    for (i, pod) in pods.iter().enumerate().take(4) {
        world.must("ADD", &format!("c{i}"), &pod.path(), &config);
    }
    let before = world.traces();
    let said = world.cni("ADD", "c4", &pods[4].path(), &config);
    assert_eq!(said.code(), 999, "{said:?}");
    assert_eq!(world.traces(), before);
    // A dual-stack request for which only one family is available fails entirely.
    let said = world.cni("ADD", "c4", &pods[4].path(), &world.config());
    assert!(!said.success, "{said:?}");
    assert_eq!(world.traces(), before);
    world.must("DEL", "c0", &pods[0].path(), &config);
    world.must("ADD", "c4", &pods[4].path(), &config);
}

#[test]
fn without_a_daemon_cni_asks_to_retry() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let pod = world.container();
    let config = world.config();
    for command in ["ADD", "DEL", "CHECK", "STATUS"] {
        assert_eq!(world.cni(command, "c1", &pod.path(), &config).code(), 11, "{command}");
    }
    let versions = world.cni("VERSION", "", "", &config);
    assert_eq!(versions.json["supportedVersions"].as_array().map(Vec::len), Some(7));
    world.start(&[]);
    world.must("ADD", "c1", &pod.path(), &config);
    // After a kill and restart the daemon knows its attachments.
    world.stop();
    assert_eq!(world.cni("DEL", "c1", &pod.path(), &config).code(), 11);
    world.start(&[]);
    world.must("CHECK", "c1", &pod.path(), &config);
    world.must("DEL", "c1", &pod.path(), &config);
    world.assert_clean("DEL");
}

#[test]
fn containers_keep_their_network_without_the_store() {
    let mut world = NodeFixture::new();
    let (one, two) = (world.container(), world.container());
    let config = world.config();
    world.must("ADD", "c1", &one.path(), &config);
    let routes = world.host.ip(&["route"]);
    world.stop_store();
    for (command, container, pod) in [("ADD", "c2", &two), ("DEL", "c9", &two)] {
        let said = world.cni(command, container, &pod.path(), &config);
        assert_eq!(said.code(), 11, "{command}: {said:?}\n{}", world.log());
    }
    assert_eq!(world.host.ip(&["route"]), routes);
    assert!(!two.ip(&["link"]).contains("eth0"));
    world.start_store();
    world.must("DEL", "c2", &two.path(), &config);
    world.must("CHECK", "c1", &one.path(), &config);
    world.must("DEL", "c1", &one.path(), &config);
    world.assert_clean("DEL");
}

#[test]
fn no_address_without_a_pool_for_the_node() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    world.start(&[("CALICO_IPV4POOL_CIDR", "none"), ("CALICO_IPV6POOL_CIDR", "none")]);
    let pod = world.container();
    let refused = |what: &str| {
        let said = world.cni("ADD", "c1", &pod.path(), &world.config());
        assert_eq!(said.code(), 999, "{what}: {said:?}");
        world.assert_clean(what);
        assert!(!pod.ip(&["link"]).contains("eth0"), "{what}");
    };
    refused("no pool at all");
    let pool = |name: &str, selector: &str| {
        let pool = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": name},
            "spec": {"cidr": if name == "v4" { "10.77.0.0/24" } else { "fd77::/116" }, "nodeSelector": selector},
        });
        world.calicoctl(&["apply", "-f", "-"], &pool.to_string());
    };
    pool("v4", "rack == 'none'");
    refused("a pool of other nodes");
    pool("v4", "all()");
    refused("one family of two");
    pool("v6", "all()");
    eventually("both families are given", || world.cni("ADD", "c1", &pod.path(), &world.config()).success);
    world.must("DEL", "c1", &pod.path(), &world.config());
    world.assert_clean("DEL");
}

#[test]
fn an_assigned_address_stays_with_its_holder() {
    let world = NodeFixture::new();
    let (one, two) = (world.container(), world.container());
    let mut config = world.config();
    config["ipam"] = json!({"type": "calico-ipam"});
    let config = config.to_string();
    let holder = world.plugin("calico", "ADD", "c1", &one.path(), &config, "IP=10.77.0.9");
    assert!(holder.success, "{holder:?}");
    let before = world.traces();
    let said = world.plugin("calico", "ADD", "c2", &two.path(), &config, "IP=10.77.0.9");
    assert_eq!(said.code(), 999, "{said:?}");
    assert_eq!(world.traces(), before);
    assert!(!two.ip(&["link"]).contains("eth0"));
}

#[test]
fn names_that_are_taken_are_not_taken_away() {
    let world = NodeFixture::new();
    let (one, two) = (world.container(), world.container());
    let config = world.config();
    // Inside the container: an interface of another owner.
    one.ip(&["link", "add", "eth0", "type", "bridge"]);
    assert_eq!(world.cni("ADD", "c1", &one.path(), &config).code(), 999);
    world.assert_clean("eth0 is taken");
    assert!(one.ip(&["-d", "link", "show", "eth0"]).contains("bridge"));
    one.ip(&["link", "del", "eth0"]);
    world.host.ip(&["link", "add", "other", "type", "veth", "peer", "name", "eth0", "netns", one.name()]);
    assert_eq!(world.cni("ADD", "c1", &one.path(), &config).code(), 999);
    world.assert_clean("eth0 is another network's");
    assert!(one.ip(&["link"]).contains("eth0") && world.host.ip(&["link"]).contains("other"));
    world.host.ip(&["link", "del", "other"]);
    // On the host: an interface that cannot belong to a container.
    world.host.ip(&["link", "add", "calic1", "type", "bridge"]);
    assert_eq!(world.cni("ADD", "c1", &one.path(), &config).code(), 999);
    assert_eq!(world.traces(), ["calic1"]);
    assert!(world.host.ip(&["-d", "link", "show", "calic1"]).contains("bridge"));
    world.host.ip(&["link", "del", "calic1"]);
    // A veth pair that a crash left behind has no owner and is replaced.
    world.host.ip(&["link", "add", "calic1", "type", "veth", "peer", "name", "stale"]);
    world.must("ADD", "c1", &one.path(), &config);
    assert!(!world.host.ip(&["link"]).contains("stale"));
    world.must("DEL", "c1", &one.path(), &config);
    world.assert_clean("a stale pair");
    // Two container IDs with the same prefix.
    let (first, second) = ("0123456789abc", "0123456789abd");
    world.must("ADD", first, &one.path(), &config);
    let other = world.must("ADD", second, &two.path(), &config);
    assert!(other.addresses().iter().all(|address| one.pings(address)), "{}", world.log());
    world.must("DEL", first, &one.path(), &config);
    world.must("CHECK", second, &two.path(), &config);
    world.must("DEL", second, &two.path(), &config);
    world.assert_clean("names that begin alike");
}

#[test]
fn settings_that_cannot_be_changed_are_named() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    world.start_read_only();
    let pod = world.container();
    let said = world.cni("ADD", "c1", &pod.path(), &world.config());
    assert_eq!(said.code(), 999, "{said:?}");
    assert!(said.json["msg"].as_str().unwrap().contains("read-only"), "{said:?}");
    world.assert_clean("read-only settings");
    assert!(!pod.ip(&["link"]).contains("eth0"));
}
