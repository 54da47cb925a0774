//! Pods are attached, exchange traffic as Kubernetes policies allow, and are detached.

use crate::world::{KubernetesNodeFixture, NODE_NAME};
use serde_json::json;
use tortie_model::kubernetes::ClusterPolicyKind;
use tortie_testkit::CalicoGroup;

in_both_groups! {
    pods_are_wired_and_policies_of_kubernetes_hold,
    sandboxes_are_replaced_and_finished_pods_ignored,
    the_tiers_of_cluster_network_policies_and_services,
}

fn pods_are_wired_and_policies_of_kubernetes_hold(group: CalicoGroup) {
    let mut world = KubernetesNodeFixture::new(group);
    let node = || world.server.must("GET", &format!("/api/v1/nodes/{NODE_NAME}"), None);
    assert_eq!(node()["metadata"]["annotations"]["projectcalico.org/IPv4Address"], "172.30.0.1/24");

    let web = world.add("shop", "web", json!({"role": "web"}));
    let client = world.add("shop", "client", json!({"role": "client"}));
    let foreign = world.add("other", "foreign", json!({"role": "client"}));
    assert_eq!(world.annotation(&web, "podIPs"), format!("{}/32,{}/128", web.addresses[0], web.addresses[1]));
    assert_eq!(world.annotation(&web, "containerID"), "shop-web-1");
    world.wait_for(&client, &web, true);
    world.wait_for(&foreign, &web, true);

    world.apply_policy(
        "closed",
        json!({"podSelector": {"matchLabels": {"role": "web"}}, "policyTypes": ["Ingress"]}),
    );
    world.wait_for(&client, &web, false);
    world.wait_for(&web, &client, true);
    let explain = |to: &str| {
        world.try_tool("tortie", &["explain", "--from", "shop/client", "--to", to, "--port", "80"], "")
    };
    let said = String::from_utf8_lossy(&explain("shop/web").stdout).into_owned();
    assert!(said.starts_with("DENIED: tcp/80"), "{said}");

    let from = |peer: serde_json::Value| json!({"podSelector": {"matchLabels": {"role": "web"}}, "ingress": [{"from": [peer]}]});
    world.apply_policy("open", from(json!({"podSelector": {"matchLabels": {"role": "client"}}})));
    world.wait_for(&client, &web, true);
    world.wait_for(&foreign, &web, false);
    let said = String::from_utf8_lossy(&explain("shop/web").stdout).into_owned();
    assert!(said.starts_with("ALLOWED: tcp/80"), "{said}");
    let listed = world.tool("calicoctl", &["get", "networkpolicies", "-n", "shop"], "");
    assert!(listed.contains("knp.default.closed") && listed.contains("knp.default.open"), "{listed}");

    // A namespace gets a label, which changes the labels that its pods inherit.
    world.apply_policy("open", from(json!({"namespaceSelector": {"matchLabels": {"team": "b"}}})));
    world.wait_for(&client, &web, false);
    world.server.merge("/api/v1/namespaces/other", &json!({"metadata": {"labels": {"team": "b"}}}));
    world.wait_for(&foreign, &web, true);
    world.server.merge("/api/v1/namespaces/other", &json!({"metadata": {"labels": {"team": null}}}));
    world.wait_for(&foreign, &web, false);

    let blocks = json!([{"from": [
        {"ipBlock": {"cidr": "10.77.0.0/24", "except": [format!("{}/32", foreign.addresses[0])]}},
        {"ipBlock": {"cidr": "fd77::/116", "except": [format!("{}/128", foreign.addresses[1])]}},
    ]}]);
    world.apply_policy("open", json!({"podSelector": {"matchLabels": {"role": "web"}}, "ingress": blocks}));
    world.wait_for(&client, &web, true);
    world.wait_for(&foreign, &web, false);

    // Pods without an attachment record, as another program leaves them, are adopted from Kubernetes and the kernel.
    world.restart_without_journal();
    for pod in [&web, &client, &foreign] {
        let again = world.plugin("ADD", pod, "1").unwrap_or_else(|said| panic!("{said}\n{}", world.log()));
        let addresses: Vec<&str> =
            again["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
        assert!(
            pod.addresses.iter().zip(&addresses).all(|(before, now)| now.split('/').next() == Some(before)),
            "{addresses:?}"
        );
    }
    world.wait_for(&client, &web, true);
    world.wait_for(&foreign, &web, false);

    for pod in [&web, &client, &foreign] {
        world.detach(pod, "1");
        assert_eq!(world.annotation(pod, "podIPs"), "");
        world.server.remove_pod(&pod.namespace, &pod.name);
    }
    world.assert_clean();
}

fn sandboxes_are_replaced_and_finished_pods_ignored(group: CalicoGroup) {
    let world = KubernetesNodeFixture::new(group);
    let web = world.add("shop", "web", json!({"role": "web"}));
    let client = world.add("shop", "client", json!({}));
    world.wait_for(&client, &web, true);

    // Kubernetes still reports the addresses of the old sandbox when the new one is attached.
    let again = world.attach("shop", "web", "2");
    assert_ne!(again.addresses, web.addresses);
    world.wait_for(&client, &again, true);
    assert_eq!(world.annotation(&again, "containerID"), "shop-web-2");
    world.detach(&web, "1");
    world.server.set_pod_addresses("shop", "web", &again.addresses);
    world.wait_for(&client, &again, true);

    // A completed pod no longer matches by its label: its address may be assigned to another pod.
    let peers = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "web"}}}]}]});
    world.apply_policy("own", peers);
    world.wait_for(&again, &client, true);
    let path = "/api/v1/namespaces/shop/pods/web/status";
    world.server.merge(path, &json!({"status": {"phase": "Succeeded"}}));
    world.wait_for(&again, &client, false);

    world.detach(&again, "2");
    world.detach(&client, "1");
    ["web", "client"].iter().for_each(|pod| world.server.remove_pod("shop", pod));
    world.assert_clean();
}

