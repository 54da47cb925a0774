//! Cluster policies of Kubernetes that select nodes: packets to a second machine, which is a node by its labels and
//! addresses in Kubernetes.

use crate::world::{AttachedPod, KubernetesNodeFixture, NODE_NAME};
use serde_json::{Value as Json, json};
use tortie_model::kubernetes::ClusterPolicyKind;
use tortie_testkit::{CalicoGroup, TestNamespace};

const MACHINE_NAME: &str = "n2";
const MACHINE_ADDRESSES: [&str; 2] = ["172.31.0.2", "fd31::2"];

impl KubernetesNodeFixture {
    /// Connects a second machine to the node and registers it in Kubernetes.
    fn add_machine(&self) -> AttachedPod {
        let netns = TestNamespace::new("machine");
        self.host.ip(&["link", "add", "eth1", "type", "veth", "peer", "name", "eth0", "netns", netns.name()]);
        for (machine, device, addresses) in [
            (&self.host, "eth1", ["172.31.0.1/24", "fd31::1/64"]),
            (&netns, "eth0", ["172.31.0.2/24", "fd31::2/64"]),
        ] {
            machine.ip(&["addr", "add", addresses[0], "dev", device]);
            machine.ip(&["addr", "add", addresses[1], "dev", device, "nodad"]);
            machine.ip(&["link", "set", device, "up"]);
        }
        netns.ip("route add default via 172.31.0.1");
        netns.ip("-6 route add default via fd31::1");
        self.server.add_node(MACHINE_NAME);
        self.set_machine_addresses(&MACHINE_ADDRESSES);
        let addresses = MACHINE_ADDRESSES.map(str::to_owned).to_vec();
        AttachedPod { namespace: String::new(), name: MACHINE_NAME.to_owned(), netns, addresses }
    }

    fn set_machine_addresses(&self, addresses: &[&str]) {
        let listed = addresses.iter().map(|address| json!({"type": "InternalIP", "address": address}));
        let status = json!({"addresses": listed.collect::<Vec<_>>()});
        self.server.merge(&format!("/api/v1/nodes/{MACHINE_NAME}/status"), &json!({"status": status}));
    }

    fn label_machine(&self, zone: &str) {
        let labels = json!({"metadata": {"labels": {"zone": zone}}});
        self.server.merge(&format!("/api/v1/nodes/{MACHINE_NAME}"), &labels);
    }

    fn delete_cluster_policy(&self, kind: ClusterPolicyKind, name: &str) {
        self.server.must("DELETE", &format!("{}/{name}", kind.api_path()), None);
    }
}

/// Returns a policy for all pods with one rule for the nodes of zone `a`.
fn policy_about_nodes(action: &str) -> Json {
    json!({"tier": "Admin", "priority": 10, "subject": {"namespaces": {}},
        "egress": [{"action": action, "to": [{"nodes": {"matchLabels": {"zone": "a"}}}]}]})
}

#[test]
fn cluster_policies_select_nodes_by_label() {
    let world = KubernetesNodeFixture::new(CalicoGroup::V3);
    let machine = world.add_machine();
    let (web, client) = (world.add("shop", "web", json!({})), world.add("shop", "client", json!({})));
    world.wait_for(&client, &machine, true);
    let kind = ClusterPolicyKind::ClusterNetworkPolicy;
    world.server.install_cluster_policies(kind);
    world.server.create_cluster_policy(kind, "nodes", &policy_about_nodes("Deny"));
    world.label_machine("a");
    world.wait_for(&client, &machine, false);
    world.wait_for(&client, &web, true);
    for address in MACHINE_ADDRESSES {
        let question = ["explain", "--from", "shop/client", "--to", address, "--port", "80"];
        let answer = world.try_tool("tortie", &question, "");
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(
            answer.starts_with("DENIED: tcp/80") && answer.contains("kcnp/nodes, egress rule 1"),
            "{answer}"
        );
    }
    // Labels and addresses of a node change while the policy stays.
    world.label_machine("b");
    world.wait_for(&client, &machine, true);
    world.label_machine("a");
    world.wait_for(&client, &machine, false);
    world.set_machine_addresses(&["172.31.0.9", MACHINE_ADDRESSES[1]]);
    world.wait("the former address is no peer", || client.pings(MACHINE_ADDRESSES[0]));
    assert!(!client.pings(MACHINE_ADDRESSES[1]));
    world.set_machine_addresses(&MACHINE_ADDRESSES);
    world.wait_for(&client, &machine, false);
    world.server.must("DELETE", &format!("/api/v1/nodes/{MACHINE_NAME}"), None);
    world.wait_for(&client, &machine, true);
}

#[test]
fn admin_and_baseline_policies_of_v1alpha1_hold() {
    let world = KubernetesNodeFixture::new(CalicoGroup::V3);
    let machine = world.add_machine();
    world.label_machine("a");
    let (web, client) =
        (world.add("shop", "web", json!({"role": "web"})), world.add("shop", "client", json!({})));
    world.wait_for(&client, &machine, true);
    let [admin, baseline] =
        [ClusterPolicyKind::AdminNetworkPolicy, ClusterPolicyKind::BaselineAdminNetworkPolicy];
    // The node is already running and discovers each kind when it is installed.
    world.server.install_cluster_policies(baseline);
    world.server.create_cluster_policy(baseline, "default", &policy_about_nodes("Deny"));
    world.wait_for(&client, &machine, false);
    world.wait_for(&client, &web, true);
    // The admin tier is evaluated before the baseline tier, and Pass leaves it.
    world.server.install_cluster_policies(admin);
    world.server.create_cluster_policy(admin, "late", &policy_about_nodes("Allow"));
    world.wait_for(&client, &machine, true);
    let mut early = policy_about_nodes("Pass");
    early["priority"] = json!(1);
    world.server.create_cluster_policy(admin, "early", &early);
    world.wait_for(&client, &machine, false);
    world.delete_cluster_policy(admin, "early");
    world.wait_for(&client, &machine, true);
    // An unreadable rule that denies closes its direction, and the rules before it stay in force.
    early["egress"] = json!([
        {"action": "Allow", "to": [{"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}},
            "podSelector": {"matchLabels": {"role": "web"}}}}]},
        {"action": "Deny", "to": [{"nodes": "all"}]},
    ]);
    world.server.create_cluster_policy(admin, "early", &early);
    world.wait_for(&client, &machine, false);
    world.wait_for(&client, &web, true);
    world.wait_for(&web, &client, false);
    // Without its definition, a kind has no policies.
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/adminnetworkpolicies.policy.networking.k8s.io";
    ["early", "late"].iter().for_each(|name| world.delete_cluster_policy(admin, name));
    world.wait_for(&web, &client, true);
    world.server.must("DELETE", definition, None);
    world.wait_for(&client, &machine, false);
    world.delete_cluster_policy(baseline, "default");
    world.wait_for(&client, &machine, true);
    assert!(world.tool("calicoctl", &["get", "node", NODE_NAME], "").contains(NODE_NAME));
}
