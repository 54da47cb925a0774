//! Describes how quiet the machine is while a suite runs: load, stolen processor time, and the spread of a fixed loop.

use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

const LOOP_ROUNDS: usize = 15;
const LOOP_STEPS: u64 = 2_000_000;

/// Conditions under which a suite ran.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MachineConditions {
    /// Load average of the last minute, before the suite and after it.
    pub load: [f64; 2],
    /// Share of the processor time that the hypervisor gave to other guests while the suite ran, in percent.
    pub steal_percent: f64,
    /// Median time of the fixed loop in milliseconds, before the suite and after it.
    pub loop_milliseconds: [f64; 2],
    /// Distance between the slowest and the fastest tenth of the loop's rounds, in percent of their median: the larger of
    /// the two measurements.
    pub loop_spread_percent: f64,
}

/// The state of the machine before a suite.
pub struct ConditionsProbe {
    load: f64,
    ticks: ProcessorTicks,
    fixed_loop: LoopTimes,
}

impl ConditionsProbe {
    pub fn begin() -> Self {
        Self { load: read_load(), ticks: read_ticks(), fixed_loop: time_fixed_loop() }
    }

    /// Returns the conditions since [`ConditionsProbe::begin`].
    pub fn finish(self) -> MachineConditions {
        let ticks = read_ticks();
        let fixed_loop = time_fixed_loop();
        let total = ticks.total.saturating_sub(self.ticks.total).max(1);
        MachineConditions {
            load: [self.load, read_load()],
            steal_percent: 100.0 * ticks.steal.saturating_sub(self.ticks.steal) as f64 / total as f64,
            loop_milliseconds: [self.fixed_loop.median, fixed_loop.median],
            loop_spread_percent: self.fixed_loop.spread_percent.max(fixed_loop.spread_percent),
        }
    }
}

impl std::fmt::Display for MachineConditions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "load {:.2} before, {:.2} after; steal {:.1} %; fixed loop {:.2} ms before, {:.2} ms after, spread {:.1} %",
            self.load[0],
            self.load[1],
            self.steal_percent,
            self.loop_milliseconds[0],
            self.loop_milliseconds[1],
            self.loop_spread_percent,
        )
    }
}

#[derive(Clone, Copy, Default)]
struct ProcessorTicks {
    steal: u64,
    total: u64,
}

fn read_load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

fn read_ticks() -> ProcessorTicks {
    parse_ticks(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Parses the line `cpu` of /proc/stat. Its columns 9 and 10, time of guests, are contained in the first two.
fn parse_ticks(stat: &str) -> ProcessorTicks {
    let Some(line) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else {
        return ProcessorTicks::default();
    };
    let columns: Vec<u64> =
        line.split_whitespace().take(8).filter_map(|column| column.parse().ok()).collect();
    ProcessorTicks { steal: columns.get(7).copied().unwrap_or_default(), total: columns.iter().sum() }
}

#[derive(Clone, Copy)]
struct LoopTimes {
    median: f64,
    spread_percent: f64,
}

/// Measures a loop that always does the same work, in wall time, so that other work on the machine shows.
fn time_fixed_loop() -> LoopTimes {
    let mut times: Vec<f64> = (0..LOOP_ROUNDS).map(|_| time_loop_round()).collect();
    times.sort_by(f64::total_cmp);
    let at = |tenth: usize| times.get((LOOP_ROUNDS - 1) * tenth / 10).copied().unwrap_or_default();
    let median = at(5);
    LoopTimes { median, spread_percent: 100.0 * (at(9) - at(1)) / median.max(f64::MIN_POSITIVE) }
}

fn time_loop_round() -> f64 {
    let start = Instant::now();
    let mut state = 1u64;
    for step in 0..LOOP_STEPS {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step));
    }
    black_box(state);
    start.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_column() {
        let ticks = parse_ticks("cpu  10 1 20 300 4 5 6 70 8 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        assert_eq!((ticks.steal, ticks.total), (70, 416));
        assert_eq!(parse_ticks("intr 1\n").total, 0);
    }

    #[test]
    fn conditions_are_measured() {
        let conditions = ConditionsProbe::begin().finish();
        assert!(conditions.loop_milliseconds.iter().all(|time| *time > 0.0), "{conditions}");
        assert!(conditions.loop_spread_percent >= 0.0, "{conditions}");
        assert!(conditions.steal_percent <= 100.0, "{conditions}");
    }
}
