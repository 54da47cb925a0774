//! Hubs on the Kubernetes API, found by a service: the one on the node's own machine first, another when it is gone.

use crate::world::{NODE, TORTIE, World};
use serde_json::json;
use std::fs::File;
use tortie_testkit::{CalicoGroup, Process};

const PORT: u16 = 5473;
const SERVICE: &str = "calico-typha";

struct Hub {
    _process: Process,
    address: &'static str,
}

impl Hub {
    /// One that is ready, at an address of the host, which the service has as an endpoint on a node.
    fn start(world: &World, address: &'static str, node: &str) -> Hub {
        let mut command = world.host.command(TORTIE);
        command
            .args(["hub", "--config-file", "/nonexistent"])
            .envs(world.server.environment(CalicoGroup::V3))
            .env("TYPHA_DATASTORETYPE", "kubernetes")
            .env("TYPHA_SERVERHOST", address)
            .env("TYPHA_HEALTHENABLED", "true")
            .env("TYPHA_HEALTHHOST", address)
            .env("TYPHA_PROMETHEUSMETRICSENABLED", "true")
            .env("TYPHA_PROMETHEUSMETRICSHOST", address)
            .stderr(File::create(world.server.path(&format!("hub-{node}.log"))).unwrap());
        let (process, line) = Process::until_first_line(&mut command);
        assert_eq!(line, format!("ready: hub on {address}:{PORT}\n"));
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("{SERVICE}-{node}"), "labels": {"kubernetes.io/service-name": SERVICE}},
            "ports": [{"name": SERVICE, "port": PORT, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}, "nodeName": node}],
        });
        world.server.create("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", &slice);
        Hub { _process: process, address }
    }

    /// A page and its code.
    fn page(&self, world: &World, port: u16, path: &str) -> String {
        let url = format!("http://{}:{port}/{path}", self.address);
        let output = world.host.try_exec(&["curl", "-s", "-w", "%{http_code}", &url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// How many nodes it tells what happens.
    fn nodes(&self, world: &World) -> String {
        let page = self.page(world, 9093, "metrics");
        let name = "typha_connections_streaming{syncer=\"felix\"} ";
        page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").to_owned()
    }
}

#[test]
fn a_node_finds_hubs_by_their_service_and_the_nearest_first() {
    let mut world = World::without_node(CalicoGroup::V3);
    world.host.ip("addr add 172.30.0.2/24 dev eth0");
    let (near, far) =
        (Hub::start(&world, "172.30.0.1", NODE), Hub::start(&world, "172.30.0.2", "another-node"));
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

    world.variables = vec![("FELIX_TYPHAK8SSERVICENAME", SERVICE)];
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
