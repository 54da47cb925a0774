//! Certificates that the webhooks make and renew, while Kubernetes goes on asking.

use super::{API, Custom, USUAL, object};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;
use tortie_apiserver::Lifetimes;
use tortie_testkit::eventually_showing;

fn field(custom: &Custom, path: &str, pointer: &str) -> String {
    let object = custom.cluster.server.must("GET", path, None);
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

const SECRET: &str = "/api/v1/namespaces/kube-system/secrets/calico-webhooks-tls";
const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/calico-webhooks";

#[test]
fn certificates_are_renewed_while_kubernetes_asks() {
    let mut custom = Custom::new();
    // A third of it is left when it is renewed: enough for a machine that is busy.
    custom.start_webhooks(Lifetimes {
        authority: Duration::from_secs(60),
        certificate: Duration::from_secs(30),
    });
    let (mut certificates, mut bundles, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
    let path = format!("{API}/globalnetworkpolicies");
    eventually_showing(
        "certificates and authorities are renewed, and Kubernetes asks on",
        || {
            certificates.insert(field(&custom, SECRET, "/data/tls.crt"));
            bundles.insert(field(&custom, CONFIGURATION, "/webhooks/0/clientConfig/caBundle"));
            count += 1;
            let policy = object("GlobalNetworkPolicy", &format!("written-{count}"), json!({}));
            let written = custom.cluster.server.send("POST", &path, Some(&policy));
            written.is_ok() && certificates.len() > 2 && bundles.len() > 1
        },
        String::new,
    );
    // Both webhooks believe the same.
    assert_eq!(
        field(&custom, CONFIGURATION, "/webhooks/1/clientConfig/caBundle"),
        field(&custom, CONFIGURATION, "/webhooks/0/clientConfig/caBundle")
    );
    // Without them nobody writes a policy, and everybody reads.
    custom.stop_webhooks();
    let refusal =
        custom.cluster.server.send("POST", &path, Some(&object("GlobalNetworkPolicy", "late", json!({}))));
    assert!(refusal.unwrap_err().contains("failed calling webhook"));
    let table = custom.cluster.must(&["get", "gnp"], "");
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "TIER", "AGE"]);
    // Another one takes the certificates over.
    custom.start_webhooks(USUAL);
    custom.cluster.server.create(&path, &object("GlobalNetworkPolicy", "late", json!({})));
    strange_questions(&custom);
}

/// Asked by somebody other than Kubernetes.
fn strange_questions(custom: &Custom) {
    let ask = |words: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sk", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}"]).args(words);
        let output = command.arg(format!("https://localhost:{}{path}", custom.port)).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let large = custom.cluster.server.path("large");
    std::fs::write(&large, vec![b' '; 4 << 20]).unwrap();
    let large = format!("@{}", large.display());
    assert_eq!(ask(&[], "/readyz"), "200");
    assert_eq!(ask(&[], "/metrics"), "200");
    assert_eq!(ask(&[], "/rbac"), "405");
    assert_eq!(ask(&[], "/elsewhere"), "404");
    assert_eq!(ask(&["-d", "no question"], "/rbac"), "400");
    assert_eq!(ask(&["-d", "{}"], "/cluster-info"), "400");
    assert_eq!(ask(&["--http1.1", "--data-binary", &large], "/rbac"), "413");
}
