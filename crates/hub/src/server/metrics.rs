//! Metrics of the hub, with Typha's names where the meaning is the same.

use crate::ledger::{HubLedger, LedgerBucket};
use crate::session::ClientSession;
use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tortie_http::{SummaryMetric, declare_metrics, render_calico_registry};

type HubMetricLabels = [(&'static str, &'static str); 1];

declare_metrics! {
    #[derive(Debug, Default)]
    pub struct HubMetrics {
        registry: Registry;
        // Typha's log counters: a hub waits until a line is written and keeps no log file.
        logs_dropped: Counter = "typha_logs_dropped", "Dropped lines of the log: always 0";
        log_errors: Counter = "typha_log_errors", "Unwritten lines of the log: always 0";
        pub accepted: Counter = "typha_connections_accepted", "Connections that were accepted";
        pub dropped: Counter = "typha_connections_dropped",
            "Connections ended by the hub: slow or dead clients, or balance";
        pub active: Gauge = "typha_connections_active", "Connections that are open";
        streaming: Family<HubMetricLabels, Gauge> = "typha_connections_streaming",
            "Clients that get changes as they happen";
        encoded: Counter = "typha_snapshots_generated", "Buckets that were encoded";
        reused: Counter = "typha_snapshots_reused", "Buckets that were sent as encoded before";
        raw_bytes: Gauge = "typha_snapshot_raw_bytes", "Size of all buckets before compression, as last encoded";
        compressed_bytes: Gauge = "typha_snapshot_compressed_bytes", "Size of all buckets as last encoded";
        fell_behind: Family<HubMetricLabels, Counter> = "typha_connections_grace_used",
            "Clients that fell out of the change log";
        waited: Counter = "typha_breadcrumb_block", "Changes that a client had waited for";
        did_not_wait: Counter = "typha_breadcrumb_non_block", "Changes that a client did not wait for";
        sequence: Gauge = "typha_breadcrumb_seq_number", "Frames of changes so far";
        updates: Counter = "typha_updates_total", "Updates from the datastore";
        skipped: Counter = "typha_updates_skipped", "Updates that changed nothing";
        entries: Gauge = "typha_cache_size", "Entries that the hub knows";
        openings: Family<HubMetricLabels, Counter> = "tortie_hub_openings",
            "Clients by how they began: resumed or buckets";
        refused: Family<HubMetricLabels, Counter> = "tortie_hub_refused",
            "Connections that were not served, by reason";
        pub evicted: Counter = "tortie_hub_evicted_clients", "Clients disconnected because of MaxBufferBytes";
        buffered: Gauge = "tortie_hub_buffered_bytes", "Bytes that are on their way to clients";
        bytes: Counter = "tortie_hub_sent_bytes", "Bytes sent to clients";
        log_bytes: Gauge = "tortie_hub_log_bytes", "Size of the log of changes";
        unsuitable: Gauge = "tortie_hub_unsuitable_entries", "Entries that the protocol does not carry";
        oversized: Gauge = "tortie_hub_oversized_entries", "Entries too large to be forwarded";
        snapshot_time: SummaryMetric;
        write_time: SummaryMetric;
        ping_time: SummaryMetric;
        /// Latency of a change until a client has it, and of gathering its frames.
        client_time: SummaryMetric;
        gather_time: SummaryMetric;
        /// Entries per frame of changes, and per message to a client.
        frame_size: SummaryMetric;
        message_size: SummaryMetric;
        /// Size of each bucket when it was last encoded: bytes before and after compression.
        sizes: Mutex<BTreeMap<usize, (u64, u64)>>;
    }
}

fn set(gauge: &Gauge, number: u64) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

/// Counts a client as streaming until dropped.
#[derive(Debug)]
pub struct StreamingGuard(Gauge);

impl Drop for StreamingGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl HubMetrics {
    pub fn new() -> HubMetrics {
        let mut metrics = HubMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.registry = registry;
        // A family without members would be missing from the page.
        drop(metrics.streaming.get_or_create(&[("syncer", "felix")]));
        drop(metrics.fell_behind.get_or_create(&[("syncer", "felix")]));
        metrics
    }

    pub fn set_ledger(&self, ledger: &HubLedger) {
        let counts = ledger.counts();
        set(&self.sequence, ledger.sequence());
        for (counter, number) in [(&self.updates, counts.updates), (&self.skipped, counts.skipped)] {
            counter.inner().store(number, Ordering::Relaxed);
        }
        for entries in ledger.batches() {
            self.frame_size.observe(*entries as f64);
            self.message_size.observe(*entries as f64);
        }
        set(&self.entries, counts.entries as u64);
        set(&self.unsuitable, counts.unsuitable);
        set(&self.oversized, counts.oversized);
        set(&self.log_bytes, ledger.log_bytes() as u64);
    }

    pub fn count_streaming(&self) -> StreamingGuard {
        let gauge = self.streaming.get_or_create(&[("syncer", "felix")]).clone();
        gauge.inc();
        StreamingGuard(gauge)
    }

    pub fn set_buffered(&self, bytes: usize) {
        set(&self.buffered, bytes as u64);
    }

    pub fn count_refusal(&self, reason: &'static str) {
        self.refused.get_or_create(&[("reason", reason)]).inc();
    }

