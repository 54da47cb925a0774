//! Parts of the configuration of an Envoy that asks the server of the sidecar.

use super::SERVER_ADDRESS;
use serde_json::{Value, json};

/// Adds the type of an extension to its configuration.
pub fn typed(kind: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("type.googleapis.com/envoy.extensions.{kind}"));
    config
}

/// Returns the clusters `server`, on the pod's loopback, and `authorization`, on this socket.
pub fn clusters(socket: &str) -> [Value; 2] {
    let cluster = |name: &str, address: Value| {
        json!({"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": address}}]}
        ]}})
    };
    let (host, port) = SERVER_ADDRESS.split_once(':').unwrap();
    let port: u16 = port.parse().unwrap();
    let mut authorization = cluster("authorization", json!({"pipe": {"path": socket}}));
    authorization["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed("upstreams.http.v3.HttpProtocolOptions",
            json!({"explicit_http_config": {"http2_protocol_options": {}}})),
    });
    [cluster("server", json!({"socket_address": {"address": host, "port_value": port}})), authorization]
}

/// Returns the configuration of a filter for requests or connections that asks the cluster `authorization`.
pub fn authorization(kind: &str, mut config: Value) -> Value {
    config["transport_api_version"] = json!("V3");
    config["grpc_service"] = json!({"timeout": "2s", "envoy_grpc": {"cluster_name": "authorization"}});
    json!({"name": "authorization", "typed_config": typed(kind, config)})
}
