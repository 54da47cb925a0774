//! Compares the figures of two runs, cell by cell, and lists those that became worse or better by more than a limit.

use crate::measure::{table, times};
use crate::record::{RunRecord, SuiteRecord, TableRecord};

/// Unit of a figure, and with it the direction that is better.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FigureUnit {
    /// Nanoseconds.
    Time,
    /// Bytes.
    Memory,
    /// Events, bytes or bits per second.
    Rate,
    /// A ratio, a percentage or a count: neither direction is better.
    Neutral,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct TableFigure {
    value: f64,
    unit: FigureUnit,
}

/// Whether a figure became better or worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureTrend {
    Better,
    Worse,
}

/// A figure that differs between two runs by more than the limit.
#[derive(Debug, PartialEq)]
pub struct FigureChange {
    pub suite: String,
    pub table: String,
    pub row: String,
    pub column: String,
    pub before: String,
    pub after: String,
    pub ratio: f64,
    pub trend: FigureTrend,
}

/// Result of a comparison.
#[derive(Debug, Default)]
pub struct RunComparison {
    pub changes: Vec<FigureChange>,
    /// Number of figures that both runs have and that have a direction.
    pub compared: usize,
    /// Suites and tables that only one of the runs has, or whose shape differs.
    pub incomparable: Vec<String>,
}

impl RunComparison {
    /// Compares figures that both runs have. `limit_percent` is the smallest change to report.
    pub fn new(before: &RunRecord, after: &RunRecord, limit_percent: f64) -> Self {
        let mut comparison = Self::default();
        for suite in &before.suites {
            match after.suites.iter().find(|other| other.name == suite.name) {
                Some(other) => comparison.compare_suite(suite, other, limit_percent),
                None => comparison.incomparable.push(format!("{}: only in the first run", suite.name)),
            }
        }
        for suite in &after.suites {
            if !before.suites.iter().any(|other| other.name == suite.name) {
                comparison.incomparable.push(format!("{}: only in the second run", suite.name));
            }
        }
        comparison.changes.sort_by(|a, b| severity(b).total_cmp(&severity(a)));
        comparison
    }

    fn compare_suite(&mut self, before: &SuiteRecord, after: &SuiteRecord, limit_percent: f64) {
        for old in &before.tables {
            let same_shape = |new: &&TableRecord| {
                new.title == old.title && new.columns == old.columns && new.rows.len() == old.rows.len()
            };
            let Some(new) = after.tables.iter().find(same_shape) else {
                self.incomparable.push(format!("{}: {}: no table of the same shape", before.name, old.title));
                continue;
            };
            for (old_row, new_row) in old.rows.iter().zip(&new.rows) {
                self.compare_row(&before.name, old, old_row, new_row, limit_percent);
            }
        }
    }

    fn compare_row(
        &mut self,
        suite: &str,
        of: &TableRecord,
        old_row: &[String],
        new_row: &[String],
        limit_percent: f64,
    ) {
        for (column, (old, new)) in of.columns.iter().zip(old_row.iter().zip(new_row)) {
            let (Some(old_figure), Some(new_figure)) = (parse_figure(column, old), parse_figure(column, new))
            else {
                continue;
            };
            if old_figure.unit != new_figure.unit || old_figure.unit == FigureUnit::Neutral {
                continue;
            }
            self.compared += 1;
            let ratio = new_figure.value / old_figure.value.max(f64::MIN_POSITIVE);
            if 100.0 * (ratio - 1.0).abs() < limit_percent {
                continue;
            }
            let is_worse = (old_figure.unit == FigureUnit::Rate) == (ratio < 1.0);
            self.changes.push(FigureChange {
                suite: suite.to_owned(),
                table: of.title.clone(),
                row: old_row.first().cloned().unwrap_or_default(),
                column: column.clone(),
                before: old.clone(),
                after: new.clone(),
                ratio,
                trend: if is_worse { FigureTrend::Worse } else { FigureTrend::Better },
            });
        }
    }

    pub fn print(&self, limit_percent: f64) {
        for missing in &self.incomparable {
            println!("not compared: {missing}");
        }
        for (trend, name) in [(FigureTrend::Worse, "worse"), (FigureTrend::Better, "better")] {
            let changes = self.changes.iter().filter(|change| change.trend == trend);
            let rows: Vec<_> = changes.map(FigureChange::cells).collect();
            println!(
                "\n{} of {} figures are {name} by {limit_percent} % or more.",
                rows.len(),
                self.compared
            );
            if !rows.is_empty() {
                table(
                    &format!("Figures that became {name}"),
                    &["suite", "table", "row", "column", "before", "after", "after/before"],
                    &rows,
                );
            }
        }
    }
}

impl FigureChange {
    fn cells(&self) -> Vec<String> {
        vec![
            self.suite.clone(),
            self.table.clone(),
            self.row.clone(),
            self.column.clone(),
            self.before.clone(),
            self.after.clone(),
            times(self.ratio),
        ]
    }
}

fn severity(change: &FigureChange) -> f64 {
    change.ratio.ln().abs()
}

