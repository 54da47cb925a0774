//! Policy for pods that the plugins of EKS, AKS and GKE connect: they name interfaces as Calico does, with different
//! prefixes, and Tortie's plugin is not called.

use crate::manifests::{container_variables, object_of_kind};
use crate::world::{AttachedPod, KubernetesNodeFixture, NODE_NAME};
use serde_json::json;
use std::process::Command;
use tortie_testkit::{CalicoGroup, TestNamespace, run};

in_both_groups! { pods_of_cloud_plugins_get_policy }

/// The gateway of a pod: an address of no host, whose MAC address the plugins write into the pod.
const POD_GATEWAY: &str = "169.254.1.1";

/// The manifest for each prefix.
const MANIFESTS: [(&str, &str); 3] = [
    ("eni", include_str!("../../../../deploy/policy-only/eks.yaml")),
    ("azv", include_str!("../../../../deploy/policy-only/aks.yaml")),
    ("gke", include_str!("../../../../deploy/policy-only/gke.yaml")),
];
/// Variables that belong to the pod of the DaemonSet and not to a process of the test.
const POD_VARIABLES: [&str; 4] =
    ["DATASTORE_TYPE", "TORTIE_DAEMONSET", "TORTIE_HUB_SECRET", "TORTIE_STARTUP_TAINT"];

/// Returns the variables of the daemon in a manifest.
fn manifest_variables(manifest: &str) -> Vec<(&'static str, &'static str)> {
    let settings = object_of_kind(manifest, "ConfigMap")["data"].take();
    let variables = container_variables(&object_of_kind(manifest, "DaemonSet"), &settings).into_iter();
    let of_process = variables.filter(|(name, _)| !POD_VARIABLES.contains(&name.as_str()));
    of_process.map(|(name, value)| (&*name.leak(), &*value.leak())).collect()
}

/// Returns the name of the interface of a pod in the namespace shop, as the plugins compute it.
pub fn interface_name(prefix: &str, pod: &str) -> String {
    let digest =
        run(Command::new("sh").args(["-c", "printf %s \"$0\" | sha1sum"]).arg(format!("shop.{pod}")));
    format!("{prefix}{}", &digest[..11])
}

/// Connects a pod as the plugin of a cloud does. Kubernetes does not know its address yet.
fn wire(world: &KubernetesNodeFixture, prefix: &str, name: &str, address: &str) -> AttachedPod {
    world.server.add_pod("shop", name, NODE_NAME, json!({"pod": name}), json!([]));
    let netns = TestNamespace::new("pod");
    let host_end = interface_name(prefix, name);
    world.host.ip(&format!("link add {host_end} type veth peer name eth0 netns {}", netns.name()));
    let gateway_mac = world.host.json(&format!("link show dev {host_end}"))[0]["address"].clone();
    netns.ip(&format!("addr add {address}/32 dev eth0"));
    netns.ip("link set eth0 up");
    netns.ip(&format!("route add {POD_GATEWAY} dev eth0"));
    netns.ip(&format!("route add default via {POD_GATEWAY}"));
    netns.ip(&format!("neigh add {POD_GATEWAY} lladdr {} dev eth0", gateway_mac.as_str().unwrap()));
    world.host.ip(&format!("link set {host_end} up"));
    world.host.ip(&format!("route add {address}/32 dev {host_end}"));
    let addresses = vec![address.to_owned()];
    AttachedPod { namespace: "shop".to_owned(), name: name.to_owned(), netns, addresses }
}

fn pods_of_cloud_plugins_get_policy(group: CalicoGroup) {
    let mut world = KubernetesNodeFixture::without_node(group);
    world.host.exec("sysctl -qw net.ipv4.ip_forward=1");
    let kubeconfig = world.server.node_kubeconfig();
    for (number, (prefix, manifest)) in MANIFESTS.into_iter().enumerate() {
        world.variables = manifest_variables(manifest);
        assert!(world.variables.contains(&("FELIX_INTERFACEPREFIX", prefix)), "{:?}", world.variables);
        world.start(&kubeconfig);
        let [web_name, client_name] = ["web", "client"].map(|pod| format!("{pod}-{prefix}"));
        let web = wire(&world, prefix, &web_name, &format!("10.90.{number}.2"));
        let client = wire(&world, prefix, &client_name, &format!("10.90.{number}.3"));
        let routes = world.host.ip("-4 route");
        // The interfaces match the prefix and have no endpoint, so they are closed.
        world.wait_for(&client, &web, false);
        for pod in [&web, &client] {
            world.server.set_pod_addresses("shop", &pod.name, &pod.addresses);
        }
        world.wait_for(&client, &web, true);

        let selected = json!({"matchLabels": {"pod": web_name}});
        world.apply_policy(prefix, json!({"podSelector": selected, "policyTypes": ["Ingress"]}));
        world.wait_for(&client, &web, false);
        let from = |pod: &str| json!({"from": [{"podSelector": {"matchLabels": {"pod": pod}}}]});
        world.apply_policy(prefix, json!({"podSelector": selected, "ingress": [from(&client_name)]}));
        world.wait_for(&client, &web, true);

        assert_eq!(world.host.ip("-4 route"), routes);
        assert!(world.host.has_link(&interface_name(prefix, &web_name)));
    }
    let pools = world.tool("calicoctl", &["get", "ippools", "-o", "json"], "");
    let pools: serde_json::Value = serde_json::from_str(&pools).unwrap();
    assert!(pools["items"].as_array().is_none_or(Vec::is_empty), "{pools}");
}
