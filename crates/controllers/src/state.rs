//! Health of the process: the status file for probes that run a command, and the same state for HTTP probes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tortie_http::liveness::{self, Liveness};

/// Components that can be unready.
pub const STARTUP_COMPONENT: &str = "Startup";
pub const DATASTORE_COMPONENT: &str = "CalicoDatastore";
pub const KUBERNETES_COMPONENT: &str = "KubeAPIServer";
pub const ABSENCE_COMPONENT: &str = "ProofOfAbsence";

/// Interval between writes of the file, also without changes.
pub const STATUS_WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Age of the file from which the process counts as dead.
const MAX_STATUS_AGE: Duration = Duration::from_secs(90);

/// Content of the status file: the format of calico-kube-controllers plus the components without a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct StatusFile {
    readiness: BTreeMap<String, ComponentCondition>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    silent: BTreeMap<String, ComponentCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ComponentCondition {
    ready: bool,
    reason: String,
}

#[derive(Debug)]
pub struct ControllerState {
    file: PathBuf,
    status: Mutex<StatusFile>,
    metrics: Mutex<String>,
    pub liveness: Liveness,
}

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Liveness,
    Readiness,
}

impl ControllerState {
    pub fn new(file: PathBuf, liveness: Liveness) -> ControllerState {
        let state = ControllerState { file, status: Mutex::default(), metrics: Mutex::default(), liveness };
        state.set(STARTUP_COMPONENT, Err("initialising".to_owned()));
        state
    }

    /// Sets the condition of a component and writes the file if it changed.
    pub fn set(&self, part: &str, outcome: Result<(), String>) {
        let condition = match outcome {
            Ok(()) => ComponentCondition { ready: true, reason: String::new() },
            Err(reason) => ComponentCondition { ready: false, reason },
        };
        let mut status = held(&self.status);
        if status.readiness.get(part) == Some(&condition) {
            return;
        }
        status.readiness.insert(part.to_owned(), condition);
        self.write(&status);
    }

    /// Writes the components without a heartbeat. The age of the file shows whether the process itself is alive.
    pub fn write_liveness(&self) {
        let silent = self.liveness.silent(&BTreeMap::new()).into_iter();
        let mut status = held(&self.status);
        status.silent = silent
            .map(|(part, silence)| {
                let reason = format!("{part}: {}", liveness::describe(silence));
                (part.to_owned(), ComponentCondition { ready: false, reason })
            })
            .collect();
        self.write(&status);
    }

    fn write(&self, status: &StatusFile) {
        if let Err(error) = write(&self.file, status) {
            tracing::debug!(%error, file = %self.file.display(), "cannot write the status file");
        }
    }

    /// Returns why the process is not ready, if it is not.
    pub fn trouble(&self) -> Option<String> {
        trouble(&held(&self.status).readiness)
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

fn trouble(conditions: &BTreeMap<String, ComponentCondition>) -> Option<String> {
    let reasons = conditions.values().filter(|condition| !condition.ready);
    let reasons: Vec<&str> = reasons.map(|condition| condition.reason.as_str()).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Writes the file and replaces it atomically, so that no probe reads a partial one.
fn write(file: &Path, status: &StatusFile) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(status)?)?;
    std::fs::rename(&new, file)
}

/// Evaluates a probe from the status file alone and returns the reasons of a failure.
pub fn check(file: &Path, probe: ProbeKind) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    let text = std::fs::read(file).map_err(failed)?;
    let status: StatusFile =
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let conditions = match probe {
        ProbeKind::Readiness => &status.readiness,
        ProbeKind::Liveness => {
            let written = std::fs::metadata(file).and_then(|metadata| metadata.modified()).map_err(failed)?;
            // A clock that was set back is not a failure.
            let age = SystemTime::now().duration_since(written).unwrap_or_default();
            if age > MAX_STATUS_AGE {
                return Err(format!("{} was not written for {} s", file.display(), age.as_secs()));
            }
            &status.silent
        }
    };
    trouble(conditions).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status/status.json");
        let state = ControllerState::new(file.clone(), Liveness::default());
        let said = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(said(), r#"{"Readiness":{"Startup":{"Ready":false,"Reason":"initialising"}}}"#);
        assert_eq!(check(&file, ProbeKind::Readiness), Err("initialising".to_owned()));
        assert_eq!(check(&file, ProbeKind::Liveness), Ok(()));
        state.set(STARTUP_COMPONENT, Ok(()));
        state.set(DATASTORE_COMPONENT, Err("down".to_owned()));
        state.set(KUBERNETES_COMPONENT, Err("away".to_owned()));
        assert_eq!(check(&file, ProbeKind::Readiness), Err("down; away".to_owned()));
        state.set(DATASTORE_COMPONENT, Ok(()));
        state.set(KUBERNETES_COMPONENT, Ok(()));
        assert_eq!((check(&file, ProbeKind::Readiness), state.trouble()), (Ok(()), None));
        std::fs::write(&file, "nonsense").unwrap();
        assert!(check(&file, ProbeKind::Liveness).unwrap_err().contains("status.json"));
        assert!(check(&dir.path().join("none"), ProbeKind::Liveness).is_err());
    }

    #[test]
    fn a_silent_part_and_a_file_that_nobody_writes_are_not_alive() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status.json");
        let state = ControllerState::new(file.clone(), Liveness::new(Duration::from_millis(50)));
        let leader = state.liveness.part("leader");
        std::thread::sleep(Duration::from_millis(100));
        state.write_liveness();
        assert_eq!(check(&file, ProbeKind::Liveness), Err("leader: no sign of life for 0 s".to_owned()));
        assert_eq!(check(&file, ProbeKind::Readiness), Err("initialising".to_owned()));
        leader.beat();
        state.write_liveness();
        assert_eq!(check(&file, ProbeKind::Liveness), Ok(()));
        let long_ago = SystemTime::now() - 2 * MAX_STATUS_AGE;
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
        assert!(check(&file, ProbeKind::Liveness).unwrap_err().contains("was not written for 180 s"));
    }
}
