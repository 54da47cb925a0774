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
