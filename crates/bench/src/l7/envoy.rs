//! Requests per second and latencies through one Envoy, whose listeners differ only in their authorization server.

use super::load::{self, RequestRates};
use super::policy::PolicyShape;
use super::servers::{AllowAllServer, PolicyServer};
use crate::measure::{table, time, times};
use crate::namespace::{BenchResult, NamespaceGroup, check, ip};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tortie_testkit::Envoy;

const FIRST_PORT: u16 = 10_000;
const CONNECTION_COUNT: usize = 16;
const RULE_COUNTS: [usize; 3] = [1, 100, 1_000];
/// Number of repetitions, alternating between the candidates.
const REPETITIONS: usize = 7;
const ROUND_DURATION: Duration = Duration::from_millis(1_500);
const WARM_UP_DURATION: Duration = Duration::from_millis(500);
const TYPES: &str = "type.googleapis.com/envoy.extensions";

pub fn measure() -> BenchResult<()> {
    let host = NamespaceGroup::new(1)?;
    ip(Some(host.name(0)), ["link set lo up"])?;
    let dir = tempfile::Builder::new().prefix("tortie-bench-").tempdir()?;
    let allow_all = AllowAllServer::start(dir.path())?;
    let ours: Vec<PolicyServer> = RULE_COUNTS
        .into_iter()
        .map(|rules| PolicyServer::start(PolicyShape::rules(rules)))
        .collect::<BenchResult<_>>()?;
    let mut names = vec!["no filter".to_owned(), "allow-all server".to_owned()];
    names.extend(RULE_COUNTS.map(|rules| format!("tortie, {rules} rules")));
    let sockets = ours.iter().map(|server| server.socket.as_path());
    let servers: Vec<Option<&Path>> =
        [None, Some(allow_all.socket.as_path())].into_iter().chain(sockets.map(Some)).collect();
    let _envoy = Envoy::start(Some(host.name(0)), dir.path(), config(&servers));

    let mut measured: Vec<RequestRates> = servers.iter().map(|_| RequestRates::default()).collect();
    for round in 0..=REPETITIONS {
        for (port, rates) in (FIRST_PORT..).zip(&mut measured) {
            check()?;
            let duration = if round == 0 { WARM_UP_DURATION } else { ROUND_DURATION };
            let found = load::send_requests(&host.path(0), port, CONNECTION_COUNT, duration)?;
            if round > 0 {
                rates.add(found);
            }
        }
    }
    let baseline = measured.first().map_or(0.0, RequestRates::rate);
    let trivial = measured.get(1).map_or(0.0, RequestRates::rate);
    let rows: Vec<Vec<String>> = names
        .into_iter()
        .zip(&mut measured)
        .map(|(name, rates)| {
            let rate = rates.rate();
            let quantiles = [0.5, 0.99].map(|quantile| rates.latencies.quantile(quantile));
            let [median, high] = quantiles.map(|latency| time(latency.as_nanos() as f64));
            vec![name, format!("{rate:.0}/s"), median, high, times(rate / baseline), times(rate / trivial)]
        })
        .collect();
    table(
        "HTTP policy: requests through Envoy, which answers allowed requests itself; 16 connections",
        &["", "requests", "p50", "p99", "rate/no filter", "rate/allow-all"],
        &rows,
    );
    Ok(())
}

/// Builds a configuration with one listener for each authorization server. Envoy answers allowed requests itself, so
/// that a server of the application does not compete for the processors.
fn config(servers: &[Option<&Path>]) -> Value {
    let mut listeners = Vec::new();
    let mut clusters = Vec::new();
    for (port, server) in (FIRST_PORT..).zip(servers) {
        let name = format!("authorization-{port}");
        let mut filters = Vec::new();
        if let Some(socket) = server {
            filters.push(typed(
                "envoy.filters.http.ext_authz",
                "filters.http.ext_authz.v3.ExtAuthz",
                json!({
                    "transport_api_version": "V3",
                    "grpc_service": {"timeout": "5s", "envoy_grpc": {"cluster_name": name}},
                }),
            ));
            clusters.push(authorization_cluster(&name, socket));
        }
        filters.push(typed("envoy.filters.http.router", "filters.http.router.v3.Router", json!({})));
        let manager = json!({
            "stat_prefix": name,
            "route_config": {"virtual_hosts": [{
                "name": "all",
                "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}],
            }]},
            "http_filters": filters,
        });
        listeners.push(json!({
            "name": name,
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "filter_chains": [{"filters": [typed(
                "envoy.filters.network.http_connection_manager",
                "filters.network.http_connection_manager.v3.HttpConnectionManager",
                manager,
            )]}],
        }));
    }
    json!({"static_resources": {"listeners": listeners, "clusters": clusters}})
}

fn authorization_cluster(name: &str, socket: &Path) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": format!("{TYPES}.upstreams.http.v3.HttpProtocolOptions"),
                "explicit_http_config": {"http2_protocol_options": {}},
            },
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": socket}}}}]}],
        },
    })
}

fn typed(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("{TYPES}.{kind}"));
    json!({"name": name, "typed_config": config})
}
