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
pub const CLUSTER_COMPONENT: &str = "ClusterClaim";

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

/// Reason why a probe fails.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{path} was not written for {seconds} s")]
    OldFile { path: PathBuf, seconds: u64 },
    /// The reasons of the components, separated by semicolons.
    #[error("{0}")]
    Failed(String),
}

impl ControllerState {
    pub fn new(file: PathBuf, liveness: Liveness) -> ControllerState {
        let state = ControllerState { file, status: Mutex::default(), metrics: Mutex::default(), liveness };
        state.set_problem(STARTUP_COMPONENT, Some("initialising".to_owned()));
        state
    }

    /// Sets why a component is not ready, `None` if it is, and writes the file if that changed.
    pub fn set_problem(&self, component: &str, problem: Option<String>) {
        let condition = ComponentCondition { ready: problem.is_none(), reason: problem.unwrap_or_default() };
        let mut status = lock(&self.status);
        if status.readiness.get(component) == Some(&condition) {
            return;
        }
        status.readiness.insert(component.to_owned(), condition);
        self.write(&status);
    }

    /// Writes the components without a heartbeat. The age of the file shows whether the process itself is alive.
    pub fn write_liveness(&self) {
        let silent = self.liveness.silent(&BTreeMap::new()).into_iter().map(|(component, silence)| {
            let reason = format!("{component}: {}", liveness::describe(silence));
            (component.to_owned(), ComponentCondition { ready: false, reason })
        });
        let mut status = lock(&self.status);
        status.silent = silent.collect();
        self.write(&status);
    }

    fn write(&self, status: &StatusFile) {
        if let Err(error) = replace_file(&self.file, status) {
            tracing::debug!(%error, file = %self.file.display(), "cannot write the status file");
        }
    }

    /// Returns why the process is not ready, if it is not.
    pub fn problems(&self) -> Option<String> {
        join_problems(&lock(&self.status).readiness)
    }

    pub fn set_metrics(&self, text: String) {
        *lock(&self.metrics) = text;
    }

    pub fn metrics(&self) -> String {
        lock(&self.metrics).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join_problems(conditions: &BTreeMap<String, ComponentCondition>) -> Option<String> {
    let reasons = conditions.values().filter(|condition| !condition.ready);
    let reasons: Vec<&str> = reasons.map(|condition| condition.reason.as_str()).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Writes the file and replaces it atomically, so that no probe reads a partial one.
fn replace_file(file: &Path, status: &StatusFile) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(status)?)?;
    std::fs::rename(&new, file)
}

/// Evaluates a probe with the status file alone. A failure contains the reasons of the components.
pub fn check(file: &Path, probe: ProbeKind) -> Result<(), ProbeError> {
    let read = read_file(file).map_err(|error| ProbeError::File { path: file.to_owned(), error });
    let (status, written) = read?;
    let problems = match probe {
        ProbeKind::Readiness => join_problems(&status.readiness),
        ProbeKind::Liveness => {
            // A clock that was set back is not a failure.
            let age = SystemTime::now().duration_since(written).unwrap_or_default();
            if age > MAX_STATUS_AGE {
                return Err(ProbeError::OldFile { path: file.to_owned(), seconds: age.as_secs() });
            }
            join_problems(&status.silent)
        }
    };
    problems.map_or(Ok(()), |problems| Err(ProbeError::Failed(problems)))
}

/// Returns the content of the file and when it was written.
fn read_file(file: &Path) -> io::Result<(StatusFile, SystemTime)> {
    let status = serde_json::from_slice(&std::fs::read(file)?)?;
    Ok((status, std::fs::metadata(file)?.modified()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(file: &Path, probe: ProbeKind) -> Option<String> {
        check(file, probe).err().map(|error| error.to_string())
    }

    #[test]
    fn the_file_says_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status/status.json");
        let state = ControllerState::new(file.clone(), Liveness::default());
        let said = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(said(), r#"{"Readiness":{"Startup":{"Ready":false,"Reason":"initialising"}}}"#);
        assert_eq!(probe(&file, ProbeKind::Readiness).as_deref(), Some("initialising"));
        assert_eq!(probe(&file, ProbeKind::Liveness), None);
        state.set_problem(STARTUP_COMPONENT, None);
        state.set_problem(DATASTORE_COMPONENT, Some("down".to_owned()));
        state.set_problem(KUBERNETES_COMPONENT, Some("away".to_owned()));
        assert_eq!(probe(&file, ProbeKind::Readiness).as_deref(), Some("down; away"));
        state.set_problem(DATASTORE_COMPONENT, None);
        state.set_problem(KUBERNETES_COMPONENT, None);
        assert_eq!((probe(&file, ProbeKind::Readiness), state.problems()), (None, None));
        std::fs::write(&file, "nonsense").unwrap();
        assert!(probe(&file, ProbeKind::Liveness).unwrap().contains("status.json"));
        assert!(check(&dir.path().join("none"), ProbeKind::Liveness).is_err());
    }

    #[test]
    fn silent_components_and_old_files_are_not_alive() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status.json");
        let state = ControllerState::new(file.clone(), Liveness::new(Duration::from_millis(50)));
        let leader = state.liveness.part("leader");
        std::thread::sleep(Duration::from_millis(100));
        state.write_liveness();
        assert_eq!(probe(&file, ProbeKind::Liveness).as_deref(), Some("leader: no sign of life for 0 s"));
        assert_eq!(probe(&file, ProbeKind::Readiness).as_deref(), Some("initialising"));
        leader.beat();
        state.write_liveness();
        assert_eq!(probe(&file, ProbeKind::Liveness), None);
        let long_ago = SystemTime::now() - 2 * MAX_STATUS_AGE;
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
        assert!(probe(&file, ProbeKind::Liveness).unwrap().contains("was not written for 180 s"));
    }
}
