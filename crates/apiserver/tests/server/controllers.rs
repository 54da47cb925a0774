//! Kubernetes' controllers with our objects: deletion with their namespaces and with their owners.

use crate::world::{ApiServerWorld, TestStorage};
use serde_json::json;
use tortie_testkit::{TestProcess, eventually_showing};

#[test]
fn objects_go_with_their_namespaces_and_their_owners() {
    let world = ApiServerWorld::new(TestStorage::Kubernetes);
    let log = world.server.path("controllers.log");
    let mut command = world.server.program("kube-controller-manager");
    let file = std::fs::File::create(&log).unwrap();
    command
        .arg(format!("--kubeconfig={}", world.server.kubeconfig().display()))
        .args([
            "--controllers=namespace-controller,garbage-collector-controller",
            "--leader-elect=false",
            "--secure-port=0",
        ])
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let _controllers = TestProcess::start(&mut command);
    let picture = || std::fs::read_to_string(&log).unwrap_or_default();
    let object = |kind: &str, namespace: &str, name: &str| {
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name, "namespace": namespace},
            "spec": if kind == "NetworkPolicy" { json!({"selector": "all()"}) } else { json!({"nets": ["192.0.2.0/24"]}) }})
    };
    world.must(&["create", "namespace", "brief"], "");
    for name in ["a", "b", "c"] {
        world.must(&["create", "-f", "-"], &object("NetworkPolicy", "brief", name).to_string());
    }
    let owner = world.server.create(
        "/apis/projectcalico.org/v3/namespaces/shop/networksets",
        &object("NetworkSet", "shop", "owner"),
    );
    let mut owned = object("NetworkPolicy", "shop", "owned");
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "projectcalico.org/v3", "kind": "NetworkSet",
        "name": "owner", "uid": owner["metadata"]["uid"]}]);
    world.must(&["create", "-f", "-"], &owned.to_string());
    world.must(&["delete", "namespace", "brief", "--wait=false"], "");
    let path = "/api/v1/namespaces/brief";
    eventually_showing("the namespace is gone", || world.server.send("GET", path, None).is_err(), picture);
    assert_eq!(
        world.must(&["get", "cnp", "-A", "-o", "name"], ""),
        "networkpolicy.projectcalico.org/owned\n"
    );
    // With foreground deletion, the owner waits for its dependents.
    world.must(&["delete", "networkset", "owner", "-n", "shop", "--cascade=foreground", "--wait=false"], "");
    let gone =
        |path: &str| world.server.send("GET", path, None).is_err_and(|refusal| refusal.contains(" 404 "));
    for path in ["networkpolicies/owned", "networksets/owner"] {
        let path = format!("/apis/projectcalico.org/v3/namespaces/shop/{path}");
        eventually_showing(&path, || gone(&path), picture);
    }
}