    pub fn count_opening(&self, session: &ClientSession) {
        let how = if session.is_following() { "resumed" } else { "buckets" };
        self.openings.get_or_create(&[("how", how)]).inc();
    }

    pub fn observe_snapshot(&self, took: Duration) {
        self.snapshot_time.observe(took.as_secs_f64());
    }

    pub fn observe_ping(&self, took: Duration) {
        self.ping_time.observe(took.as_secs_f64());
    }

    /// Records that a following client has received all changes.
    pub fn observe_catch_up(&self, took: Duration) {
        self.client_time.observe(took.as_secs_f64());
    }

    /// Records that the frames for a client have been gathered.
    pub fn observe_gather(&self, took: Duration) {
        self.gather_time.observe(took.as_secs_f64());
    }

    /// Records that a bucket is sent to a client in these frames.
    pub fn count_bucket(&self, bucket: &LedgerBucket, frames: &[Bytes], encoded: bool) {
        self.message_size.observe(bucket.len() as f64 / frames.len().max(1) as f64);
        if !encoded {
            self.reused.inc();
            return;
        }
        self.encoded.inc();
        let compressed: usize = frames.iter().map(Bytes::len).sum();
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.insert(bucket.index(), (bucket.raw_bytes() as u64, compressed as u64));
        set(&self.raw_bytes, sizes.values().map(|(raw, _)| raw).sum());
        set(&self.compressed_bytes, sizes.values().map(|(_, compressed)| compressed).sum());
    }

    /// Records that a following client received changes, and whether it had to wait for them.
    pub fn count_followed(&self, waited: bool) {
        if waited { &self.waited } else { &self.did_not_wait }.inc();
    }

    /// Records that the log no longer holds the position of a client.
    pub fn count_fall_behind(&self) {
        self.fell_behind.get_or_create(&[("syncer", "felix")]).inc();
    }

    pub fn observe_write(&self, bytes: usize, took: Duration) {
        self.bytes.inc_by(bytes as u64);
        self.write_time.observe(took.as_secs_f64());
    }

    /// Returns the number of clients that resumed at their position and of those that did not.
    pub fn openings(&self) -> (u64, u64) {
        let [resumed, compared] =
            ["resumed", "buckets"].map(|how| self.openings.get_or_create(&[("how", how)]).get());
        (resumed, compared)
    }

    /// Returns the number of encoded buckets.
    pub fn encoded(&self) -> u64 {
        self.encoded.get()
    }

    /// Renders the metrics page.
    pub fn text(&self) -> String {
        let mut page = render_calico_registry(&self.registry, "typha_");
        for (name, help, summary) in [
            ("typha_client_snapshot_send_secs", "Time until a new client follows", &self.snapshot_time),
            ("typha_client_write_latency_secs", "Time to write to a client", &self.write_time),
            ("typha_client_latency_secs", "Time until a change is sent to a client", &self.client_time),
            ("typha_next_breadcrumb_latency_secs", "Time to gather the next frames", &self.gather_time),
            ("typha_breadcrumb_size", "Entries of each frame of changes", &self.frame_size),
            ("typha_kvs_per_msg", "Entries of each message, of changes once", &self.message_size),
            ("typha_ping_latency", "Time until a client answers", &self.ping_time),
        ] {
            page += &summary.text(name, help);
        }
        page + &tortie_http::process::render_metrics()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_dashboards_know() {
        let metrics = HubMetrics::new();
        assert!(
            metrics.text().contains("typha_connections_grace_used{syncer=\"felix\"} 0"),
            "from the start"
        );
        metrics.accepted.inc();
        let streaming = metrics.count_streaming();
        metrics.count_refusal("full");
        metrics.observe_ping(Duration::from_millis(500));
        metrics.observe_catch_up(Duration::from_millis(1));
        metrics.observe_gather(Duration::from_millis(1));
        metrics.count_followed(true);
        metrics.count_fall_behind();
        let has = |line: &str| metrics.text().lines().any(|found| found == line);
        for line in [
            "typha_connections_accepted 1",
            "typha_connections_streaming{syncer=\"felix\"} 1",
            "typha_updates_total 0",
            "# TYPE typha_updates_total counter",
            "# TYPE typha_updates_skipped counter",
            "# TYPE typha_snapshot_raw_bytes gauge",
            "typha_snapshot_compressed_bytes 0",
            "# TYPE typha_breadcrumb_block counter",
            "typha_breadcrumb_block 1",
            "typha_breadcrumb_non_block 0",
            "# TYPE typha_breadcrumb_size summary",
            "# TYPE typha_kvs_per_msg summary",
            "typha_connections_grace_used{syncer=\"felix\"} 1",
            "typha_logs_dropped 0",
            "typha_log_errors 0",
            "tortie_hub_refused_total{reason=\"full\"} 1",
            "# TYPE typha_ping_latency summary",
            "typha_ping_latency{quantile=\"0.99\"} 0.5",
            "typha_client_latency_secs_count 1",
            "typha_next_breadcrumb_latency_secs_count 1",
            "typha_client_write_latency_secs_count 0",
            "typha_client_snapshot_send_secs_count 0",
            "# TYPE process_resident_memory_bytes gauge",
        ] {
            assert!(has(line), "{line} is not in\n{}", metrics.text());
        }
        drop(streaming);
        assert!(has("typha_connections_streaming{syncer=\"felix\"} 0"));
    }
}
