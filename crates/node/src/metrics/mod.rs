//! Prometheus metrics of the daemon, under the names that Felix uses, so that existing dashboards work.

mod page;
pub mod wireguard;

use crate::logs::LogCounters;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tortie_compute::{EvaluationCounts, ObjectCounts};
use tortie_dataplane::{EngineStats, PolicyStats};
use tortie_http::SummaryMetric;

#[derive(Debug)]
pub struct NodeMetrics {
    registry: Registry,
    pub resync_state: Gauge,
    pub resyncs: Counter,
    local_endpoints: Gauge,
    local_policies: Gauge,
    unproxied_workloads: Gauge,
    local_selectors: Gauge,
    hosts: Gauge,
    workload_endpoints: Gauge,
    host_endpoints: Gauge,
    policies: Gauge,
    profiles: Gauge,
    tiers: Gauge,
    labelled: Gauge,
    selectors: Family<[(&'static str, String); 1], Gauge>,
    evaluations: Family<[(&'static str, String); 1], Counter>,
    strategies: Family<[(&'static str, String); 1], Counter>,
    pub flow: FlowMetrics,
    pub routes: Gauge,
    /// Addresses of workloads for which interfaces of the host answer ARP and ND requests.
    pub proxied: Gauge,
    pub updates: Counter,
    pub dataplane_failures: Counter,
    pub apply_time: SummaryMetric,
    pub bad_objects: Counter,
    /// Failed attempts to reach the datastore.
    pub datastore_failures: Counter,
    rejected_responses: Counter,
    distrusted_lists: Counter,
    /// Events that are missing in the recording because it has ended.
    pub unrecorded: Gauge,
    pub refused: Gauge,
    /// 1, or 0 while the kernel refuses the policy table as a whole.
    pub policy_in_force: Gauge,
    /// 1 while Felix's chains are in the kernel beside our policy.
    pub second_engine: Gauge,
    pub address_conflicts: Gauge,
    pub cni_requests: Family<[(&'static str, String); 2], Counter>,
    /// Connections that were closed because of the connection limit, by listener.
    pub closed_connections: Family<[(&'static str, String); 1], Counter>,
    pub table: TableMetrics,
    log: LogMetrics,
    /// Time from learning a route until the kernel has it.
    pub fib_lag: Histogram,
}

/// Log lines that were not written.
#[derive(Debug, Default)]
struct LogMetrics {
    counters: OnceLock<Arc<LogCounters>>,
    dropped: Counter,
    errors: Counter,
}

/// The nf_tables table that enforces policy.
#[derive(Debug, Default)]
pub struct TableMetrics {
    chains: Gauge,
    rules: Gauge,
    sets: Gauge,
    maps: Gauge,
    // These counters are copied from the dataplane and restart at zero with a new dataplane, as counters do when a
    // process restarts.
    calls: Counter,
    errors: Counter,
    list_calls: Counter,
    list_errors: Counter,
}

impl TableMetrics {
    pub fn set(&self, stats: &PolicyStats) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let EngineStats::Nftables { chains, maps } = stats.engine;
        self.chains.set(count(chains));
        self.rules.set(count(stats.rules));
        self.sets.set(count(stats.sets));
        self.maps.set(count(maps));
        counted(&self.calls, stats.writes);
        counted(&self.errors, stats.refused_writes);
        counted(&self.list_calls, stats.reads);
        counted(&self.list_errors, stats.failed_reads);
    }
}

/// Updates on their way from the datastore through the plan to the kernel.
#[derive(Debug, Default)]
pub struct FlowMetrics {
    pub plan_updates: Counter,
    /// Time to process datastore updates into changes of the plan.
    pub plan_time: SummaryMetric,
    pub batch: SummaryMetric,
    pub first_sync: Gauge<f64, AtomicU64>,
}

impl FlowMetrics {
    fn register(&self, r: &mut Registry) {
        r.register("felix_calc_graph_output_events", "Changes of the plan", self.plan_updates.clone());
        r.register(
            "felix_int_dataplane_initial_resync_time_seconds",
            "From the start of the dataplane until the kernel had the plan",
            self.first_sync.clone(),
        );
    }
}

impl NodeMetrics {
    pub fn new(host: &str) -> NodeMetrics {
        let mut metrics = NodeMetrics {
            registry: Registry::default(),
            resync_state: Gauge::default(),
            resyncs: Counter::default(),
            local_endpoints: Gauge::default(),
            local_policies: Gauge::default(),
            unproxied_workloads: Gauge::default(),
            local_selectors: Gauge::default(),
            hosts: Gauge::default(),
            workload_endpoints: Gauge::default(),
            host_endpoints: Gauge::default(),
            policies: Gauge::default(),
            profiles: Gauge::default(),
            tiers: Gauge::default(),
            labelled: Gauge::default(),
            selectors: Family::default(),
            evaluations: Family::default(),
            strategies: Family::default(),
            flow: FlowMetrics::default(),
            routes: Gauge::default(),
            proxied: Gauge::default(),
            updates: Counter::default(),
            dataplane_failures: Counter::default(),
            apply_time: SummaryMetric::default(),
            bad_objects: Counter::default(),
            rejected_responses: Counter::default(),
            distrusted_lists: Counter::default(),
            datastore_failures: Counter::default(),
            unrecorded: Gauge::default(),
            refused: Gauge::default(),
            policy_in_force: Gauge::default(),
            second_engine: Gauge::default(),
            address_conflicts: Gauge::default(),
            cni_requests: Family::default(),
            closed_connections: Family::default(),
            table: TableMetrics::default(),
            log: LogMetrics::default(),
            fib_lag: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
        };
        metrics.resync_state.set(1);
        metrics.resyncs.inc();
        let hosts: Family<[(&'static str, String); 1], Gauge> = Family::default();
        hosts.get_or_create(&[("host", host.to_owned())]).set(1);
        let r = &mut metrics.registry;
        r.register("felix_host", "Always 1, with the name of the host", hosts);
        r.register(
            "felix_resync_state",
            "1 waiting for the datastore, 2 resyncing, 3 in sync",
            metrics.resync_state.clone(),
        );
        r.register(
            "felix_resyncs_started",
            "How often this host began to read the datastore, or read what it had missed",
            metrics.resyncs.clone(),
        );
        for (name, help, gauge) in [
            ("felix_active_local_endpoints", "Endpoints active on this host", &metrics.local_endpoints),
            ("felix_active_local_policies", "Policies in force on this host", &metrics.local_policies),
            (
                "tortie_workloads_without_http_proxy",
                "Workloads with rules whose HTTP conditions no proxy enforces",
                &metrics.unproxied_workloads,
            ),
            ("felix_active_local_selectors", "Address sets in use on this host", &metrics.local_selectors),
            ("felix_cluster_num_hosts", "Hosts of the cluster", &metrics.hosts),
            (
                "felix_cluster_num_workload_endpoints",
                "Workload endpoints of the cluster",
                &metrics.workload_endpoints,
            ),
            ("felix_cluster_num_host_endpoints", "Host endpoints of the cluster", &metrics.host_endpoints),
            ("felix_cluster_num_policies", "Policies of the cluster", &metrics.policies),
            ("felix_cluster_num_profiles", "Profiles of the cluster", &metrics.profiles),
            ("felix_cluster_num_tiers", "Tiers of the cluster", &metrics.tiers),
            ("felix_label_index_num_endpoints", "Endpoints and network sets with labels", &metrics.labelled),
        ] {
            r.register(name, help, gauge.clone());
        }
        r.register(
            "felix_label_index_num_active_selectors",
            "Selectors that are matched, by whether a label finds them",
            metrics.selectors.clone(),
        );
        r.register(
            "felix_label_index_selector_evals",
            "Evaluations of selectors, by result",
            metrics.evaluations.clone(),
        );
        r.register(
            "felix_label_index_strategy_evals",
            "Searches for what a new selector matches, by how they are done",
            metrics.strategies.clone(),
        );
        metrics.flow.register(r);
        r.register("felix_route_table_num_routes", "Routes this host holds", metrics.routes.clone());
        r.register(
            "tortie_proxied_addresses",
            "Addresses of workloads that links of this host answer for",
            metrics.proxied.clone(),
        );
        r.register("felix_calc_graph_updates_processed", "Datastore updates", metrics.updates.clone());
        r.register(
            "felix_int_dataplane_failures",
            "Updates the kernel did not take and that are tried again",
            metrics.dataplane_failures.clone(),
        );
        r.register("tortie_bad_objects", "Objects that could not take effect", metrics.bad_objects.clone());
        r.register(
            "tortie_datastore_failed_attempts",
            "Attempts to follow the datastore that failed, counted when an outage ends",
            metrics.datastore_failures.clone(),
        );
        r.register(
            "tortie_datastore_rejected_responses",
            "Responses of the API server that were too large or not what was requested",
            metrics.rejected_responses.clone(),
        );
        r.register(
            "tortie_datastore_distrusted_lists",
            "Lists of the datastore whose deletions were not applied because most known objects were missing",
            metrics.distrusted_lists.clone(),
        );
        r.register(
            "tortie_unrecorded_events",
            "Events after the end of a recording (--record)",
            metrics.unrecorded.clone(),
        );
        r.register(
            "tortie_address_conflicts",
            "Addresses of live containers that the datastore gives to somebody else or does not know",
            metrics.address_conflicts.clone(),
        );
        r.register(
            "tortie_refused_objects",
            "Chains and sets the kernel does not take; what they guard is closed",
            metrics.refused.clone(),
        );
        r.register(
            "tortie_policy_in_force",
            "1 if the kernel enforces the policy of this node, 0 if it refuses the table",
            metrics.policy_in_force.clone(),
        );
        r.register(
            "tortie_second_policy_engine",
            "1 while chains of Calico's Felix are in the kernel beside the policy of this node",
            metrics.second_engine.clone(),
        );
        r.register(
            "tortie_closed_connections",
            "Connections to the node that were closed because there were too many",
            metrics.closed_connections.clone(),
        );
        r.register("tortie_cni_requests", "CNI requests by command and code", metrics.cni_requests.clone());
        r.register(
            "bgp_fib_lag_seconds",
            "Time from learning routes to having them in the kernel, of the oldest of each batch",
            metrics.fib_lag.clone(),
        );
        r.register(
            "felix_logs_dropped",
            "Lines for the log file or syslog that were dropped because there were too many at once",
            metrics.log.dropped.clone(),
        );
        r.register(
            "felix_log_errors",
            "Lines that the log file or syslog did not take",
            metrics.log.errors.clone(),
        );
        let table = &metrics.table;
        r.register("felix_nft_chains", "Chains of our table", table.chains.clone());
        r.register("felix_nft_rules", "Rules of our table", table.rules.clone());
        r.register("felix_nft_sets", "Sets of our table", table.sets.clone());
        r.register("felix_nft_maps", "Maps of our table", table.maps.clone());
        r.register("felix_nft_calls", "Transactions of our table", table.calls.clone());
        r.register("felix_nft_errors", "Transactions the kernel refused", table.errors.clone());
        r.register("felix_nft_list_calls", "Looks at the whole table", table.list_calls.clone());
        r.register("felix_nft_list_errors", "Looks that failed", table.list_errors.clone());
        metrics
    }

    /// Sets the gauges and counters that describe the size of the plan.
    pub fn count(&self, totals: &ObjectCounts) {
        let set = |gauge: &Gauge, number: usize| gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        for (gauge, number) in [
            (&self.local_endpoints, totals.local_workloads),
            (&self.local_policies, totals.active_policies),
            (&self.unproxied_workloads, totals.unproxied_workloads),
            (&self.local_selectors, totals.sets),
            (&self.hosts, totals.nodes),
            (&self.workload_endpoints, totals.workload_endpoints),
            (&self.host_endpoints, totals.host_endpoints),
            (&self.policies, totals.policies),
            (&self.profiles, totals.profiles),
            (&self.tiers, totals.tiers),
            (&self.labelled, totals.labelled),
        ] {
            set(gauge, number);
        }
        let indexed = totals.indexed_selectors;
        for (optimized, number) in [("true", indexed), ("false", totals.selectors.saturating_sub(indexed))] {
            set(&self.selectors.get_or_create(&[("optimized", optimized.to_owned())]), number);
        }
        for (result, number) in [("true", totals.evaluations.matching), ("false", totals.evaluations.failing)]
        {
            counted(&self.evaluations.get_or_create(&[("result", result.to_owned())]), number);
        }
        let EvaluationCounts { by_value, by_key, among_all, .. } = totals.evaluations;
        for (strategy, number) in
            [("label-value", by_value), ("label-name", by_key), ("full-scan", among_all)]
        {
            counted(&self.strategies.get_or_create(&[("strategy", strategy.to_owned())]), number);
        }
    }

    pub fn count_lines(&self, of: Arc<LogCounters>) {
        // A process has only one log, so the counters are set once.
        let _ = self.log.counters.set(of);
    }

    /// Renders the metrics in the Prometheus text format.
    pub fn text(&self) -> String {
        if let Some(lines) = self.log.counters.get() {
            counted(&self.log.dropped, lines.dropped.load(Ordering::Relaxed));
            counted(&self.log.errors, lines.errors.load(Ordering::Relaxed));
        }
        counted(&self.rejected_responses, tortie_store::rejected_responses());
        counted(&self.distrusted_lists, tortie_store::distrusted_lists());
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        let mut plain: String =
            text.lines().filter(|line| *line != "# EOF").map(|line| plain(line) + "\n").collect();
        for (name, help, summary) in [
            (
                "felix_calc_graph_update_time_seconds",
                "Time to find what a change of the datastore means for the plan",
                &self.flow.plan_time,
            ),
            (
                "felix_int_dataplane_msg_batch_size",
                "Changes of the plan that are applied together",
                &self.flow.batch,
            ),
            ("felix_int_dataplane_apply_time_seconds", "Time to apply an update", &self.apply_time),
        ] {
            plain += &summary.text(name, help);
        }
        plain
    }
}

/// Sets a counter to a value that is counted elsewhere.
fn counted(counter: &Counter, number: u64) {
    counter.inner().store(number, Ordering::Relaxed);
}

/// Removes the suffix `_total` from Felix metrics, whose established names do not have it.
fn plain(line: &str) -> String {
    let end = line.find(['{', ' ']).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    match name.strip_suffix("_total") {
        Some(known) if name.starts_with("felix_") => format!("{known}{rest}"),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_dashboards_know() {
        let metrics = NodeMetrics::new("n1");
        metrics.count(&ObjectCounts {
            active_policies: 7,
            selectors: 5,
            indexed_selectors: 4,
            ..ObjectCounts::default()
        });
        let text = metrics.text();
        for line in [
            "felix_host{host=\"n1\"} 1",
            "felix_resync_state 1",
            "felix_int_dataplane_failures 0",
            "felix_active_local_policies 7",
            "felix_cluster_num_tiers 0",
            "felix_label_index_num_active_selectors{optimized=\"true\"} 4",
            "felix_label_index_num_active_selectors{optimized=\"false\"} 1",
            "felix_label_index_selector_evals{result=\"true\"} 0",
            "felix_label_index_strategy_evals{strategy=\"full-scan\"} 0",
            "felix_calc_graph_output_events 0",
            "felix_nft_calls 0",
            "# TYPE felix_nft_calls counter",
            "felix_resyncs_started 1",
            "# TYPE felix_int_dataplane_apply_time_seconds summary",
            "felix_int_dataplane_apply_time_seconds_count 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
