//! Policies that restrict, on the Kubernetes API: an unreadable one closes the pods that it selects, and pods do not reach the
//! webhooks.

use crate::world::{AttachedPod, KubernetesNodeFixture};
use serde_json::{Value as Json, json};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tortie_dataplane::Netns;
use tortie_testkit::{CalicoGroup, bind_when_free};

const POLICIES: &str = "/apis/projectcalico.org/v3/globalnetworkpolicies";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/globalnetworkpolicies.projectcalico.org";
const WEBHOOK_POLICY_FILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/webhooks/20-webhooks.yaml");
const WEBHOOK_PORT: u16 = 6443;

impl KubernetesNodeFixture {
    /// Removes the schema of policies, as a cluster with definitions of an older release has it.
    fn accept_any_policy(&self) {
        let mut definition = self.server.must("GET", DEFINITION, None);
        for version in definition["spec"]["versions"].as_array_mut().unwrap() {
            version["schema"] =
                json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        }
        self.server.must("PUT", DEFINITION, Some(&definition));
    }
}

fn policy_with_port(port: u32) -> Json {
    json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "web"},
        "spec": {"selector": "role == 'web'", "types": ["Ingress"], "ingress": [
            {"action": "Allow", "protocol": "TCP", "destination": {"ports": [port]}}]}})
}

#[test]
fn an_unreadable_policy_keeps_its_pods_closed() {
    let world = KubernetesNodeFixture::new(CalicoGroup::V3);
    world.accept_any_policy();
    let (web, client) =
        (world.add("shop", "web", json!({"role": "web"})), world.add("shop", "client", json!({})));
    let other = world.add("shop", "other", json!({}));
    world.wait_for(&client, &web, true);
    world.server.create(POLICIES, &policy_with_port(80));
    world.wait_for(&client, &web, false);
    let path = format!("{POLICIES}/web");
    // It takes a moment until kube-apiserver uses the new schema.
    world.wait("kube-apiserver accepts the port", || {
        let mut policy = world.server.must("GET", &path, None);
        policy["spec"] = policy_with_port(800_000)["spec"].take();
        world.server.send("PUT", &path, Some(&policy)).is_ok()
    });
    world.wait("the node reports the policy", || {
        world.log().contains("cannot read an entry of the datastore")
    });
    for address in &web.addresses {
        assert!(!client.pings(address), "{address} is open\n{}", world.log());
    }
    world.wait_for(&client, &other, true);
    world.server.must("DELETE", &path, None);
    world.wait_for(&client, &web, true);
}

/// Returns whether a pod can open a connection to the port of the webhooks.
fn connects(from: &AttachedPod, address: &str) -> bool {
    let target = SocketAddr::new(address.parse().unwrap(), WEBHOOK_PORT);
    let connect = move || TcpStream::connect_timeout(&target, Duration::from_secs(2)).is_ok();
    Netns::open(from.netns.path()).unwrap().run(connect).unwrap()
}

#[test]
fn pods_do_not_reach_the_webhooks() {
    let world = KubernetesNodeFixture::new(CalicoGroup::V3);
    let webhooks = world.add("kube-system", "webhooks", json!({"k8s-app": "calico-webhooks"}));
    let agent = world.add("kube-system", "agent", json!({"k8s-app": "konnectivity-agent"}));
    let client = world.add("shop", "client", json!({}));
    let bind = || bind_when_free(|| TcpListener::bind(("::", WEBHOOK_PORT)));
    let _listener = Netns::open(webhooks.netns.path()).unwrap().run(bind).unwrap().unwrap();
    for address in &webhooks.addresses {
        world.wait("the client connects without the policy", || connects(&client, address));
    }
    let manifest = std::fs::read_to_string(WEBHOOK_POLICY_FILE).unwrap();
    let policy = manifest.split("\n---\n").find(|part| part.contains("\nkind: NetworkPolicy\n")).unwrap();
    world.tool("calicoctl", &["apply", "-f", "-"], policy);
    for address in &webhooks.addresses {
        world.wait("the client is cut off", || !connects(&client, address));
        world.wait("the agent of kube-apiserver connects", || connects(&agent, address));
    }
}
