//! Metrics of the server.

use crate::check::CheckCode;
use crate::state::{PolicyState, ReplicaAccess};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;
use tortie_http::{MetricsPage, add_metrics, declare_metrics, render_registry};

type CheckLabels = [(&'static str, &'static str); 1];

declare_metrics! {
    #[derive(Debug)]
    pub struct L7Metrics {
        registry: Registry;
        checks: Family<CheckLabels, Counter> = "tortie_l7_checks", "Checks by result";
        check_time: Histogram = "tortie_l7_check_duration_seconds", "Time to decide about a request";
        pub unknown_principals: Counter = "tortie_l7_unknown_principals",
            "Checks with a principal that names no service account";
        pub suppressed_log_lines: Counter = "tortie_l7_suppressed_log_lines",
            "Decisions that were not logged because of the rate limit";
        pub connections: Gauge = "tortie_l7_connections", "Open connections of proxies";
        pub refused_connections: Counter = "tortie_l7_refused_connections",
            "Connections closed because there were too many";
        pub refused_requests: Counter = "tortie_l7_refused_requests",
            "Requests rejected because incomplete requests used too much memory";
        pub expired_requests: Counter = "tortie_l7_expired_requests",
            "Requests rejected because they were not complete before the deadline of their reply";
        pub syncs: Counter = "tortie_l7_policy_syncs", "Complete transfers of the policy from the node";
        pub sync_messages: Counter = "tortie_l7_policy_sync_messages", "Messages received from the node";
        pub sync_failures: Counter = "tortie_l7_policy_sync_failures",
            "Failed or lost connections to the node's policy-sync socket";
        pub oversized_syncs: Counter = "tortie_l7_policy_sync_oversized",
            "Connections ended because the policy exceeded the memory limit";
        /// The counters in `checks`, in the order of [`CheckCode::ALL`], so that a check looks none up.
        results: [Counter; CheckCode::ALL.len()];
    }
}

impl L7Metrics {
    pub fn new() -> L7Metrics {
        let checks: Family<CheckLabels, Counter> = Family::default();
        let results = CheckCode::ALL.map(|code| checks.get_or_create(&[("result", code.name())]).clone());
        // From a microsecond to a quarter of a second.
        let check_time = Histogram::new(exponential_buckets(1e-6, 4.0, 10));
        let mut metrics = L7Metrics {
            registry: Registry::default(),
            checks,
            check_time,
            unknown_principals: Counter::default(),
            suppressed_log_lines: Counter::default(),
            connections: Gauge::default(),
            refused_connections: Counter::default(),
            refused_requests: Counter::default(),
            expired_requests: Counter::default(),
            syncs: Counter::default(),
            sync_messages: Counter::default(),
            sync_failures: Counter::default(),
            oversized_syncs: Counter::default(),
            results,
        };
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.registry = registry;
        metrics
    }

    pub fn observe_check(&self, code: CheckCode, elapsed: Duration) {
        let position = CheckCode::ALL.iter().position(|known| *known == code);
        if let Some(counter) = position.and_then(|position| self.results.get(position)) {
            counter.inc();
        }
        self.check_time.observe(elapsed.as_secs_f64());
    }

    /// Renders the metrics page.
    pub fn render(&self, state: &PolicyState) -> String {
        let mut page = MetricsPage(render_registry(&self.registry));
        page.0.push_str(&tortie_http::process::render_metrics());
        let [policies, profiles, sets, bytes] = state.with_replica(|access| match access {
            ReplicaAccess::InSync(replica) => {
                let [policies, profiles, sets] = replica.counts();
                [policies, profiles, sets, replica.bytes()]
            }
            ReplicaAccess::NotSynced | ReplicaAccess::Stale => [0; 4],
        });
        add_metrics! { page;
            gauge "tortie_l7_in_sync", "1 if checks are decided by policy." => u8::from(state.is_in_sync());
            gauge "tortie_l7_policy_sync_connected", "1 if changes of policy arrive." => u8::from(state.is_connected());
            gauge "tortie_l7_policies", "Policies of the workload." => policies;
            gauge "tortie_l7_profiles", "Profiles of the workload." => profiles;
            gauge "tortie_l7_sets", "Address sets that the policies use." => sets;
            gauge "tortie_l7_policy_bytes", "Estimated memory of the policies and sets." => bytes;
        }
        page.begin_metric("tortie_l7_rule_checks_total", "counter", "Checks that a rule decided.");
        state.with_replica(|access| {
            let ReplicaAccess::InSync(replica) = access else { return };
            for (rule, count) in replica.counted_rules() {
                let (owner, direction) = (rule.owner.to_string(), rule.direction.to_string());
                let number = rule.index.to_string();
                let labels = [("owner", &*owner), ("direction", &*direction), ("rule", &*number)];
                page.add_sample("tortie_l7_rule_checks_total", &labels, count);
            }
        });
        page.0
    }
}

impl Default for L7Metrics {
    fn default() -> L7Metrics {
        L7Metrics::new()
    }
}
