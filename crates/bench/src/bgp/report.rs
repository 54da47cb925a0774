//! Collects the results and prints them in a table with a column for each speaker.

use super::daemon::{SpeakerKind, SpeakerProcess};
use crate::measure::{table, times};
use crate::namespace::{BenchResult, check};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::time::{Duration, Instant};

/// Number of repetitions of a short measurement, alternating between speakers. The best result counts, since
/// disturbances only add time.
pub const REPETITIONS: usize = 3;
/// Measurements that take longer are not repeated.
const REPEAT_LIMIT: Duration = Duration::from_secs(5);
/// Measurements that take longer are abandoned.
pub const MEASUREMENT_TIMEOUT: Duration = Duration::from_secs(25);

/// One figure for each speaker.
pub type FigureRow = Vec<FigureCell>;

#[derive(Clone, Copy)]
pub enum FigureCell {
    Is(f64),
    /// Abandoned after the time limit.
    Over,
    /// Not available for this speaker.
    Absent,
}

/// Measures the speakers in turn and returns the best result of each; `None` if it took too long or failed.
pub fn in_turn<T>(
    kinds: &[SpeakerKind],
    rounds: usize,
    once: impl Fn(SpeakerKind) -> BenchResult<Option<T>>,
    time: impl Fn(&T) -> Duration,
) -> BenchResult<Vec<Option<T>>> {
    let mut best: Vec<Option<T>> = kinds.iter().map(|_| None).collect();
    for round in 0..rounds {
        for (kind, best) in kinds.iter().zip(&mut best) {
            let again = best.as_ref().is_some_and(|best| time(best) < REPEAT_LIMIT);
            if round > 0 && !again {
                continue;
            }
            let taken = match once(*kind) {
                Ok(taken) => taken,
                Err(error) => {
                    check()?;
                    let what = format!("{kind:?}: {error}");
                    if *kind == SpeakerKind::Tortie {
                        return Err(what.into());
                    }
                    // A failure of another speaker does not stop the benchmark.
                    eprintln!("tortie-bench: {what}");
                    None
                }
            };
            if best.as_ref().is_none_or(|best| taken.as_ref().is_some_and(|taken| time(taken) < time(best))) {
                *best = taken;
            }
        }
    }
    Ok(best)
}

/// Extracts one figure from each result. Speakers that were not measured are absent.
pub fn cells<T>(taken: &[Option<T>], figure: impl Fn(&T) -> f64) -> FigureRow {
    let of =
        |taken: &Option<T>| taken.as_ref().map_or(FigureCell::Over, |taken| FigureCell::Is(figure(taken)));
    let there = taken.iter().map(of);
    there.chain(std::iter::repeat(FigureCell::Absent)).take(SpeakerKind::ALL.len()).collect()
}

/// Cost of a piece of work.
#[derive(Clone, Copy)]
pub struct WorkCost {
    pub time: Duration,
    pub processor: Duration,
    /// CPU time of the generator, which is this program.
    pub generator: Duration,
}

/// Clock and CPU times at the beginning of a piece of work.
pub struct WorkStart {
    pub at: Instant,
    processor: Duration,
    generator: Duration,
}

impl WorkStart {
    pub fn now(daemon: &SpeakerProcess) -> io::Result<WorkStart> {
        let processor = daemon.processor_time()?;
        Ok(WorkStart { generator: own_time(), processor, at: Instant::now() })
    }

    /// Returns the cost of work that ends now.
    pub fn effort(&self, daemon: &SpeakerProcess) -> io::Result<WorkCost> {
        self.effort_until(Instant::now(), daemon)
    }

    pub fn effort_until(&self, end: Instant, daemon: &SpeakerProcess) -> io::Result<WorkCost> {
        Ok(WorkCost {
            time: end - self.at,
            processor: daemon.processor_time()?.saturating_sub(self.processor),
            generator: own_time() - self.generator,
        })
    }

    pub fn deadline(&self) -> Instant {
        self.at + MEASUREMENT_TIMEOUT
    }
}

fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[derive(Default)]
pub struct SpeakerReport {
    rows: Vec<Vec<String>>,
}

impl SpeakerReport {
    /// Adds a row of figures, with the ratio of each other speaker's figure to Tortie's.
    pub fn line(&mut self, what: &str, cells: &FigureRow, format: impl Fn(f64) -> String) {
        let ours = cells.first().copied();
        let text = |(column, cell): (usize, &FigureCell)| match (*cell, ours) {
            (FigureCell::Is(value), Some(FigureCell::Is(ours))) if column > 0 && ours > 0.0 => {
                format!("{} ({})", format(value), times(value / ours))
            }
            (FigureCell::Is(value), _) => format(value),
            (FigureCell::Over, _) => "given up".to_owned(),
            (FigureCell::Absent, _) => String::new(),
        };
        self.rows.push([what.to_owned()].into_iter().chain(cells.iter().enumerate().map(text)).collect());
    }

    /// Adds a row with the ratio of these figures to the first ones.
    pub fn growth(&mut self, what: &str, now: &FigureRow, first: &FigureRow) {
        let text = |(now, first): (&FigureCell, &FigureCell)| match (now, first) {
            (FigureCell::Is(now), FigureCell::Is(first)) if *first > 0.0 => times(now / first),
            _ => String::new(),
        };
        self.rows.push([what.to_owned()].into_iter().chain(now.iter().zip(first).map(text)).collect());
    }

    /// Adds the standard rows for a piece of work: time, growth, CPU time, generator load.
    pub fn effort(&mut self, what: &str, taken: &[Option<WorkCost>], first: &mut Option<FigureRow>) {
        let time = cells(taken, |effort| effort.time.as_secs_f64());
        self.line(what, &time, seconds);
        match first {
            Some(first) => self.growth("- growth", &time, first),
            None => *first = Some(time),
        }
        self.line("- processor time", &cells(taken, |effort| effort.processor.as_secs_f64()), seconds);
        let busy = |effort: &WorkCost| effort.generator.as_secs_f64() / effort.time.as_secs_f64();
        self.shares("- generator busy", &cells(taken, busy));
    }

    /// Adds a row of percentages, without ratios.
    pub fn shares(&mut self, what: &str, cells: &FigureRow) {
        let text = |cell: &FigureCell| match cell {
            FigureCell::Is(value) => format!("{:.0} %", value * 100.0),
            _ => String::new(),
        };
        self.rows.push([what.to_owned()].into_iter().chain(cells.iter().map(text)).collect());
    }

    pub fn print(self, title: &str) {
        table(title, &["", "tortie", "BIRD 2", "FRR", "GoBGP"], &self.rows);
    }
}

pub fn seconds(value: f64) -> String {
    format!("{value:.3} s")
}

pub fn count(value: f64) -> String {
    format!("{value:.0}")
}
