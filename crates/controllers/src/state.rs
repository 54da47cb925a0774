//! What the process says of itself: the status file, for probes that run a command, and the same for those over HTTP.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The parts that can be unready.
pub const STARTUP: &str = "Startup";
pub const DATASTORE: &str = "CalicoDatastore";
pub const KUBERNETES: &str = "KubeAPIServer";

/// The form of the reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Status {
    readiness: BTreeMap<String, Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Condition {
    ready: bool,
    reason: String,
}

#[derive(Debug)]
pub struct State {
    file: PathBuf,
    status: Mutex<Status>,
    metrics: Mutex<String>,
}

/// What a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Liveness,
    Readiness,
}

impl State {
    pub fn new(file: PathBuf) -> State {
        let state = State { file, status: Mutex::default(), metrics: Mutex::default() };
        state.set(STARTUP, Err("initialising".to_owned()));
        state
    }

    /// The file is written when something changed.
    pub fn set(&self, part: &str, outcome: Result<(), String>) {
        let condition = match outcome {
            Ok(()) => Condition { ready: true, reason: String::new() },
            Err(reason) => Condition { ready: false, reason },
        };
        let mut status = held(&self.status);
        if status.readiness.get(part) == Some(&condition) {
            return;
        }
        status.readiness.insert(part.to_owned(), condition);
        if let Err(error) = write(&self.file, &status) {
            tracing::debug!(%error, file = %self.file.display(), "the status file cannot be written");
        }
    }

    /// Why it is not ready; nothing if it is.
    pub fn trouble(&self) -> Option<String> {
        trouble(&held(&self.status))
    }

    pub fn set_metrics(&self, text: String) {
        *held(&self.metrics) = text;
    }

    pub fn metrics(&self) -> String {
        held(&self.metrics).clone()
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn trouble(status: &Status) -> Option<String> {
    let reasons = status.readiness.values().filter(|condition| !condition.ready);
    let reasons: Vec<&str> = reasons.map(|condition| condition.reason.as_str()).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Replaced as a whole, so that nobody reads half of it.
fn write(file: &Path, status: &Status) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(status)?)?;
    std::fs::rename(&new, file)
}

/// What a probe answers that has the file alone: the reasons if something is wrong. A process that writes the file lives.
pub fn check(file: &Path, probe: Probe) -> Result<(), String> {
    let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let status: Status =
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    match (probe, trouble(&status)) {
        (Probe::Readiness, Some(reasons)) => Err(reasons),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status/status.json");
        let state = State::new(file.clone());
        let said = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(said(), r#"{"Readiness":{"Startup":{"Ready":false,"Reason":"initialising"}}}"#);
        assert_eq!(check(&file, Probe::Readiness), Err("initialising".to_owned()));
        assert_eq!(check(&file, Probe::Liveness), Ok(()));
        state.set(STARTUP, Ok(()));
        state.set(DATASTORE, Err("down".to_owned()));
        state.set(KUBERNETES, Err("away".to_owned()));
        assert_eq!(check(&file, Probe::Readiness), Err("down; away".to_owned()));
        state.set(DATASTORE, Ok(()));
        state.set(KUBERNETES, Ok(()));
        assert_eq!((check(&file, Probe::Readiness), state.trouble()), (Ok(()), None));
        std::fs::write(&file, "nonsense").unwrap();
        assert!(check(&file, Probe::Liveness).unwrap_err().contains("status.json"));
        assert!(check(&dir.path().join("none"), Probe::Liveness).is_err());
    }
}
