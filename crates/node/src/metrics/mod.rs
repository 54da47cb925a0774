//! Prometheus metrics of the daemon, under the names that Felix uses, so that existing dashboards work.

mod page;
pub mod wireguard;

use crate::flow_records::FlowRecordStatus;
use crate::logs::LogCounters;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tortie_compute::{EvaluationCounts, ObjectCounts};
use tortie_dataplane::{EngineStats, PolicyStats};
use tortie_http::{SummaryMetric, declare_metrics, render_calico_registry};

/// Metrics with one label.
type LabelledFamily<M> = Family<[(&'static str, String); 1], M>;

declare_metrics! {
    #[derive(Debug, Default)]
    pub struct NodeMetrics {
        registry: Registry;
        pub flow: FlowMetrics;
        pub table: TableMetrics;
        pub policy_sync: PolicySyncMetrics;
        pub flow_records: FlowRecordMetrics;
        pub apply_time: SummaryMetric;
        pub fib_lag: FibLagMetric;
        log_counters: OnceLock<Arc<LogCounters>>;
        host: LabelledFamily<Gauge> = "felix_host", "Always 1, with the name of the host";
        pub resync_state: Gauge = "felix_resync_state", "1 waiting for the datastore, 2 resyncing, 3 in sync";
        pub resyncs: Counter = "felix_resyncs_started",
            "How often this host began to read the datastore, or read what it had missed";
        local_endpoints: Gauge = "felix_active_local_endpoints", "Endpoints active on this host";
        local_policies: Gauge = "felix_active_local_policies", "Policies in force on this host";
        unproxied_workloads: Gauge = "tortie_workloads_without_http_proxy",
            "Workloads with rules whose HTTP conditions no proxy enforces";
        local_selectors: Gauge = "felix_active_local_selectors", "Address sets in use on this host";
        hosts: Gauge = "felix_cluster_num_hosts", "Hosts of the cluster";
        workload_endpoints: Gauge = "felix_cluster_num_workload_endpoints", "Workload endpoints of the cluster";
        host_endpoints: Gauge = "felix_cluster_num_host_endpoints", "Host endpoints of the cluster";
        policies: Gauge = "felix_cluster_num_policies", "Policies of the cluster";
        profiles: Gauge = "felix_cluster_num_profiles", "Profiles of the cluster";
        tiers: Gauge = "felix_cluster_num_tiers", "Tiers of the cluster";
        labelled: Gauge = "felix_label_index_num_endpoints", "Endpoints and network sets with labels";
        selectors: LabelledFamily<Gauge> = "felix_label_index_num_active_selectors",
            "Selectors that are matched, by whether a label finds them";
        evaluations: LabelledFamily<Counter> = "felix_label_index_selector_evals",
            "Evaluations of selectors, by result";
        strategies: LabelledFamily<Counter> = "felix_label_index_strategy_evals",
            "Searches for what a new selector matches, by how they are done";
        pub routes: Gauge = "felix_route_table_num_routes", "Routes this host holds";
        pub proxied: Gauge = "tortie_proxied_addresses",
            "Addresses of workloads that links of this host answer for";
        pub updates: Counter = "felix_calc_graph_updates_processed", "Datastore updates";
        pub dataplane_failures: Counter = "felix_int_dataplane_failures",
            "Updates the kernel did not take and that are tried again";
        pub plan_consumer_resyncs: LabelledFamily<Counter> = "tortie_plan_consumer_resyncs",
            "How often a consumer of the plan was sent the whole plan, at its start or because too many changes waited";
        pub bad_objects: Counter = "tortie_bad_objects", "Objects that could not take effect";
        pub datastore_failures: Counter = "tortie_datastore_failed_attempts",
            "Attempts to follow the datastore that failed, counted when an outage ends";
        rejected_responses: Counter = "tortie_datastore_rejected_responses",
            "Responses of the API server that were too large or not what was requested";
        distrusted_lists: Counter = "tortie_datastore_distrusted_lists",
            "Lists of the datastore whose deletions were not applied because most known objects were missing";
        pub unrecorded: Gauge = "tortie_unrecorded_events", "Events after the end of a recording (--record)";
        pub address_conflicts: Gauge = "tortie_address_conflicts",
            "Addresses of live containers that the datastore gives to somebody else or does not know";
        pub refused: Gauge = "tortie_refused_objects",
            "Chains and sets the kernel does not take; what they guard is closed";
        pub policy_in_force: Gauge = "tortie_policy_in_force",
            "1 if the kernel enforces the policy of this node, 0 if it refuses the table";
        pub second_engine: Gauge = "tortie_second_policy_engine",
            "1 while chains of Calico's Felix are in the kernel beside the policy of this node";
        pub closed_connections: LabelledFamily<Counter> = "tortie_closed_connections",
            "Connections to the node that were closed because there were too many";
        pub cni_requests: Family<[(&'static str, String); 2], Counter> = "tortie_cni_requests",
            "CNI requests by command and code";
        log_lines_dropped: Counter = "felix_logs_dropped",
            "Lines for the log file or syslog that were dropped because there were too many at once";
        log_errors: Counter = "felix_log_errors", "Lines that the log file or syslog did not take";
    }
}

declare_metrics! {
    /// The nf_tables table that enforces policy. Its counters are copied from the dataplane and restart at zero with a
    /// new dataplane, as counters do when a process restarts.
    #[derive(Debug, Default)]
    pub struct TableMetrics {
        chains: Gauge = "felix_nft_chains", "Chains of our table";
        rules: Gauge = "felix_nft_rules", "Rules of our table";
        sets: Gauge = "felix_nft_sets", "Sets of our table";
        maps: Gauge = "felix_nft_maps", "Maps of our table";
        calls: Counter = "felix_nft_calls", "Transactions of our table";
        errors: Counter = "felix_nft_errors", "Transactions the kernel refused";
        list_calls: Counter = "felix_nft_list_calls", "Looks at the whole table";
        list_errors: Counter = "felix_nft_list_errors", "Looks that failed";
    }
}

declare_metrics! {
    /// Updates on their way from the datastore through the plan to the kernel.
    #[derive(Debug, Default)]
    pub struct FlowMetrics {
        /// Time to process datastore updates into changes of the plan.
        pub plan_time: SummaryMetric;
        pub batch: SummaryMetric;
        pub plan_updates: Counter = "felix_calc_graph_output_events", "Changes of the plan";
        pub first_sync: Gauge<f64, AtomicU64> = "felix_int_dataplane_initial_resync_time_seconds",
            "From the start of the dataplane until the kernel had the plan";
    }
}

declare_metrics! {
    /// The policy-sync server and its clients, the HTTP proxies of workloads.
    #[derive(Debug, Default)]
    pub struct PolicySyncMetrics {
        pub subscribers: Gauge = "tortie_policy_sync_subscribers", "Proxies that receive the policy of their workload";
        pub resyncs: Counter = "tortie_policy_sync_resyncs",
            "How often a proxy had not read too many changes, so that sets were sent again";
        pub refused_streams: Counter = "tortie_policy_sync_refused_streams",
            "Streams that were refused because the clients of a workload began too many";
        pub refused_credentials: Counter = "tortie_policy_sync_refused_credentials",
            "Credential files that could not be used, and sockets that could not be created";
        pub reports: Counter = "tortie_policy_sync_reports", "Statistics that proxies reported";
    }
}

declare_metrics! {
    /// The recording of flows.
    #[derive(Debug, Default)]
    pub struct FlowRecordMetrics {
        allowed: Counter = "tortie_flow_records_allowed_connections", "New connections in flow records";
        denied: Counter = "tortie_flow_records_denied_packets", "Denied packets in flow records";
        counted: LabelledFamily<Counter> = "tortie_flow_records_counted_only",
            "New connections and denied packets that the kernel counted without their addresses";
        agreements: Counter = "tortie_flow_records_agreements",
            "Flows whose rule in the kernel was the one that the plan says";
        disagreements: Counter = "tortie_flow_records_disagreements",
            "Flows whose rule in the kernel was not the one that the plan says";
        lost: LabelledFamily<Counter> = "tortie_flow_records_lost", "Events of flows that were lost, by part";
        flows: Gauge = "tortie_flow_records_flows", "Flows of the last hour in memory";
        bytes: Gauge = "tortie_flow_records_bytes", "Estimated memory of flow records";
        folded: Counter = "tortie_flow_records_folded_flows",
            "Flows that were combined because of the memory limit";
        sent: Counter = "tortie_flow_records_sent", "Flows that were sent to the collector";
    }
}

impl FlowRecordMetrics {
    pub fn set(&self, status: &FlowRecordStatus) {
        let stats = &status.stats;
        set_counter(&self.allowed, stats.allowed);
        set_counter(&self.denied, stats.denied);
        for (verdict, number) in [("allowed", stats.other_allowed), ("denied", stats.other_denied)] {
            set_counter(&self.counted.get_or_create(&[("verdict", verdict.to_owned())]), number);
        }
        set_counter(&self.agreements, stats.agreements);
        set_counter(&self.disagreements, stats.disagreements);
        for (part, number) in [
            ("openings", stats.lost_openings),
            ("endings", stats.lost_endings),
            ("receiver", stats.lost_receiver),
            ("reads", stats.lost_reads),
            ("keys", stats.forgotten_keys),
            ("connections", stats.forgotten_connections),
            ("rejected", status.rejected),
        ] {
            set_counter(&self.lost.get_or_create(&[("part", part.to_owned())]), number);
        }
        set_gauge(&self.flows, status.flows);
        set_gauge(&self.bytes, status.flow_bytes + status.key_bytes);
        set_counter(&self.folded, status.folded);
        set_counter(&self.sent, status.push.as_ref().map_or(0, |push| push.sent));
    }
}

/// Time from learning a route until the kernel has it.
#[derive(Debug)]
pub struct FibLagMetric(pub Histogram);

impl Default for FibLagMetric {
    fn default() -> FibLagMetric {
        FibLagMetric(Histogram::new(exponential_buckets(0.001, 2.0, 15)))
    }
}

impl TableMetrics {
    pub fn set(&self, stats: &PolicyStats) {
        let EngineStats::Nftables { chains, maps } = stats.engine;
        set_gauge(&self.chains, chains);
        set_gauge(&self.rules, stats.rules);
        set_gauge(&self.sets, stats.sets);
        set_gauge(&self.maps, maps);
        set_counter(&self.calls, stats.writes);
        set_counter(&self.errors, stats.refused_writes);
        set_counter(&self.list_calls, stats.reads);
        set_counter(&self.list_errors, stats.failed_reads);
    }
}

impl NodeMetrics {
    pub fn new(host: &str) -> NodeMetrics {
        let mut metrics = NodeMetrics::default();
        metrics.resync_state.set(1);
        metrics.resyncs.inc();
        metrics.host.get_or_create(&[("host", host.to_owned())]).set(1);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.flow.register(&mut registry);
        metrics.table.register(&mut registry);
        metrics.policy_sync.register(&mut registry);
        metrics.flow_records.register(&mut registry);
        registry.register(
            "bgp_fib_lag_seconds",
            "Time from learning routes to having them in the kernel, of the oldest of each batch",
            metrics.fib_lag.0.clone(),
        );
        metrics.registry = registry;
        metrics
    }

    /// Sets the gauges and counters that describe the size of the plan.
    pub fn set_totals(&self, totals: &ObjectCounts) {
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
            set_gauge(gauge, number);
        }
        let indexed = totals.indexed_selectors;
        for (optimized, number) in [("true", indexed), ("false", totals.selectors.saturating_sub(indexed))] {
            set_gauge(&self.selectors.get_or_create(&[("optimized", optimized.to_owned())]), number);
        }
        let EvaluationCounts { matching, failing, by_value, by_key, among_all } = totals.evaluations;
        for (result, number) in [("true", matching), ("false", failing)] {
            set_counter(&self.evaluations.get_or_create(&[("result", result.to_owned())]), number);
        }
        for (strategy, number) in
            [("label-value", by_value), ("label-name", by_key), ("full-scan", among_all)]
        {
            set_counter(&self.strategies.get_or_create(&[("strategy", strategy.to_owned())]), number);
        }
    }

    /// Sets the counters of the process's log, which exist once.
    pub fn set_log_counters(&self, counters: Arc<LogCounters>) {
        let _ = self.log_counters.set(counters);
    }

    /// Renders the metrics in the Prometheus text format.
    pub fn text(&self) -> String {
        if let Some(lines) = self.log_counters.get() {
            set_counter(&self.log_lines_dropped, lines.dropped.load(Ordering::Relaxed));
            set_counter(&self.log_errors, lines.errors.load(Ordering::Relaxed));
        }
        set_counter(&self.rejected_responses, tortie_store::rejected_responses());
        set_counter(&self.distrusted_lists, tortie_store::distrusted_lists());
        let mut text = render_calico_registry(&self.registry, "felix_");
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
            text += &summary.text(name, help);
        }
        text
    }
}

fn set_gauge(gauge: &Gauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

/// Sets a counter to a value that is counted elsewhere.
fn set_counter(counter: &Counter, number: u64) {
    counter.inner().store(number, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_dashboards_know() {
        let metrics = NodeMetrics::new("n1");
        metrics.set_totals(&ObjectCounts {
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
