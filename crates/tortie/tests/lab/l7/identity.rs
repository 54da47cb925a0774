//! Mutual TLS: the identity in the client's certificate decides, not only its address.

use super::connections::http_rules_match_no_other_connection;
use super::envoy_config::{authorization, clusters, typed};
use super::{ProxiedLab, pod_namespace};
use crate::family;
use serde_json::{Value, json};
use tortie_testkit::{CertificateFiles, CertificateMaker, Envoy};

const TLS_PORT: u16 = 443;
const FRONTEND: &str = "spiffe://cluster.local/ns/default/sa/frontend";

/// Builds a configuration of Envoy like that of the sidecar, with mutual TLS.
fn mutual_tls(socket: &str, authority: &CertificateMaker, server: &CertificateFiles) -> Value {
    let requests = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "inbound",
            "route_config": {"virtual_hosts": [{"name": "server", "domains": ["*"], "routes": [
                {"match": {"prefix": "/"}, "route": {"cluster": "server"}}
            ]}]},
            "http_filters": [
                authorization("filters.http.ext_authz.v3.ExtAuthz", json!({})),
                {"name": "router", "typed_config": typed("filters.http.router.v3.Router", json!({}))},
            ],
        }),
    );
    let tls = typed(
        "transport_sockets.tls.v3.DownstreamTlsContext",
        json!({
            "require_client_certificate": true,
            "common_tls_context": {
                "tls_certificates": [{
                    "certificate_chain": {"filename": server.certificate},
                    "private_key": {"filename": server.key},
                }],
                "validation_context": {"trusted_ca": {"filename": authority.authority_file()}},
            },
        }),
    );
    json!({"static_resources": {
        "listeners": [{
            "name": "inbound",
            "address": {"socket_address": {"address": "0.0.0.0", "port_value": TLS_PORT}},
            "filter_chains": [{
                "filters": [{"name": "requests", "typed_config": requests}],
                "transport_socket": {"name": "tls", "typed_config": tls},
            }],
        }],
        "clusters": clusters(socket),
    }})
}

/// Gives a pod a service account, as it would have in Kubernetes. The kernel admits its connections by it.
fn set_service_account(proxied: &ProxiedLab, label: &str, account: &str) {
    let listed = proxied.lab.run(&["ctl", "get", "workloadendpoints", "-A", "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let (key, value) = label.split_once('=').unwrap();
    let mut endpoints = listed["items"].as_array().unwrap().iter();
    let endpoint = endpoints.find(|endpoint| endpoint["metadata"]["labels"][key] == value).unwrap();
    let name = endpoint["metadata"]["name"].as_str().unwrap();
    let patch = json!({"spec": {"serviceAccountName": account}}).to_string();
    proxied.lab.run(&["ctl", "patch", "workloadendpoint", name, "-p", &patch]);
}

#[test]
fn certificates_identify_service_accounts() {
    let proxied = ProxiedLab::up();
    let dir = tempfile::tempdir().unwrap();
    let authority = CertificateMaker::new(dir.path());
    let server = authority.issue("web", &["spiffe://cluster.local/ns/default/sa/web"]);
    let socket = proxied.lab.dir().join("pods/web/authz.sock").display().to_string();
    let envoy_dir = dir.path().join("envoy");
    let config = mutual_tls(&socket, &authority, &server);
    let envoy = Envoy::start(Some(&pod_namespace(&proxied.lab, "web")), &envoy_dir, config);
    set_service_account(&proxied, "role=client", "frontend");
    proxied.apply_rules(&["{action: Allow, protocol: TCP, source: {serviceAccounts: {names: [frontend]}}, \
                           destination: {ports: [443]}, http: {methods: [GET]}}"]);
    let url = format!("https://{}/anything", family(&proxied.web, false));
    let status = |certificate: &CertificateFiles, method: &str| {
        let [certificate, key] =
            [&certificate.certificate, &certificate.key].map(|file| file.to_str().unwrap());
        let curl = ["curl", "-sS", "-k", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-X", method];
        let files = ["--cert", certificate, "--key", key, &url];
        proxied.lab.run(&[&["exec", "client", "--"], &curl[..], &files].concat())
    };
    let frontend = authority.issue("frontend", &[FRONTEND]);
    assert_eq!(status(&frontend, "GET"), "200", "{}\n{}", envoy.log(), proxied.picture());
    assert_eq!(status(&frontend, "POST"), "403");
    for (name, identity) in [
        ("backend", "spiffe://cluster.local/ns/default/sa/backend"),
        ("elsewhere", "spiffe://cluster.local/ns/shop/sa/frontend"),
        ("uppercase", "spiffe://cluster.local/ns/default/sa/Frontend"),
    ] {
        assert_eq!(status(&authority.issue(name, &[identity]), "GET"), "403", "{identity}");
    }
    let foreign = CertificateMaker::new(&dir.path().join("foreign")).issue("frontend", &[FRONTEND]);
    let [certificate, key] = [&foreign.certificate, &foreign.key].map(|file| file.to_str().unwrap());
    let curl =
        ["exec", "client", "--", "curl", "-sS", "-k", "-m", "20", "--cert", certificate, "--key", key, &url];
    assert!(!proxied.lab.output(&curl).status.success(), "a certificate of another authority is accepted");
    drop(envoy);
    http_rules_match_no_other_connection(&proxied, &dir.path().join("connections"));
}
