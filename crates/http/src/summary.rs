//! Prometheus summaries: quantiles of the recent observations, as the Calico dashboards expect them.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Window of the quantiles. Calico uses the same one; older observations are dropped.
const SUMMARY_WINDOW_DURATION: Duration = Duration::from_secs(10 * 60);
/// Maximum number of observations in the window; beyond it the oldest are dropped.
const MAX_SUMMARY_OBSERVATIONS: usize = 2048;
const SUMMARY_QUANTILES: [(&str, f64); 3] = [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)];

#[derive(Clone, Debug, Default)]
pub struct SummaryMetric(Arc<Mutex<SummaryWindow>>);

#[derive(Debug, Default)]
struct SummaryWindow {
    lately: VecDeque<(Instant, f64)>,
    count: u64,
    sum: f64,
}

impl SummaryMetric {
    pub fn observe(&self, value: f64) {
        self.observe_at(Instant::now(), value);
    }

    fn observe_at(&self, now: Instant, value: f64) {
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        observed.forget(now);
        if observed.lately.len() >= MAX_SUMMARY_OBSERVATIONS {
            observed.lately.pop_front();
        }
        observed.lately.push_back((now, value));
        observed.count += 1;
        observed.sum += value;
    }

    /// Renders the summary in the Prometheus text format.
    pub fn text(&self, name: &str, help: &str) -> String {
        self.text_at(Instant::now(), name, help)
    }

    fn text_at(&self, now: Instant, name: &str, help: &str) -> String {
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        observed.forget(now);
        let mut values: Vec<f64> = observed.lately.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        let mut text = format!("# HELP {name} {help}.\n# TYPE {name} summary\n");
        for (label, quantile) in SUMMARY_QUANTILES {
            // Quantiles are NaN without observations.
            let value =
                rank(values.len(), quantile).and_then(|rank| values.get(rank)).copied().unwrap_or(f64::NAN);
            let _ = writeln!(text, "{name}{{quantile=\"{label}\"}} {value}");
        }
        let _ = writeln!(text, "{name}_sum {}\n{name}_count {}", observed.sum, observed.count);
        text
    }
}

/// Returns the index of a quantile among `count` sorted values.
fn rank(count: usize, quantile: f64) -> Option<usize> {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "few and positive"
    )]
    let rank = (count as f64 * quantile).ceil() as usize;
    rank.max(1).checked_sub(1).filter(|rank| *rank < count)
}

impl SummaryWindow {
    fn forget(&mut self, now: Instant) {
        while self
            .lately
            .front()
            .is_some_and(|(then, _)| now.saturating_duration_since(*then) > SUMMARY_WINDOW_DURATION)
        {
            self.lately.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_was_observed_lately() {
        let summary = SummaryMetric::default();
        let start = Instant::now();
        assert!(summary.text_at(start, "x", "Help").contains("x{quantile=\"0.5\"} NaN\n"));
        summary.observe_at(start, 1000.0);
        let later = start + SUMMARY_WINDOW_DURATION + Duration::from_secs(1);
        (1..=100).for_each(|number| summary.observe_at(later, f64::from(number)));
        let text = summary.text_at(later, "x", "Help");
        assert_eq!(
            text,
            "# HELP x Help.\n# TYPE x summary\nx{quantile=\"0.5\"} 50\nx{quantile=\"0.9\"} 90\nx{quantile=\"0.99\"} 99\nx_sum 6050\nx_count 101\n"
        );
    }

    #[test]
    fn there_is_a_bound() {
        let summary = SummaryMetric::default();
        (0..MAX_SUMMARY_OBSERVATIONS + 100).for_each(|_| summary.observe(1.0));
        assert_eq!(summary.0.lock().unwrap().lately.len(), MAX_SUMMARY_OBSERVATIONS);
        assert!(summary.text("x", "y").contains(&format!("x_count {}\n", MAX_SUMMARY_OBSERVATIONS + 100)));
    }
}
