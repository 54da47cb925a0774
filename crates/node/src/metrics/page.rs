//! Generates docs/reference/metrics.md from the metrics that a scraper gets. A test fails if the page is stale.
#![cfg(test)]

use super::NodeMetrics;
use crate::flow_records::FlowRecordStatus;
use crate::{bgp, http};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use tortie_bgp::PerFamily;
use tortie_bgp::core::{BgpPeerState, PeerStatus, SpeakerStatus};
use tortie_compute::ObjectCounts;
use tortie_dataplane::{CountedStage, CountedVerdict, CounterSubject, RuleCounter};
use tortie_plan::PolicyDirection;

const METRICS_PAGE_HEAD: &str = "# Metrics

<!-- Made from the code by `make docs-reference`. Do not edit. -->

`tortie node` serves these on `/metrics` in Prometheus' text format if FelixConfiguration has `prometheusMetricsEnabled: true`, on the
address `prometheusMetricsHost` and the port `prometheusMetricsPort` (9091). Names that begin with `felix_` or `wireguard_` are Calico's.

The series of a peer restart from zero when its session is reconfigured, and end with the peer. Of `tortie_denied_packets_total`, the 200
rules that denied most packets have their own series, and the others are added up under `policy=\"others\"`. The counter of a rule restarts
from zero when the rule is rewritten.

## Calico's Grafana dashboards

| dashboard | panels with data | panels without data |
| --- | --- | --- |
| Calico: Felix | the rows *Cluster-wide metrics*, *Active resources on each node*, *Calculation graph*; in *Process metrics*: restarts, datastore resyncs, CPU usage, open file descriptors, process memory; in *Dataplane: common*: update load, operations per minute, update time | the *Runtime GC* panels (Tortie has no garbage collector), *Dataplane subprocess errors* (it runs no subprocesses), the rows *Dataplane: iptables* and *Dataplane: eBPF*, and all panels about NFLOG and flow logs |
| Calico Typha, with [hubs](../hub.md) | all; CPU and memory usage if the Prometheus job is called `typha_metrics`, as the dashboard expects | none |

In place of the iptables panels: `felix_nft_rules`, `felix_nft_sets`, `felix_nft_errors` and `felix_int_dataplane_failures`.

## All metrics

| metric | type | labels | meaning |
| --- | --- | --- | --- |
";

/// Metrics in the panels of Calico's Felix dashboard that the page lists as panels with data.
const FELIX_DASHBOARD_METRICS: [&str; 15] = [
    "felix_active_local_endpoints",
    "felix_active_local_policies",
    "felix_active_local_selectors",
    "felix_calc_graph_update_time_seconds",
    "felix_cluster_num_host_endpoints",
    "felix_cluster_num_hosts",
    "felix_cluster_num_policies",
    "felix_cluster_num_profiles",
    "felix_cluster_num_tiers",
    "felix_cluster_num_workload_endpoints",
    "felix_int_dataplane_apply_time_seconds",
    "felix_resyncs_started",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_resident_memory_bytes",
];

/// Returns metrics in which every label has at least one value.
fn render_sample() -> String {
    let metrics = NodeMetrics::new("node1");
    metrics.set_totals(&ObjectCounts::default());
    metrics.flow_records.set(&FlowRecordStatus::default());
    metrics.cni_requests.get_or_create(&[("command", "ADD".into()), ("code", "0".into())]).inc();
    metrics.closed_connections.get_or_create(&[("listener", "health".into())]).inc();
    metrics.plan_consumer_resyncs.get_or_create(&[("consumer", "bgp".into())]).inc();
    let peer = PeerStatus { state: BgpPeerState::Established, ..PeerStatus::down("peer", Duration::ZERO) };
    let status = SpeakerStatus {
        now: Duration::ZERO,
        asn: 1,
        router_id: Ipv4Addr::LOCALHOST,
        restarting: false,
        routes: PerFamily::default(),
        attributes: 0,
        peers: vec![peer],
    };
    let denial = RuleCounter {
        of: CounterSubject::NoProfile { direction: PolicyDirection::Ingress },
        when: CountedStage::Normal,
        verdict: CountedVerdict::Deny,
        packets: 1,
        bytes: 60,
    };
    metrics.text()
        + &tortie_http::process::render_metrics()
        + &super::wireguard::render_metrics("node1", &[super::wireguard::sample()])
        + &bgp::render_metrics(&status)
        + &http::render_counters(&[denial])
}

fn render_page() -> String {
    let text = render_sample();
    let mut help: BTreeMap<&str, &str> = BTreeMap::new();
    let mut rows: BTreeMap<String, String> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, meaning)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help.insert(name, meaning.trim_end_matches('.'));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            // The name as used in queries: samples of a counter end in `_total`, except for Calico's metrics.
            let total = format!("{name}_total");
            let mut samples = text.lines().filter_map(|line| line.split(['{', ' ']).next());
            let full = if samples.any(|sample| sample == total) { total } else { name.to_owned() };
            let labels = list_labels(&text, &full);
            let meaning = help.get(name).copied().unwrap_or_default();
            rows.insert(full.clone(), format!("| `{full}` | {kind} | {labels} | {meaning} |"));
        }
    }
    let mut page = METRICS_PAGE_HEAD.to_owned();
    rows.values().for_each(|row| {
        let _ = writeln!(page, "{row}");
    });
    page
}

/// Returns the label names of a metric.
fn list_labels(text: &str, metric: &str) -> String {
    let sample = text.lines().find_map(|line| line.strip_prefix(&format!("{metric}{{")));
    let Some((inside, _)) = sample.and_then(|rest| rest.split_once('}')) else { return String::new() };
    let names: Vec<String> =
        inside.split(',').filter_map(|pair| Some(format!("`{}`", pair.split_once('=')?.0))).collect();
    names.join(", ")
}

/// Compares the page with the code. With `TORTIE_REFRESH=1` it writes the page first.
#[test]
fn the_metrics_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    if std::env::var_os("TORTIE_REFRESH").is_some() {
        std::fs::write(&path, render_page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == render_page(), "docs/reference/metrics.md is stale: run `make docs-reference`");
    for name in FELIX_DASHBOARD_METRICS {
        assert!(written.contains(&format!("| `{name}` |")), "the Felix dashboard needs {name}");
    }
    for row in [
        "| `tortie_denied_packets_total` | counter | `policy`, `direction`, `rule` |",
        "| `felix_nft_rules` | gauge |",
    ] {
        assert!(written.contains(row), "{row}\n{written}");
    }
}
