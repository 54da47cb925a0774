//! The node's service account token is replaced and the old one becomes invalid.

use crate::world::KubernetesNodeFixture;
use serde_json::{Value, json};
use tortie_testkit::CalicoGroup;

/// Returns a token of the service account `node` that is valid while a Secret exists.
fn token(world: &KubernetesNodeFixture, secret: &str) -> String {
    let secrets = "/api/v1/namespaces/default/secrets";
    let made = world.server.create(secrets, &json!({"metadata": {"name": secret}}));
    let bound = json!({"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made["metadata"]["uid"]});
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"boundObjectRef": bound, "audiences": ["https://kubernetes.default.svc"]}});
    let path = "/api/v1/namespaces/default/serviceaccounts/node/token";
    let answer = world.server.create(path, &request);
    answer["status"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn a_token_that_is_replaced_is_not_noticed() {
    let mut world = KubernetesNodeFixture::without_node(CalicoGroup::V3);
    let account = json!({"metadata": {"name": "node"}});
    world.server.create("/api/v1/namespaces/default/serviceaccounts", &account);
    let file = world.server.path("token");
    let first = token(&world, "first");
    std::fs::write(&file, &first).unwrap();
    let kubeconfig = world.server.write_kubeconfig("kubeconfig-account", json!({ "tokenFile": file }));
    world.start(&kubeconfig);
    let web = world.add("shop", "web", json!({"role": "web"}));

    std::fs::write(&file, token(&world, "second")).unwrap();
    world.server.must("DELETE", "/api/v1/namespaces/default/secrets/first", None);
    let asked = || -> Result<Value, String> {
        world.server.send_as(&first, "GET", "/api/v1/nodes", "application/json", None)
    };
    world.wait("the first token is worth nothing", || asked().is_err());
    let client = world.add("shop", "client", json!({}));
    world.wait_for(&client, &web, true);
    world.apply_policy("closed", json!({"podSelector": {"matchLabels": {"role": "web"}}}));
    world.wait_for(&client, &web, false);
    for pod in [&client, &web] {
        world.detach(pod, "1");
        world.server.remove_pod(&pod.namespace, &pod.name);
    }
    world.assert_clean();
}
