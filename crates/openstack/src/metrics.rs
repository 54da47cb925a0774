//! Counters of the daemon.

use crate::SlotOutcome;
use std::sync::atomic::{AtomicU64, Ordering};
use tortie_http::{MetricsPage, add_metrics};

#[derive(Debug, Default)]
pub struct OpenStackMetrics {
    pub correct: AtomicU64,
    pub written: AtomicU64,
    pub conflicts: AtomicU64,
    pub invalid: AtomicU64,
    pub rejected_rules: AtomicU64,
    pub store_failures: AtomicU64,
    pub resyncs: AtomicU64,
    pub failed_resyncs: AtomicU64,
    pub replaced_resyncs: AtomicU64,
    pub commands: AtomicU64,
    pub failed_commands: AtomicU64,
    pub dropped_statuses: AtomicU64,
    pub late_heartbeats: AtomicU64,
    pub refused_connections: AtomicU64,
}

pub fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl OpenStackMetrics {
    pub fn count_write(&self, outcome: &SlotOutcome, warnings: usize) {
        increment(match outcome {
            SlotOutcome::Correct => &self.correct,
            SlotOutcome::Created | SlotOutcome::Updated | SlotOutcome::Deleted => &self.written,
            SlotOutcome::Conflict => &self.conflicts,
            SlotOutcome::Invalid(_) => &self.invalid,
        });
        self.rejected_rules.fetch_add(warnings as u64, Ordering::Relaxed);
    }

    /// Renders the page in the Prometheus text format.
    pub fn render(&self, is_leader: bool, pending_commands: usize) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut page = MetricsPage::default();
        add_metrics! { page;
            counter "tortie_openstack_unchanged_writes_total", "Writes of Neutron's driver that changed nothing." => read(&self.correct);
            counter "tortie_openstack_writes_total", "Entries created, updated or deleted for Neutron." => read(&self.written);
            counter "tortie_openstack_conflicts_total", "Writes that lost against another client and were repeated." => read(&self.conflicts);
            counter "tortie_openstack_invalid_objects_total", "Objects of Neutron that could not be translated." => read(&self.invalid);
            counter "tortie_openstack_rejected_rules_total", "Security group rules that cannot be enforced; their traffic stays denied." => read(&self.rejected_rules);
            counter "tortie_openstack_store_failures_total", "Requests of the driver that failed because of the datastore." => read(&self.store_failures);
            counter "tortie_openstack_resyncs_total", "Finished resyncs." => read(&self.resyncs);
            counter "tortie_openstack_failed_resyncs_total", "Resyncs that finished with an error." => read(&self.failed_resyncs);
            counter "tortie_openstack_replaced_resyncs_total", "Resyncs that were never finished and replaced by later ones." => read(&self.replaced_resyncs);
            counter "tortie_openstack_commands_total", "Agent reports and port states that the driver has processed." => read(&self.commands);
            counter "tortie_openstack_failed_commands_total", "Agent reports and port states that the driver could not process and that are repeated." => read(&self.failed_commands);
            counter "tortie_openstack_dropped_statuses_total", "Statuses in the datastore that exceeded the limit and were not reported." => read(&self.dropped_statuses);
            counter "tortie_openstack_late_heartbeats_total", "Heartbeats of nodes that were older than five minutes." => read(&self.late_heartbeats);
            counter "tortie_openstack_refused_connections_total", "Connections to the Unix socket beyond the limit." => read(&self.refused_connections);
            gauge "tortie_openstack_leader", "Whether this daemon reports states to Neutron." => u8::from(is_leader);
            gauge "tortie_openstack_pending_commands", "Agent reports and port states that wait for the driver." => pending_commands;
        }
        page.0
    }
}
