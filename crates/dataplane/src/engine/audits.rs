//! Schedule of the audits, which read kernel state even if no event was reported, and of repeated address
//! announcements.

use std::time::Duration;
use tokio::time::Instant;
use tortie_plan::DataplaneSettings;

#[derive(Default)]
pub struct AuditSchedule {
    pub routes: AuditTimer,
    pub policy: AuditTimer,
    pub announcements: AuditTimer,
}

#[derive(Default)]
pub struct AuditTimer {
    interval: Option<Duration>,
    pub due: Option<Instant>,
}

impl AuditSchedule {
    pub fn configure(&mut self, settings: &DataplaneSettings) {
        self.routes.set_interval(settings.audit_routes);
        self.policy.set_interval(settings.audit_policy);
        self.announcements.set_interval(settings.announce_proxied);
    }
}

impl AuditTimer {
    fn set_interval(&mut self, interval: Option<Duration>) {
        if self.interval != interval {
            self.interval = interval;
            self.restart();
        }
    }

    /// Schedules the next run after the interval plus or minus a tenth.
    pub fn restart(&mut self) {
        let jitter = rand::random_range(0.9..1.1);
        self.due = self.interval.map(|interval| Instant::now() + interval.mul_f64(jitter));
    }
}

/// Waits until a time. Never returns without one.
pub async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
