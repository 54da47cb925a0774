//! A file with the workloads that have a live proxy, so that a restart of the daemon drops no connection.
//!
//! While the daemon does not run, the kernel keeps passing connections to proxies. The next daemon must not close them
//! before the proxies had time to connect again. The file is in the run directory, which does not survive a reboot; nor
//! do the proxies.

use crate::files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;
use tortie_plan::WorkloadId;

/// Workloads with the UID of the credentials with which their proxy connected. Another pod of the same name has another
/// UID.
pub type LiveWorkloads = BTreeMap<WorkloadId, String>;

/// Maximum size of the file that is read: more than all workloads of a node.
const MAX_RECORD_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub struct LiveRecord(PathBuf);

#[derive(Serialize, Deserialize)]
struct RecordedWorkload {
    orchestrator: String,
    workload: String,
    endpoint: String,
    uid: String,
}

impl LiveRecord {
    pub fn new(path: PathBuf) -> LiveRecord {
        LiveRecord(path)
    }

    /// Returns the recorded workloads; none if the file does not exist or cannot be read, which closes connections to
    /// proxies until they connect again.
    pub fn read(&self) -> LiveWorkloads {
        match self.try_read() {
            Ok(workloads) => workloads,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let path = self.0.display();
                    tracing::warn!(%error, %path, "cannot read which workloads have a proxy");
                }
                LiveWorkloads::new()
            }
        }
    }

    fn try_read(&self) -> io::Result<LiveWorkloads> {
        let mut text = String::new();
        std::fs::File::open(&self.0)?.take(MAX_RECORD_BYTES).read_to_string(&mut text)?;
        let recorded: Vec<RecordedWorkload> = serde_json::from_str(&text)?;
        let ids = recorded.into_iter().map(|RecordedWorkload { orchestrator, workload, endpoint, uid }| {
            (WorkloadId { orchestrator, workload, endpoint }, uid)
        });
        Ok(ids.collect())
    }

    /// Replaces the recorded workloads. Without any, there is no file.
    pub fn write(&self, workloads: &LiveWorkloads) {
        let written = if workloads.is_empty() { self.remove() } else { self.replace(workloads) };
        if let Err(error) = written {
            let path = self.0.display();
            tracing::warn!(%error, %path, "cannot record which workloads have a proxy; a restart of the node interrupts connections to them");
        }
    }

    fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn replace(&self, workloads: &LiveWorkloads) -> io::Result<()> {
        let recorded: Vec<RecordedWorkload> = workloads
            .iter()
            .map(|(id, uid)| RecordedWorkload {
                orchestrator: id.orchestrator.clone(),
                workload: id.workload.clone(),
                endpoint: id.endpoint.clone(),
                uid: uid.clone(),
            })
            .collect();
        files::replace(&self.0, &serde_json::to_string(&recorded)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let record = LiveRecord::new(dir.path().join("http-proxies.json"));
        assert_eq!(record.read(), LiveWorkloads::new());
        let entry = |name: &str, uid: &str| {
            let id =
                WorkloadId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() };
            (id, uid.to_owned())
        };
        let workloads = LiveWorkloads::from([entry("shop/a", "1"), entry("shop/b", "2")]);
        record.write(&workloads);
        assert_eq!(record.read(), workloads);
        record.write(&LiveWorkloads::new());
        assert!(!dir.path().join("http-proxies.json").exists());
        std::fs::write(dir.path().join("http-proxies.json"), "[{").unwrap();
        assert_eq!(record.read(), LiveWorkloads::new());
    }
}
