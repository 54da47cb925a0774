//! What is wrong is refused, and leaves nothing behind.

use crate::world::World;
use serde_json::json;

#[test]
fn bad_requests_leave_nothing() {
    let world = World::new();
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
    let world = World::with_pool("10.77.0.0/30");
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
    // A dual-stack request that gets only one family gets none.
    let said = world.cni("ADD", "c4", &pods[4].path(), &world.config());
    assert!(!said.success, "{said:?}");
    assert_eq!(world.traces(), before);
    world.must("DEL", "c0", &pods[0].path(), &config);
    world.must("ADD", "c4", &pods[4].path(), &config);
}

#[test]
fn without_a_daemon_the_runtime_is_told_to_try_again() {
    let mut world = World::without_node("10.77.0.0/24");
    let pod = world.container();
    let config = world.config();
    for command in ["ADD", "DEL", "CHECK", "STATUS"] {
        assert_eq!(world.cni(command, "c1", &pod.path(), &config).code(), 11, "{command}");
    }
    let versions = world.cni("VERSION", "", "", &config);
    assert_eq!(versions.json["supportedVersions"].as_array().map(Vec::len), Some(7));
    world.start(&[]);
    world.must("ADD", "c1", &pod.path(), &config);
    // Killed and started again, the daemon knows what it attached.
    world.stop();
    assert_eq!(world.cni("DEL", "c1", &pod.path(), &config).code(), 11);
    world.start(&[]);
    world.must("CHECK", "c1", &pod.path(), &config);
    world.must("DEL", "c1", &pod.path(), &config);
    world.assert_clean("DEL");
}
