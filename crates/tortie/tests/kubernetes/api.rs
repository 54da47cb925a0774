//! kubectl manages Calico's resources in a lab, with the aggregated API server and with custom resources. The
//! manifests are those of `deploy/`, running in real pods.

use crate::cluster::KubernetesLab;
use serde_json::Value;
use tortie_testkit::eventually_showing;

const TIER_AND_POLICY: &str = r#"
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: platform}
spec: {order: 100}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: web}
spec: {tier: platform, order: 10, selector: "app == 'web'", ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}]}
"#;

/// Runs the first steps of a new user, which must work with either API. Only our API server prints its own table
/// columns.
pub fn kubectl_manages_policies(cluster: &KubernetesLab, shown_tier: Option<&str>) {
    cluster.apply(TIER_AND_POLICY);
    let table = cluster.must_kubectl(&["get", "gnp"]);
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let row = table.lines().map(columns).find(|row| row.first().is_some_and(|name| name == "web"));
    assert!(table.starts_with("NAME") && row.is_some(), "{table}");
    if let Some(tier) = shown_tier {
        assert_eq!(row.unwrap()[1], tier, "{table}");
    }
    // Defaults are filled in.
    let stored: Value =
        serde_json::from_str(&cluster.must_kubectl(&["get", "gnp", "web", "-o", "json"])).unwrap();
    assert_eq!(stored["spec"]["types"], serde_json::json!(["Ingress"]), "{stored}");
    assert_eq!(stored["metadata"]["labels"]["projectcalico.org/tier"], "platform", "{stored}");
    // calicoctl returns the same object.
    let seen = cluster.ctl_json(&["get", "globalnetworkpolicy", "web", "-o", "json"]);
    assert_eq!((&seen["spec"], &seen["metadata"]["uid"]), (&stored["spec"], &stored["metadata"]["uid"]));
    // A policy with a missing tier is rejected, by our API server or by a webhook.
    let lost =
        TIER_AND_POLICY.replace("tier: platform", "tier: nowhere").replace("{name: web}", "{name: lost}");
    let refused = cluster.refused(&lost);
    assert!(refused.contains("nowhere") && !refused.contains("connect"), "{refused}");
    let fields = ["explain", "globalnetworkpolicy.spec.ingress", "--api-version=projectcalico.org/v3"];
    let explained = || cluster.kubectl(&fields);
    eventually_showing("rules are explained", || explained().contains("destination"), explained);
    let refused = cluster.run_kubectl(&["delete", "tier", "default"]);
    assert!(!refused.0, "a built-in tier was deleted: {}", refused.1);
    cluster.delete(TIER_AND_POLICY);
    let left = cluster.must_kubectl(&["get", "gnp", "web", "--ignore-not-found"]);
    assert_eq!(left, "");
}

/// Asserts that kube-apiserver forwards requests for the group to pods of the Deployment.
pub fn is_served_by_pods(cluster: &KubernetesLab) {
    let path = "jsonpath={.spec.service.namespace}/{.spec.service.name} {.status.conditions[?(@.type==\"Available\")].status}";
    let said = cluster.must_kubectl(&["get", "apiservice", "v3.projectcalico.org", "-o", path]);
    assert_eq!(said, "calico-apiserver/calico-api True");
    let trust = "jsonpath={.spec.insecureSkipTLSVerify}/{.spec.caBundle}";
    let said = cluster.must_kubectl(&["get", "apiservice", "v3.projectcalico.org", "-o", trust]);
    assert!(!said.starts_with("true") && !said.ends_with('/'), "the certificate is not checked: {said}");
    let ready = "jsonpath={.status.readyReplicas}";
    let said = cluster.must_kubectl(&[
        "get",
        "deployment",
        "-n",
        "calico-apiserver",
        "calico-apiserver",
        "-o",
        ready,
    ]);
    assert_eq!(said, "1");
    uses_pod_addresses(cluster, "calico-apiserver", "k8s-app=calico-apiserver");
}

/// Asserts that kube-apiserver connects to pods of the pod network.
fn uses_pod_addresses(cluster: &KubernetesLab, namespace: &str, labels: &str) {
    let pods = cluster.pods_of(namespace, labels);
    assert!(!pods.is_empty(), "no pod has the label {labels}");
    let in_pool = |pod: &crate::pods::ListedPod| pod.addresses[0].to_string().starts_with("10.244.");
    assert!(pods.iter().all(in_pool), "{pods:?}");
}

/// Asserts that kube-apiserver serves the group from custom resources, with a webhook for validation.
pub fn is_served_by_kubernetes(cluster: &KubernetesLab) {
    let said = cluster.must_kubectl(&[
        "get",
        "apiservice",
        "v3.projectcalico.org",
        "-o",
        "jsonpath={.spec.service}",
    ]);
    assert_eq!(said, "");
    let bundle = "jsonpath={.webhooks[0].clientConfig.caBundle}";
    let said =
        cluster.must_kubectl(&["get", "validatingwebhookconfiguration", "calico-webhooks", "-o", bundle]);
    assert!(!said.is_empty(), "Kubernetes has not been told whom to believe");
    uses_pod_addresses(cluster, "kube-system", "k8s-app=calico-webhooks");
}
