//! Measures the time of short operations, alternating between candidates, and prints tables.
//!
//! Times are CPU times of the thread, so that other work on the machine has little influence.

use crate::record::keep_table;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

const REPETITIONS: usize = 7;
const ROUND_NANOSECONDS: f64 = 60e6;

/// Returns the nanoseconds per call of each candidate, as the median of several rounds. The candidates alternate, so
/// that disturbances of the machine affect all of them.
pub fn side_by_side<const N: usize>(mut candidates: [&mut dyn FnMut(); N]) -> [f64; N] {
    let batches: Vec<u32> = candidates.iter_mut().map(|candidate| batch(candidate)).collect();
    let mut times = [const { Vec::new() }; N];
    for _ in 0..REPETITIONS {
        for ((candidate, calls), times) in candidates.iter_mut().zip(&batches).zip(&mut times) {
            let start = now();
            (0..*calls).for_each(|_| candidate());
            times.push((now() - start) / f64::from(*calls));
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times.get(REPETITIONS / 2).copied().unwrap_or_default()
    })
}

/// Returns the number of calls that fill one round.
fn batch(candidate: &mut dyn FnMut()) -> u32 {
    let start = now();
    let mut calls = 0u32;
    while now() - start < ROUND_NANOSECONDS {
        candidate();
        calls += 1;
    }
    calls.max(1)
}

/// Returns the CPU time of this thread in nanoseconds.
pub fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Durations of many operations.
#[derive(Clone, Debug, Default)]
pub struct Latencies(pub Vec<Duration>);

impl Latencies {
    pub fn extend(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    pub fn quantile(&mut self, quantile: f64) -> Duration {
        self.0.sort_unstable();
        let place = (self.0.len() as f64 * quantile) as usize;
        self.0.get(place.min(self.0.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Formats a time: `1.23 us`.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 1e3 => format!("{ns:.1} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Formats a factor: `4.5x`.
pub fn times(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.2}x") } else { format!("{factor:.0}x") }
}

/// Formats the growth relative to the first value; empty if there is no first value.
pub fn growth(now: f64, first: f64) -> String {
    if first > 0.0 { times(now / first) } else { String::new() }
}

/// Prints a Markdown table with aligned columns, and keeps it for the record of the run.
pub fn table(title: &str, header: &[&str], rows: &[Vec<String>]) {
    keep_table(title, header, rows);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::len);
        cells.chain(header.get(column).map(|cell| cell.len())).max().unwrap_or(0)
    };
    let line = |cells: Vec<&str>| {
        let padded: Vec<_> =
            cells.iter().enumerate().map(|(i, cell)| format!("{cell:<w$}", w = width(i))).collect();
        println!("| {} |", padded.join(" | "));
    };
    println!("\n{title}\n");
    line(header.to_vec());
    let rules: Vec<String> = (0..header.len()).map(|column| "-".repeat(width(column))).collect();
    line(rules.iter().map(String::as_str).collect());
    rows.iter().for_each(|row| line(row.iter().map(String::as_str).collect()));
}
