//! CNI network configurations as in Calico's documentation.

use crate::world::NodeFixture;
use serde_json::{Value, json};

/// Parses a documented configuration and adds the socket of this test's node.
fn configuration(world: &NodeFixture, text: &str) -> Value {
    let mut config: Value = serde_json::from_str(text).unwrap();
    config["tortie_socket"] = world.config()["tortie_socket"].clone();
    config
}

#[test]
fn the_textbook_s_configurations_work_as_written() {
    let world = NodeFixture::new();
    let pool = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: by-name}\nspec: {cidr: 10.78.0.0/24}\n";
    world.calicoctl(&["create", "-f", "-"], pool);
    let kubeconfig = world.path("kubeconfig");
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]});
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let with_kubeconfig = format!(
        r#"{{"name":"any_name","cniVersion":"0.1.0","type":"calico","kubernetes":{{"kubeconfig":"{}"}},"ipam":{{"type":"calico-ipam"}}}}"#,
        kubeconfig.display()
    );
    for (text, prefix) in [
        (r#"{"name":"any_name","cniVersion":"0.1.0","type":"calico","ipam":{"type":"calico-ipam"}}"#, "10.7"),
        (
            r#"{"name":"any_name","cniVersion":"0.1.0","type":"calico","nodename":"n1","ipam":{"type":"calico-ipam"}}"#,
            "10.7",
        ),
        (
            r#"{"name":"any_name","cniVersion":"0.1.0","type":"calico","log_level":"DEBUG","ipam":{"type":"calico-ipam"}}"#,
            "10.7",
        ),
        (
            r#"{"name":"any_name","cniVersion":"0.1.0","type":"calico","ipam":{"type":"calico-ipam","assign_ipv4":"true","assign_ipv6":"true","ipv4_pools":["10.78.0.0/24"],"ipv6_pools":["fd77::/116"]}}"#,
            "10.78.0.",
        ),
        (
            r#"{"name":"any_name","cniVersion":"0.1.0","type":"calico","ipam":{"type":"calico-ipam","ipv4_pools":["by-name"]}}"#,
            "10.78.0.",
        ),
        (
            r#"{"name":"any_name","cniVersion":"0.1.0","type":"calico","policy":{"type":"k8s"},"ipam":{"type":"calico-ipam"}}"#,
            "10.7",
        ),
        (&with_kubeconfig, "10.7"),
    ] {
        let config = configuration(&world, text);
        let pod = world.container();
        let said = world.must("ADD", "c1", &pod.path(), &config);
        let address = said.json["ip4"]["ip"].as_str().unwrap_or_default();
        assert!(address.starts_with(prefix), "{text}: {said:?}");
        world.must("DEL", "c1", &pod.path(), &config);
        world.assert_clean(text);
    }
    let profiles = world.calicoctl(&["get", "profiles"], "");
    assert!(profiles.lines().any(|line| line.starts_with("any-name-")), "{profiles}");
}

#[test]
fn a_missing_kubeconfig_is_an_error() {
    let world = NodeFixture::new();
    let mut config = world.config();
    config["kubernetes"] = json!({"kubeconfig": "/nonexistent/kubeconfig"});
    let pod = world.container();
    let said = world.cni("ADD", "c1", &pod.path(), &config);
    assert!(!said.success && said.json.to_string().contains("/nonexistent/kubeconfig"), "{said:?}");
    world.assert_clean("an ADD that was refused");
}

