//! Floating IPs: a pod may get one from a pool, but no address that belongs to another object.

use crate::world::{AttachedPod, KubernetesNodeFixture, NODE_NAME};
use serde_json::json;
use tortie_testkit::{CalicoGroup, TestNamespace};

const FELIX_CONFIGURATION_PATH: &str = "/apis/projectcalico.org/v3/felixconfigurations/default";
const GRANTED_ADDRESS: &str = "10.78.0.9";

impl KubernetesNodeFixture {
    fn set_floating(&self, setting: &str) {
        self.server.merge(FELIX_CONFIGURATION_PATH, &json!({"spec": {"floatingIPs": setting}}));
    }

    /// Requests a floating address for a pod by annotation.
    fn ask_for(&self, pod: &str, address: &str) {
        let annotation = json!({"cni.projectcalico.org/floatingIPs": json!([address]).to_string()});
        let path = format!("/api/v1/namespaces/shop/pods/{pod}");
        self.server.merge(&path, &json!({"metadata": {"annotations": annotation}}));
    }

    /// Returns the NAT rules and routes of floating addresses.
    fn mappings(&self) -> String {
        let table = self.host.exec(&["nft", "list", "table", "inet", "tortie"]);
        let lines = table.lines().filter(|line| line.contains("floating") || line.contains(GRANTED_ADDRESS));
        let routes = self.host.exec(&["ip", "-o", "route", "show", GRANTED_ADDRESS]);
        lines.chain([routes.as_str()]).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn pods_take_no_floating_address_of_others() {
    let mut world = KubernetesNodeFixture::new(CalicoGroup::V3);
    let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "floating"},
        "spec": {"cidr": "10.78.0.0/24", "nodeSelector": "!all()"}});
    world.server.create("/apis/projectcalico.org/v3/ippools", &pool);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "externalIPs": [GRANTED_ADDRESS], "ports": [{"port": 80}]}});
    world.server.create("/api/v1/namespaces/shop/services", &service);
    let assigned = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.78.0.66"}]}}});
    world.server.merge("/api/v1/namespaces/shop/services/web/status", &assigned);
    world.set_floating("Enabled");
    let victim = world.add("shop", "victim", json!({}));
    let client = world.add("shop", "client", json!({}));
    let netns = TestNamespace::new("pod");
    world.server.add_pod("shop", "greedy", NODE_NAME, json!({}), json!([]));
    let greedy =
        AttachedPod { namespace: "shop".into(), name: "greedy".into(), netns, addresses: Vec::new() };

    world.ask_for("greedy", GRANTED_ADDRESS);
    let refusal = world.plugin("ADD", &greedy, "1").unwrap_err();
    assert!(refusal.contains("requested feature is not enabled: floating_ips"), "{refusal}");
    world.feature_control = json!({"floating_ips": true});
    // Addresses of a node, the API server, a service and a pod, and an address outside all pools.
    for address in ["172.30.0.1", "127.0.0.1", "10.78.0.66", &victim.addresses[0], "203.0.113.1"] {
        world.ask_for("greedy", address);
        let refusal = world.plugin("ADD", &greedy, "1").unwrap_err();
        assert!(refusal.contains(&format!("floating addresses refused: {address}: ")), "{refusal}");
        assert_eq!(world.mappings(), "", "{address}");
    }
    world.wait_for(&client, &victim, true);

    world.ask_for("greedy", GRANTED_ADDRESS);
    let greedy = world.attach("shop", "greedy", "1");
    world.server.set_pod_addresses("shop", "greedy", &greedy.addresses);
    world.wait("the client reaches the pod", || client.pings(GRANTED_ADDRESS));
    assert!(!world.host.reaches(GRANTED_ADDRESS), "what the node itself sends is not translated");

    world.set_floating("Disabled");
    world.wait("the mapping goes with the setting", || world.mappings().is_empty());
    world.set_floating("Enabled");
    world.wait("and comes back with it", || client.pings(GRANTED_ADDRESS));
    world.detach(&greedy, "1");
    world.server.remove_pod("shop", "greedy");
    world.wait("the mapping goes with the pod", || world.mappings().is_empty());
}