fn the_tiers_of_cluster_network_policies_and_services(group: CalicoGroup) {
    let world = KubernetesNodeFixture::new(group);
    let web = world.add("shop", "web", json!({"role": "web"}));
    let client = world.add("shop", "client", json!({"role": "client"}));
    world.wait_for(&client, &web, true);
    // The node is already running and discovers the new kind.
    world.server.install_cluster_policies(ClusterPolicyKind::ClusterNetworkPolicy);
    let cluster = |name: &str, tier: &str, action: &str| {
        let rule = json!({"name": "r", "action": action, "from": [{"pods": {"namespaceSelector": {},
            "podSelector": {"matchLabels": {"role": "client"}}}}]});
        let subject = json!({"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}},
            "podSelector": {"matchLabels": {"role": "web"}}}});
        let spec = json!({"tier": tier, "priority": 10, "subject": subject, "ingress": [rule]});
        world.server.create_cluster_policy(ClusterPolicyKind::ClusterNetworkPolicy, name, &spec);
    };
    // The Baseline tier is evaluated after all other policies, the Admin tier before them.
    cluster("last", "Baseline", "Deny");
    world.wait_for(&client, &web, false);
    world.apply_policy("open", json!({"podSelector": {}, "ingress": [{}]}));
    world.wait_for(&client, &web, true);
    cluster("first", "Admin", "Deny");
    world.wait_for(&client, &web, false);
    let path = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies/first";
    world.server.must("DELETE", path, None);
    world.wait_for(&client, &web, true);

    // A Calico policy that allows the endpoints of a service, which change.
    world.server.must("DELETE", "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/open", None);
    let policy = json!({"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy",
        "metadata": {"name": "of-service", "namespace": "shop"},
        "spec": {"selector": "role == 'web'", "types": ["Ingress"],
            "ingress": [{"action": "Allow", "source": {"services": {"name": "clients", "namespace": "shop"}}}]}});
    world.tool("calicoctl", &["apply", "-f", "-"], &policy.to_string());
    world.wait_for(&client, &web, false);
    for (name, kind, address) in [("v4", "IPv4", &client.addresses[0]), ("v6", "IPv6", &client.addresses[1])]
    {
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "clients"}},
            "endpoints": [{"addresses": [address]}], "ports": [{"port": 80}]});
        world.server.create("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", &slice);
    }
    world.wait_for(&client, &web, true);
    world.server.must("DELETE", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/v4", None);
    world.wait("the address of the slice that is gone", || !client.pings(&web.addresses[0]));
    assert!(client.pings(&web.addresses[1]));
}