#[test]
fn the_log_file_has_a_line_per_request() {
    let world = NodeFixture::new();
    let path = world.path("log/cni/cni.log");
    let configure = |level: &str| {
        let mut config = world.config();
        config["log_file_path"] = json!(path);
        config["log_level"] = json!(level);
        config["datastore_type"] = json!("etcdv3");
        config["etcd_endpoints"] = json!("http://192.0.2.1:2379");
        config
    };
    let lines = || -> Vec<String> {
        std::fs::read_to_string(&path).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    let pod = world.container();
    world.must("ADD", "c1", &pod.path(), &configure("error"));
    assert_eq!(lines(), Vec::<String>::new());
    assert!(!world.cni("ADD", "c1", "/nonexistent", &configure("error")).success);
    assert_eq!(lines().len(), 1);
    assert!(
        lines()[0].contains("[ERROR]") && lines()[0].contains("calico ADD CNI_CONTAINERID=c1"),
        "{:?}",
        lines()
    );
    world.must("DEL", "c1", &pod.path(), &configure("INFO"));
    assert!(lines()[1].contains("[INFO]") && lines()[1].contains("calico DEL"), "{:?}", lines());
    assert!(lines()[1].contains(": done in "), "{:?}", lines());
    let address = world.must("ADD", "c2", &pod.path(), &configure("debug")).addresses()[0].clone();
    assert!(lines().last().unwrap().contains(&address), "{:?}", lines());
    world.must("DEL", "c2", &pod.path(), &configure("debug"));
    let log = world.log();
    assert_eq!(log.matches("the network configuration names a datastore").count(), 1, "{log}");
    assert!(log.contains("etcd_endpoints") && !log.contains("192.0.2.1"), "{log}");
}

#[test]
fn several_pools_are_used_in_turn() {
    let world = NodeFixture::new();
    for (name, cidr) in [("first", "10.78.0.0/30"), ("second", "10.79.0.0/30")] {
        let pool = format!(
            "{{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {{name: {name}}}, spec: {{cidr: {cidr}, blockSize: 30}}}}"
        );
        world.calicoctl(&["create", "-f", "-"], &pool);
    }
    let mut config = world.config();
    // Host bits of a pool are ignored, as in Calico. Without cniVersion the result has the form of version 0.2.0.
    config["ipam"] = json!({"type": "calico-ipam", "assign_ipv6": "true",
        "ipv4_pools": ["10.78.0.2/30", "second"], "ipv6_pools": ["fd77::7/116"]});
    config.as_object_mut().unwrap().remove("cniVersion");
    let pods: Vec<_> = (0..6).map(|_| world.container()).collect();
    let mut pools = std::collections::BTreeSet::new();
    for (number, pod) in pods.iter().enumerate() {
        let said = world.must("ADD", &format!("c{number}"), &pod.path(), &config);
        let address = said.json["ip4"]["ip"].as_str().unwrap_or_default().to_owned();
        pools.insert(address.split('.').take(2).collect::<Vec<_>>().join("."));
        assert!(said.json["ip6"]["ip"].as_str().unwrap_or_default().starts_with("fd77::"), "{said:?}");
    }
    assert_eq!(pools.into_iter().collect::<Vec<_>>(), ["10.78", "10.79"]);
    for (number, pod) in pods.iter().enumerate() {
        world.must("DEL", &format!("c{number}"), &pod.path(), &config);
    }
    world.assert_clean("DEL");
}

#[test]
fn a_configured_mtu_is_used() {
    let world = NodeFixture::new();
    let (one, two) = (world.container(), world.container());
    let mut config = world.config();
    config["mtu"] = json!(1440);
    world.must("ADD", "c1", &one.path(), &config);
    let address = world.must("ADD", "c2", &two.path(), &config).addresses()[0].clone();
    let links: Value = serde_json::from_str(&world.host.ip(&["-j", "link"])).unwrap();
    let own =
        links.as_array().unwrap().iter().filter(|link| link["ifname"].as_str().unwrap().starts_with("cali"));
    assert_eq!(own.map(|link| link["mtu"].as_u64().unwrap()).collect::<Vec<_>>(), [1440, 1440], "{links}");
    assert!(one.ip(&["link", "show", "eth0"]).contains("mtu 1440"));
    assert!(one.pings(&address), "{}", world.log());
    for (name, pod) in [("c1", &one), ("c2", &two)] {
        world.must("DEL", name, &pod.path(), &config);
    }
    world.assert_clean("DEL");
}
