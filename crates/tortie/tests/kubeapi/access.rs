//! Permissions of the service accounts of `deploy/`, as a real kube-apiserver enforces them.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use tortie_testkit::{ApiServer, eventually_showing, output};

const ACCESS_MANIFEST: &str = include_str!("../../../../deploy/10-access.yaml");
const CONTROLLERS_MANIFEST: &str = include_str!("../../../../deploy/30-controllers.yaml");
const MIGRATION_MANIFEST: &str = include_str!("../../../../deploy/migration/migration.yaml");
const NODE_ACCOUNT_PATH: &str = "/api/v1/namespaces/kube-system/serviceaccounts/tortie-node";
const MERGE_PATCH: &str = "application/merge-patch+json";

fn server_with(manifests: &[&str]) -> ApiServer {
    let server = ApiServer::start_with_rules();
    for manifest in manifests {
        let mut command = server.program("kubectl");
        command.args(["apply", "-f", "-", "--kubeconfig"]).arg(server.kubeconfig());
        let output = output(&mut command, manifest);
        assert!(output.status.success(), "{output:?}");
    }
    server
}

/// Creates a pod of the DaemonSet on a node.
fn add_pod(server: &ApiServer, name: &str, node: &str) -> Value {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": node, "serviceAccountName": "tortie-node", "containers": [{"name": "c", "image": "none"}]}});
    server.create("/api/v1/namespaces/kube-system/pods", &pod)
}

/// Returns a token of the node's service account, bound to a pod as kubelet requests it, or unbound.
fn token(server: &ApiServer, pod: Option<&Value>) -> String {
    let mut spec = json!({"expirationSeconds": 600});
    if let Some(pod) = pod {
        spec["boundObjectRef"] = json!({"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"]});
    }
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let answer = server.create(&format!("{NODE_ACCOUNT_PATH}/token"), &request);
    answer["status"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn a_node_changes_only_itself_and_its_pods() {
    let server = server_with(&[ACCESS_MANIFEST]);
    ["n1", "n2"].iter().for_each(|node| server.add_node(node));
    let pod = add_pod(&server, "tortie-1", "n1");
    add_pod(&server, "tortie-2", "n2");
    let (bound, unbound) = (token(&server, Some(&pod)), token(&server, None));
    let patch = |token: &str, path: &str| {
        let change = json!({"metadata": {"annotations": {"projectcalico.org/IPv4Address": "192.0.2.1/24"}}});
        server.send_as(token, "PATCH", path, MERGE_PATCH, Some(&change))
    };
    let denied = |token: &str, path: &str| {
        let answer = patch(token, path);
        answer
            .as_ref()
            .is_err_and(|refusal| refusal.contains(": 403 ") && refusal.contains("tortie-node may"))
    };
    let pods = "/api/v1/namespaces/kube-system/pods";
    eventually_showing(
        "the policy is in force",
        || denied(&bound, "/api/v1/nodes/n2/status"),
        || format!("{:?}", patch(&bound, "/api/v1/nodes/n2/status")),
    );
    assert!(denied(&bound, "/api/v1/nodes/n2"));
    assert!(denied(&bound, &format!("{pods}/tortie-2/status")));
    for own in ["/api/v1/nodes/n1", "/api/v1/nodes/n1/status", &format!("{pods}/tortie-1/status")] {
        patch(&bound, own).unwrap();
        assert!(denied(&unbound, own), "{own} with a token that names no node");
    }
    // Other clients that may write nodes are not restricted.
    server.merge("/api/v1/nodes/n2/status", &json!({"metadata": {"annotations": {"a": "b"}}}));
}

#[test]
fn the_migration_deletes_only_definitions_it_moved() {
    let server = server_with(&[CONTROLLERS_MANIFEST, MIGRATION_MANIFEST]);
    let may = |verb: &str, group: &str, resource: &str, name: &str| -> bool {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": "system:serviceaccount:kube-system:tortie-controllers",
            "resourceAttributes": {"verb": verb, "group": group, "resource": resource, "name": name}}});
        let answer = server.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review);
        answer["status"]["allowed"] == true
    };
    let crds = tortie_model::schema::storage_crds();
    let names: BTreeSet<&str> = crds.iter().map(|crd| crd["metadata"]["name"].as_str().unwrap()).collect();
    let definitions = ("apiextensions.k8s.io", "customresourcedefinitions");
    for name in &names {
        assert!(may("delete", definitions.0, definitions.1, name), "{name}");
    }
    for name in ["ippools.projectcalico.org", "certificates.cert-manager.io", ""] {
        assert!(!may("delete", definitions.0, definitions.1, name), "{name}");
    }
    assert!(may("update", "apiregistration.k8s.io", "apiservices", "v3.projectcalico.org"));
    assert!(!may("update", "apiregistration.k8s.io", "apiservices", "v1beta1.metrics.k8s.io"));
    assert!(!may("delete", "apiregistration.k8s.io", "apiservices", "v1beta1.metrics.k8s.io"));
}