/// Reads the first figure of a cell. A number without a unit has the unit that the rest of the cell or the title of the
/// column names.
fn parse_figure(column: &str, cell: &str) -> Option<TableFigure> {
    let digits = cell.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')).unwrap_or(cell.len());
    let value: f64 = cell[..digits].replace(',', "").parse().ok()?;
    let rest = &cell[digits..];
    if rest.starts_with('x') {
        return Some(TableFigure { value, unit: FigureUnit::Neutral });
    }
    let (scale, unit) = find_unit(rest).or_else(|| find_unit(column)).unwrap_or((1.0, FigureUnit::Neutral));
    Some(TableFigure { value: value * scale, unit })
}

/// Returns the first word of a text that is a unit, as a factor and the unit.
fn find_unit(text: &str) -> Option<(f64, FigureUnit)> {
    text.split(|c: char| c.is_whitespace() || c == '(' || c == ')').find_map(|word| {
        let known = match word {
            "ns" => (1.0, FigureUnit::Time),
            "us" | "µs" => (1e3, FigureUnit::Time),
            "ms" => (1e6, FigureUnit::Time),
            "s" => (1e9, FigureUnit::Time),
            "B" => (1.0, FigureUnit::Memory),
            "KiB" => (1024.0, FigureUnit::Memory),
            "MiB" => (1024.0 * 1024.0, FigureUnit::Memory),
            "MB" => (1e6, FigureUnit::Memory),
            "Mbit/s" => (1e6, FigureUnit::Rate),
            "Gbit/s" => (1e9, FigureUnit::Rate),
            "MB/s" => (1e6, FigureUnit::Rate),
            "x" | "%" => (1.0, FigureUnit::Neutral),
            rate if rate.ends_with("/s") => (1.0, FigureUnit::Rate),
            _ => return None,
        };
        Some(known)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::MachineConditions;

    fn record(columns: &[&str], row: &[&str]) -> RunRecord {
        let table = TableRecord {
            title: "Rates".into(),
            columns: columns.iter().map(|text| text.to_string()).collect(),
            rows: vec![row.iter().map(|text| text.to_string()).collect()],
        };
        let suite = SuiteRecord {
            name: "store".into(),
            seconds: 1.0,
            conditions: MachineConditions::default(),
            tables: vec![table],
        };
        RunRecord { suites: vec![suite], ..RunRecord::default() }
    }

    #[test]
    fn figures_have_units() {
        let figure =
            |column: &str, cell: &str| parse_figure(column, cell).map(|found| (found.value, found.unit));
        assert_eq!(figure("p50", "1.5 ms"), Some((1.5e6, FigureUnit::Time)));
        assert_eq!(figure("p50", "1.5 / 2.5 us"), Some((1.5e3, FigureUnit::Time)));
        assert_eq!(figure("ours/s", "12000"), Some((12000.0, FigureUnit::Rate)));
        assert_eq!(figure("rate", "12,000/s"), Some((12000.0, FigureUnit::Rate)));
        assert_eq!(figure("heap", "2 KiB (3x)"), Some((2048.0, FigureUnit::Memory)));
        assert_eq!(figure("growth", "2.00x"), Some((2.0, FigureUnit::Neutral)));
        assert_eq!(figure("terms", "10"), Some((10.0, FigureUnit::Neutral)));
        assert_eq!(figure("case", "VXLAN"), None);
    }

    #[test]
    fn slower_times_and_lower_rates_are_worse() {
        let columns = ["clients", "ours", "rate", "ratio"];
        let before = record(&columns, &["64", "10 ms", "1000/s", "2.0x"]);
        let after = record(&columns, &["64", "12 ms", "900/s", "1.0x"]);
        let comparison = RunComparison::new(&before, &after, 5.0);
        assert_eq!(comparison.compared, 2);
        let trends: Vec<_> =
            comparison.changes.iter().map(|change| (change.column.as_str(), change.trend)).collect();
        assert_eq!(trends, [("ours", FigureTrend::Worse), ("rate", FigureTrend::Worse)]);
        let reversed = RunComparison::new(&after, &before, 5.0);
        assert!(reversed.changes.iter().all(|change| change.trend == FigureTrend::Better));
    }

    #[test]
    fn small_changes_are_not_reported() {
        let before = record(&["clients", "ours"], &["64", "100 ms"]);
        let after = record(&["clients", "ours"], &["64", "102 ms"]);
        assert!(RunComparison::new(&before, &after, 3.0).changes.is_empty());
        assert_eq!(RunComparison::new(&before, &after, 1.0).changes.len(), 1);
    }

    #[test]
    fn tables_of_another_shape_are_named() {
        let before = record(&["clients", "ours"], &["64", "1 ms"]);
        let after = record(&["clients", "theirs"], &["64", "1 ms"]);
        let comparison = RunComparison::new(&before, &after, 3.0);
        assert_eq!(comparison.compared, 0);
        assert_eq!(comparison.incomparable, ["store: Rates: no table of the same shape"]);
    }
}
