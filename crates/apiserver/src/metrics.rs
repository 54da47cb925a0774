//! Metrics of requests, with the names that Kubernetes API servers use.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;
use tortie_http::{declare_metrics, render_registry};

/// Labels: verb, resource and, for counts, code. Values come from fixed lists, so clients cannot increase their
/// number.
type DurationLabels = [(&'static str, String); 2];
type RequestLabels = [(&'static str, String); 3];

declare_metrics! {
    #[derive(Debug)]
    pub struct ApiServerMetrics {
        registry: Registry;
        requests: Family<RequestLabels, Counter> = "apiserver_request", "Requests by verb, resource and code";
        durations: Family<DurationLabels, Histogram, fn() -> Histogram> = "apiserver_request_duration_seconds",
            "Time that requests take, without watches";
        watches: Family<[(&'static str, String); 1], Gauge> = "apiserver_longrunning_requests", "Watches that are open";
        refused: Family<[(&'static str, &'static str); 1], Counter> = "tortie_apiserver_refused",
            "Connections and requests that were refused or closed, by the exhausted limit";
    }
}

/// Counts a watch as open until dropped.
#[derive(Debug)]
pub struct OpenWatchGuard(Gauge);

impl Drop for OpenWatchGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn new_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 16))
}

impl ApiServerMetrics {
    pub fn new() -> ApiServerMetrics {
        let mut metrics = ApiServerMetrics {
            registry: Registry::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(new_histogram),
            watches: Family::default(),
            refused: Family::default(),
        };
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.registry = registry;
        metrics
    }

    /// Renders the metrics page.
    pub fn encode(&self) -> String {
        render_registry(&self.registry)
    }

    pub fn answered(&self, verb: &str, resource: &str, code: u16, took: Duration) {
        let named = [("verb", verb.to_uppercase()), ("resource", resource.to_owned())];
        let [verb_label, resource_label] = named.clone();
        self.requests.get_or_create(&[verb_label, resource_label, ("code", code.to_string())]).inc();
        if verb != "watch" {
            self.durations.get_or_create(&named).observe(took.as_secs_f64());
        }
    }

    pub fn watching(&self, resource: &str) -> OpenWatchGuard {
        let gauge = self.watches.get_or_create(&[("resource", resource.to_owned())]).clone();
        gauge.inc();
        OpenWatchGuard(gauge)
    }

    pub fn count_refused(&self, what: &'static str) {
        self.refused.get_or_create(&[("what", what)]).inc();
    }
}
