//! Hubs on the Kubernetes API, found through a service: the node prefers the hub on its own machine and uses another
//! when that is gone.

use crate::world::{KubernetesNodeFixture, NODE_NAME, TORTIE};
use serde_json::json;
use std::fs::File;
use std::process::{Command, Stdio};
use tortie_testkit::{CalicoGroup, TestProcess};

const HUB_PORT: u16 = 5473;
const HUB_SERVICE: &str = "calico-typha";
/// Names of the Secrets as in `deploy/40-hub.yaml`.
const HUB_SECRET: &str = "tortie-hub";
const HUB_CLIENT_SECRET: &str = "tortie-hub-client";
const SECRETS_PATH: &str = "/api/v1/namespaces/kube-system/secrets";

struct HubProcess {
    _process: TestProcess,
    address: &'static str,
}

impl HubProcess {
    /// Starts a hub at an address of the host and adds it to the service as an endpoint on a node; returns when it is
    /// ready.
    fn start(world: &KubernetesNodeFixture, address: &'static str, node: &str) -> HubProcess {
        let mut command = HubProcess::command(world, address, node);
        let (process, line) = TestProcess::until_first_line(&mut command);
        assert_eq!(line, format!("ready: hub on {address}:{HUB_PORT}\n"));
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("{HUB_SERVICE}-{node}"), "labels": {"kubernetes.io/service-name": HUB_SERVICE}},
            "ports": [{"name": HUB_SERVICE, "port": HUB_PORT, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}, "nodeName": node}],
        });
        world.server.create("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", &slice);
        HubProcess { _process: process, address }
    }

    fn command(world: &KubernetesNodeFixture, address: &'static str, node: &str) -> Command {
        let mut command = world.host.command(TORTIE);
        command
            .args(["hub", "--config-file", "/nonexistent"])
            .envs(world.server.environment(CalicoGroup::V3))
            .env("TYPHA_DATASTORETYPE", "kubernetes")
            .env("TYPHA_CERTIFICATESECRET", HUB_SECRET)
            .env("TYPHA_SERVERHOST", address)
            .env("TYPHA_HEALTHENABLED", "true")
            .env("TYPHA_HEALTHHOST", address)
            .env("TYPHA_PROMETHEUSMETRICSENABLED", "true")
            .env("TYPHA_PROMETHEUSMETRICSHOST", address)
            .stderr(File::create(world.server.path(&format!("hub-{node}.log"))).unwrap());
        command
    }

    /// Returns a page followed by its HTTP status code.
    fn page(&self, world: &KubernetesNodeFixture, port: u16, path: &str) -> String {
        let url = format!("http://{}:{port}/{path}", self.address);
        let output = world.host.try_exec(&["curl", "-s", "-w", "%{http_code}", &url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns how many nodes the hub streams updates to.
    fn nodes(&self, world: &KubernetesNodeFixture) -> String {
        let page = self.page(world, 9093, "metrics");
        let name = "typha_connections_streaming{syncer=\"felix\"} ";
        page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").to_owned()
    }
}

/// Creates the empty Secrets of deploy/40-hub.yaml.
fn create_secrets(world: &KubernetesNodeFixture) {
    for name in [HUB_SECRET, HUB_CLIENT_SECRET] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": name, "labels": {"k8s-app": "tortie-hub"}}});
        world.server.create(SECRETS_PATH, &secret);
    }
}

/// Asserts that both hubs share one certificate authority, that nodes cannot read its key, and that other data of the
/// Secrets stays.
fn certificates_are_made_for_hubs_and_nodes(world: &KubernetesNodeFixture) {
    let secret = |name: &str| world.server.must("GET", &format!("{SECRETS_PATH}/{name}"), None);
    world
        .wait("the hubs have made certificates", || secret(HUB_CLIENT_SECRET)["data"]["tls.crt"].is_string());
    let (own, node) = (secret(HUB_SECRET), secret(HUB_CLIENT_SECRET));
    assert_eq!(own["data"]["ca.crt"], node["data"]["ca.crt"]);
    assert_eq!(node["data"]["ca.key"], json!(null));
    assert_ne!(own["data"]["tls.key"], node["data"]["tls.key"]);
    assert_eq!(own["metadata"]["labels"]["k8s-app"], "tortie-hub");
}

#[test]
fn nodes_prefer_the_nearest_hub_of_the_service() {
    let mut world = KubernetesNodeFixture::without_node(CalicoGroup::V3);
    world.host.ip("addr add 172.30.0.2/24 dev eth0");
    create_secrets(&world);
    let (near, far) = (
        HubProcess::start(&world, "172.30.0.1", NODE_NAME),
        HubProcess::start(&world, "172.30.0.2", "another-node"),
    );
    for hub in [&near, &far] {
        let ready = hub.page(&world, 9098, "readiness");
        assert!(ready.contains("felix-cache: in sync") && ready.ends_with("200"), "{ready}");
        let live = hub.page(&world, 9098, "liveness");
        assert!(live.ends_with("200"), "{live}");
        let metrics = hub.page(&world, 9093, "metrics");
        for name in [
            "typha_breadcrumb_block",
            "typha_breadcrumb_non_block",
            "typha_breadcrumb_seq_number",
            "typha_breadcrumb_size",
            "typha_cache_size",
            "typha_client_latency_secs",
            "typha_client_snapshot_send_secs",
            "typha_client_write_latency_secs",
            "typha_connections_accepted",
            "typha_connections_active",
            "typha_connections_dropped",
            "typha_connections_grace_used",
            "typha_connections_streaming",
            "typha_kvs_per_msg",
            "typha_log_errors",
            "typha_logs_dropped",
            "typha_next_breadcrumb_latency_secs",
            "typha_ping_latency",
            "typha_snapshot_compressed_bytes",
            "typha_snapshot_raw_bytes",
            "typha_snapshots_generated",
            "typha_snapshots_reused",
            "typha_updates_skipped",
            "typha_updates_total",
        ] {
            assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is not in\n{metrics}");
        }
    }

    certificates_are_made_for_hubs_and_nodes(&world);
    world.variables =
        vec![("FELIX_TYPHAK8SSERVICENAME", HUB_SERVICE), ("TORTIE_HUB_SECRET", HUB_CLIENT_SECRET)];
    let kubeconfig = world.server.node_kubeconfig();
    world.start(&kubeconfig);
    assert_eq!((near.nodes(&world), far.nodes(&world)), ("1".to_owned(), "0".to_owned()), "{}", world.log());
    let (web, client) =
        (world.add("shop", "web", json!({"role": "web"})), world.add("shop", "client", json!({})));
    world.wait_for(&client, &web, true);
    world.apply_policy("closed", json!({"podSelector": {"matchLabels": {"role": "web"}}}));
    world.wait_for(&client, &web, false);
    let watched = |what: &str| {
        let is_watch = |path: &str| path.contains(what) && path.contains("watch=");
        world.server.requests_of_node().iter().any(|(_, path)| is_watch(path))
    };
    for what in ["/pods", "/networkpolicies", "/endpointslices"] {
        assert!(!watched(what), "the node watches {what} itself");
    }

    // A client without a certificate is rejected.
    let plain = format!("http://{}:{HUB_PORT}/", near.address);
    world.wait("a connection without TLS is refused and counted", || {
        assert!(world.host.try_exec(&["curl", "-s", "--max-time", "5", &plain]).stdout.is_empty());
        near.page(&world, 9093, "metrics").contains("tortie_hub_refused_total{reason=\"certificate\"}")
    });

    drop(near);
    world.wait("the node goes to the other hub", || far.nodes(&world) == "1");
    let open = json!({"podSelector": {"matchLabels": {"role": "web"}}, "ingress": [{}]});
    world.apply_policy("closed", open);
    world.wait_for(&client, &web, true);
    for pod in [&client, &web] {
        world.detach(pod, "1");
        world.server.remove_pod(&pod.namespace, &pod.name);
    }
    world.assert_clean();
}

/// A hub that starts while kube-apiserver is down must not choose an API group that the cluster does not serve: every
/// policy would be missing.
#[test]
fn a_hub_waits_for_the_api_group() {
    let mut world = KubernetesNodeFixture::without_node(CalicoGroup::V3);
    let policies = "/apis/projectcalico.org/v3/globalnetworkpolicies";
    let policy = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
        "metadata": {"name": "closed"},
        "spec": {"tier": "default", "selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}});
    world.server.create(policies, &policy);
    create_secrets(&world);
    world.server.stop();
    let address = "172.30.0.1";
    let mut command = HubProcess::command(&world, address, NODE_NAME);
    let process = TestProcess::start(command.env_remove("CALICO_API_GROUP").stdout(Stdio::null()));
    let hub = HubProcess { _process: process, address };
    let is_ready = |world: &KubernetesNodeFixture, code: &str, cause: &str| {
        let page = hub.page(world, 9098, "readiness");
        page.ends_with(code) && page.contains(cause)
    };
    world.wait("the hub says why it waits", || is_ready(&world, "503", "cannot use the Kubernetes API"));
    world.server.resume();
    world.wait("the hub is ready", || is_ready(&world, "200", "in sync"));

    world.variables = vec![("FELIX_TYPHAADDR", "172.30.0.1:5473"), ("TORTIE_HUB_SECRET", HUB_CLIENT_SECRET)];
    let kubeconfig = world.server.node_kubeconfig();
    world.start(&kubeconfig);
    let (web, client) = (world.add("shop", "web", json!({})), world.add("shop", "client", json!({})));
    world.wait_for(&client, &web, false);
    world.server.must("DELETE", &format!("{policies}/closed"), None);
    world.wait_for(&client, &web, true);
}
