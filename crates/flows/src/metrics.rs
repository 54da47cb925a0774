//! Metrics of the collector, with Goldmane's names where the meaning is the same.

use crate::collector::FlowCollector;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tortie_http::{MetricsPage, SummaryMetric, add_metrics, declare_metrics, render_registry};

declare_metrics! {
    #[derive(Debug, Default)]
    pub struct CollectorMetrics {
        registry: Registry;
        pub received: Counter = "goldmane_aggr_received_flows", "Flows that nodes sent";
        pub dropped: Counter = "goldmane_aggr_dropped_flows", "Flows that were not recorded: unusable or too old";
        pub clients: Gauge = "goldmane_collector_num_clients", "Nodes that are connected";
        pub streams: Gauge = "goldmane_num_streams", "Streams of readers";
        pub refused_streams: Counter = "tortie_flows_refused_streams", "Streams refused because there were too many";
        pub refused_queries: Counter = "tortie_flows_refused_queries", "Queries refused because others took too long";
        pub oversized_lists: Counter = "tortie_flows_oversized_lists", "Lists, hints and statistics refused because the result was too large";
        pub refused_connections: Counter = "tortie_flows_refused_connections",
            "Connections closed because there were too many, also of one source during the TLS handshake";
        pub failed_handshakes: Counter = "tortie_flows_failed_handshakes",
            "Connections without a TLS handshake with an accepted client certificate";
        pub resent: Counter = "tortie_flows_resent_flows", "Flows that a node sent again after it reconnected";
        pub late: Counter = "tortie_flows_late_flows",
            "Flows that arrived after their bucket was complete, so live streams do not contain them";
        pub folded: Counter = "tortie_flows_folded_keys", "Keys folded into the keys named other because of the memory limit";
        pub skipped_flows: Counter = "tortie_flows_skipped_flows", "Flows that a stream lost because its reader was slow";
        pub skipped_buckets: Counter = "tortie_flows_skipped_buckets",
            "Buckets that a stream lost because they left the ring first";
        pub index_time: SummaryMetric;
        pub rollover_time: SummaryMetric;
        pub rollover_delay: SummaryMetric;
        pub backfill_time: SummaryMetric;
    }
}

impl CollectorMetrics {
    pub fn new() -> CollectorMetrics {
        let mut metrics = CollectorMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.registry = registry;
        metrics
    }

    /// Renders the metrics page.
    pub fn render(&self, collector: &FlowCollector) -> String {
        let mut page = MetricsPage(render_registry(&self.registry));
        let (keys, bytes) = collector.read(|ring| (ring.keys(), ring.bytes()));
        let received = self.received.get();
        add_metrics! { page;
            gauge "goldmane_aggr_num_unique_flows", "Keys in the ring." => keys;
            gauge "goldmane_collector_received_flows", "Flows that nodes sent." => received;
            gauge "tortie_flows_ring_bytes", "Estimated memory of the ring." => bytes;
            counter "tortie_flows_forgotten_resends_total",
                "Flows that would be counted twice if a node sent them again, because there were too many to remember."
                => collector.forgotten_resends();
        }
        for (name, help, summary) in [
            ("goldmane_aggr_flow_index_latency_ms", "Time to record a flow, one in 64", &self.index_time),
            ("goldmane_aggr_rollover_duration_ms", "Time to drop the oldest bucket", &self.rollover_time),
            ("goldmane_aggr_rollover_latency_ms", "Delay of a new bucket", &self.rollover_delay),
            (
                "goldmane_aggr_backfill_latency_ms",
                "Time to send the history to a stream",
                &self.backfill_time,
            ),
        ] {
            page.0 += &summary.text(name, help);
        }
        page.0 + &tortie_http::process::render_metrics()
    }
}
