//! Services with addresses in the nodes' own subnet: a host of the subnet reaches them without a route.

use super::{SERVICES_PATH, ServiceCluster};
use serde_json::json;
use tortie_testkit::TestNamespace;

const SERVICE_ADDRESS_V4: &str = "172.31.0.193";
const SERVICE_ADDRESS_V6: &str = "fd31::c1";
/// Addresses that are requested in the spec, and set in the status from a pool for pods.
const UNASSIGNED_ADDRESSES: [&str; 2] = ["172.31.0.194", "172.31.0.210"];
const NODE_NAMES: [&str; 2] = ["n1", "n2"];

impl ServiceCluster {
    fn felix(&self, reachability: &str) {
        let spec = json!({"spec": {"localSubnetL2Reachability": reachability}});
        self.server.merge("/apis/projectcalico.org/v3/felixconfigurations/default", &spec);
    }

    /// Returns the nodes that answer ARP or NDP for an address.
    fn answering(&self, address: &str) -> Vec<&'static str> {
        let family = if address.contains(':') { "-6" } else { "-4" };
        let answers = |node: &TestNamespace| node.ip(&[family, "neigh", "show", "proxy"]).contains(address);
        NODE_NAMES
            .into_iter()
            .zip(&self.namespaces[1..])
            .filter(|(_, node)| answers(node))
            .map(|(name, _)| name)
            .collect()
    }

    fn node(&self, name: &str) -> &TestNamespace {
        &self.namespaces[if name == "n1" { 1 } else { 2 }]
    }
}

/// Flushes the neighbour cache of the host.
fn forget(host: &TestNamespace) {
    host.ip("-4 neigh flush dev eth0");
    host.ip("-6 neigh flush dev eth0");
}

fn fetches(host: &TestNamespace) -> bool {
    forget(host);
    host.try_exec(&["curl", "-s", "--max-time", "5", &format!("http://{SERVICE_ADDRESS_V4}/")]).stdout
        == b"web"
}

fn pings(host: &TestNamespace) -> bool {
    forget(host);
    host.try_exec(&["ping", "-n", "-c", "1", "-W", "2", SERVICE_ADDRESS_V6]).status.success()
}

fn through_loopback(node: &TestNamespace) -> u64 {
    node.json("-s link show dev lo")[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

#[test]
fn hosts_of_the_subnet_reach_proxied_services() {
    let mut cluster = ServiceCluster::new();
    for (name, cidr, size, allowed) in [
        ("link-v4", "172.31.0.192/28", 28, "LoadBalancer"),
        ("link-v6", "fd31::c0/124", 124, "LoadBalancer"),
        ("link-pods", "172.31.0.208/28", 28, "Workload"),
    ] {
        let nodes = if allowed == "Workload" { "!all()" } else { "all()" };
        let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": name}, "spec":
            {"cidr": cidr, "blockSize": size, "allowedUses": [allowed], "nodeSelector": nodes}});
        cluster.server.create("/apis/projectcalico.org/v3/ippools", &pool);
    }
    cluster.start_proxies();
    let pod = cluster.start_web_server();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
        "type": "LoadBalancer", "clusterIP": "10.96.7.7", "ports": [{"port": 80}], "selector": {"app": "web"}}});
    cluster.server.create(SERVICES_PATH, &service);
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": SERVICE_ADDRESS_V4}, {"ip": SERVICE_ADDRESS_V6}]}}});
    cluster.server.merge(&format!("{SERVICES_PATH}/web/status"), &status);
    cluster.endpoints_at("web", &[(pod, "n2", true)]);
    // kube-proxy runs without IPv6 here: let each node answer these packets itself.
    for node in NODE_NAMES {
        cluster.node(node).nft(&format!(
            "table ip6 service {{ chain to {{ type nat hook prerouting priority -100; ip6 daddr {SERVICE_ADDRESS_V6} redirect; }}; }}"
        ));
    }
    let thief = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "thief"}, "spec": {
        "type": "LoadBalancer", "loadBalancerIP": UNASSIGNED_ADDRESSES[0], "ports": [{"port": 80}]}});
    cluster.server.create(SERVICES_PATH, &thief);
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": UNASSIGNED_ADDRESSES[1]}]}}});
    cluster.server.merge(&format!("{SERVICES_PATH}/thief/status"), &status);
    let host = &cluster.namespaces[0];
    assert!(!fetches(host) && !pings(host), "nobody answers for them unless it is asked for");

    cluster.felix("PodsAndLoadBalancers");
    cluster.wait("the service is reached by IPv4", |_| fetches(host));
    cluster.wait("and by IPv6", |_| pings(host));
    for address in [SERVICE_ADDRESS_V4, SERVICE_ADDRESS_V6] {
        assert_eq!(cluster.answering(address).len(), 1, "one node answers for {address}");
    }
    for address in UNASSIGNED_ADDRESSES {
        assert_eq!(cluster.answering(address), [""; 0], "{address}");
    }
    // Packets that no service accepts must not loop in the node that answers.
    let owner = cluster.node(cluster.answering(SERVICE_ADDRESS_V4)[0]);
    let before = through_loopback(owner);
    assert!(
        !host
            .try_exec(&["ping", "-n", "-c", "3", "-i", "0.2", "-W", "1", SERVICE_ADDRESS_V4])
            .status
            .success()
    );
    let after = through_loopback(owner);
    assert!(after - before < 30, "{} packets for 3", after - before);

    // When a node leaves, another one answers for its addresses.
    let leaving = cluster.answering(SERVICE_ADDRESS_V4)[0];
    let other = NODE_NAMES.into_iter().find(|name| *name != leaving).unwrap();
    cluster.server.must("DELETE", &format!("/api/v1/nodes/{leaving}"), None);
    cluster.wait("the other node answers", |cluster| cluster.answering(SERVICE_ADDRESS_V4).contains(&other));

    cluster.felix("Disabled");
    cluster.wait("nobody answers any more", |cluster| {
        cluster.answering(SERVICE_ADDRESS_V4).is_empty() && cluster.answering(SERVICE_ADDRESS_V6).is_empty()
    });
    cluster.wait("of the route nothing is left", |cluster| {
        NODE_NAMES
            .iter()
            .all(|node| cluster.node(node).routes(&format!("{SERVICE_ADDRESS_V4}/32")).is_empty())
    });
    assert!(!fetches(host) && !pings(host));
}
