//! Connections without HTTP: Envoy asks once for each, and the server knows only addresses and ports.

use super::envoy_config::{authorization, clusters, typed};
use super::{HttpClient, ProxiedLab, pod_namespace};
use crate::family;
use serde_json::{Value, json};
use std::path::Path;
use tortie_testkit::{Envoy, eventually};

const TCP_PORT: u16 = 5432;

/// Builds a configuration of Envoy that forwards connections.
fn forward_connections(socket: &str) -> Value {
    let filter =
        authorization("filters.network.ext_authz.v3.ExtAuthz", json!({"stat_prefix": "connections"}));
    let proxy = json!({"stat_prefix": "connections", "cluster": "server"});
    let proxy =
        json!({"name": "proxy", "typed_config": typed("filters.network.tcp_proxy.v3.TcpProxy", proxy)});
    json!({"static_resources": {
        "listeners": [{
            "name": "connections",
            "address": {"socket_address": {"address": "0.0.0.0", "port_value": TCP_PORT}},
            "filter_chains": [{"filters": [filter, proxy]}],
        }],
        "clusters": clusters(socket),
    }})
}

/// A rule with HTTP conditions opens the port in the kernel, but no connection that Envoy does not take for HTTP.
pub fn http_rules_match_no_other_connection(proxied: &ProxiedLab, dir: &Path) {
    let socket = proxied.lab.dir().join("pods/web/authz.sock").display().to_string();
    let envoy = Envoy::start(Some(&pod_namespace(&proxied.lab, "web")), dir, forward_connections(&socket));
    let rule =
        "action: Allow, protocol: TCP, source: {selector: role == 'client'}, destination: {ports: [5432]}";
    let address = family(&proxied.web, false).parse().unwrap();
    let mut client = HttpClient::new(&pod_namespace(&proxied.lab, "client"), address, TCP_PORT);
    let reached = proxied.server.received();

    proxied.apply_rules(&[&format!("{{{rule}, http: {{methods: [GET]}}}}")]);
    let marked = proxied.server.received();
    assert!(marked > reached, "requests that Envoy takes for HTTP are forwarded");
    // The kernel may follow the server.
    eventually("the port is open", || client.connect().is_ok());
    assert!(client.send("GET", "/anything").is_err(), "{}", proxied.picture());
    assert_eq!(envoy.statistic("ext_authz.connections.denied"), 1, "{}", envoy.log());
    assert_eq!(proxied.server.received(), marked);

    proxied.apply_rules(&[&format!("{{{rule}}}")]);
    // Envoy forwards bytes: the method plays no part.
    assert_eq!(client.status("BREW", "/anything"), 200, "{}\n{}", envoy.log(), proxied.picture());
    assert_eq!(envoy.statistic("ext_authz.connections.ok"), 1, "{}", envoy.log());
}
