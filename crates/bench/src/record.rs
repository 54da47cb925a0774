//! The machine-readable result of a run: the tables of all suites and the conditions under which they were measured.

use crate::environment::MachineConditions;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Version of the file format.
const RECORD_FORMAT: u32 = 1;

#[derive(Debug, Deserialize, Serialize)]
pub struct RunRecord {
    pub format: u32,
    pub suites: Vec<SuiteRecord>,
}

#[derive(Debug, Deserialize, Serialize)]
pub struct SuiteRecord {
    pub name: String,
    pub seconds: f64,
    pub conditions: MachineConditions,
    pub tables: Vec<TableRecord>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TableRecord {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: String, source: std::io::Error },
    #[error("{path} is not a result of `tortie-bench --json`: {source}")]
    Parse { path: String, source: serde_json::Error },
    #[error("{path} has format {found}; this program reads format {RECORD_FORMAT}")]
    Format { path: String, found: u32 },
}

impl Default for RunRecord {
    fn default() -> Self {
        Self { format: RECORD_FORMAT, suites: Vec::new() }
    }
}

impl RunRecord {
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let name = path.display().to_string();
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(source) => return Err(RecordError::Read { path: name, source }),
        };
        let record: Self = match serde_json::from_slice(&text) {
            Ok(record) => record,
            Err(source) => return Err(RecordError::Parse { path: name, source }),
        };
        if record.format != RECORD_FORMAT {
            return Err(RecordError::Format { path: name, found: record.format });
        }
        Ok(record)
    }

    /// Writes the record to a new file that then replaces `path`, so that a run that is interrupted leaves the suites
    /// that it has completed.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        let written = serde_json::to_vec_pretty(self).map_err(std::io::Error::from).and_then(|text| {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
            file.write_all(&text)?;
            file.persist(path).map_err(|error| error.error)
        });
        match written {
            Ok(_) => Ok(()),
            Err(source) => Err(RecordError::Write { path: path.display().to_string(), source }),
        }
    }
}

/// Tables that the running suite has printed.
static PRINTED_TABLES: Mutex<Vec<TableRecord>> = Mutex::new(Vec::new());

fn printed_tables() -> MutexGuard<'static, Vec<TableRecord>> {
    PRINTED_TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a table that a suite has printed, for [`take_tables`].
pub fn keep_table(title: &str, columns: &[&str], rows: &[Vec<String>]) {
    let columns = columns.iter().map(|column| column.to_string()).collect();
    printed_tables().push(TableRecord { title: title.to_owned(), columns, rows: rows.to_vec() });
}

/// Returns the tables since the last call.
pub fn take_tables() -> Vec<TableRecord> {
    std::mem::take(&mut printed_tables())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_writing_and_reading() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        let table =
            TableRecord { title: "Rates".into(), columns: vec!["n".into()], rows: vec![vec!["1".into()]] };
        let suite = SuiteRecord {
            name: "model".into(),
            seconds: 1.5,
            conditions: MachineConditions::default(),
            tables: vec![table.clone()],
        };
        RunRecord { suites: vec![suite], ..RunRecord::default() }.write(&path).unwrap();
        let read = RunRecord::read(&path).unwrap();
        assert_eq!(read.suites[0].tables, [table]);
    }

    #[test]
    fn unreadable_records_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        let missing = RunRecord::read(&path).unwrap_err();
        assert!(matches!(missing, RecordError::Read { .. }), "{missing}");
        std::fs::write(&path, "| a | b |").unwrap();
        let text = RunRecord::read(&path).unwrap_err();
        assert!(text.to_string().contains("run.json is not a result of"), "{text}");
        std::fs::write(&path, r#"{"format":9,"suites":[]}"#).unwrap();
        assert!(matches!(RunRecord::read(&path).unwrap_err(), RecordError::Format { found: 9, .. }));
    }
}
