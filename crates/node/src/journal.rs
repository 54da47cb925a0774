//! What this node has attached, on disk: written before anything is done, so that whatever is killed whenever, what was
//! begun is known and can be undone.
//!
//! One file per attachment, replaced as a whole. The copy in memory is the one that is asked.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tortie_dataplane::Netns;
use tortie_ipam::InUse;
use tortie_model::{Key, Kind};

use crate::cni::CniResult;

/// A container's interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentId {
    pub container_id: String,
    pub ifname: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Begun and not answered: if nobody is at it any more, it is to be undone.
    Adding,
    /// Answered: stays until the runtime asks for its removal.
    Live,
    /// To be undone.
    Removing,
}

/// Everything that has to be known to undo an attachment, and to answer for it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub id: AttachmentId,
    pub phase: Phase,
    /// Empty if it is unknown, in an adopted record.
    pub network: String,
    /// Empty if it is unknown, in an adopted record.
    pub netns: String,
    /// Empty if the interface belongs to a newer attachment of the same pod.
    pub host_interface: String,
    /// Of our own address management.
    pub handle: Option<String>,
    /// Of another IPAM plugin.
    pub delegate: Option<Delegate>,
    /// Namespace and name of the endpoint; none if it belongs to a newer attachment.
    pub endpoint: Option<(String, String)>,
    pub result: Option<CniResult>,
    /// Another plugin has wired the container: nothing of it is ours to remove.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chained: bool,
    /// Another program attached the container in our way; the record was made from the datastore and the kernel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The endpoint as it was written to the datastore, to be written again if the datastore loses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<serde_json::Value>,
    /// Other networks that the container is in through this attachment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<Joined>,
}

/// A network that shares the interface, the addresses and the endpoint of an attachment to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub network: String,
    /// As the runtime calls it; there is no such interface, unless it has the name of the one that is shared.
    pub ifname: String,
    pub phase: Phase,
    /// What the network gives to the endpoint.
    pub profile: String,
    /// The endpoint had the profile before: it stays when the network is left.
    pub had_profile: bool,
}

/// How an IPAM plugin that is not ours is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delegate {
    pub plugin: String,
    pub config: String,
    pub args: String,
    pub path: Vec<PathBuf>,
}

#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    records: Mutex<BTreeMap<AttachmentId, Record>>,
}

impl Record {
    pub fn endpoint_key(&self) -> Option<Key> {
        let (namespace, name) = self.endpoint.as_ref()?;
        Some(Key::resource(Kind::WorkloadEndpoint, namespace, name))
    }

    /// What the container has of another network through this attachment.
    pub fn joined(&self, network: &str, ifname: &str) -> Option<&Joined> {
        self.joined.iter().find(|joined| joined.network == network && joined.ifname == ifname)
    }

    /// Whether the container is in this namespace, as far as the record knows.
    pub fn is_in(&self, netns: &str) -> bool {
        self.netns.is_empty() || Netns::is_same(&self.netns, netns)
    }

    /// The addresses of a live attachment.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let result = self.result.as_ref().filter(|_| self.phase == Phase::Live);
        result.into_iter().flat_map(|result| result.ips.iter().map(|ip| ip.address.addr()))
    }
}

impl Journal {
    /// Reads what a former run left. A file that cannot be read is set aside and named in the log.
    pub fn open(dir: &Path) -> io::Result<Journal> {
        fs::create_dir_all(dir)?;
        // Records name everything that runs here, and hold configurations of other plugins.
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => {}
                // Never came to be: the rename was not reached.
                Some("new") => {
                    fs::remove_file(&path)?;
                    continue;
                }
                _ => continue,
            }
            let read = fs::read(&path)
                .map_err(|error| error.to_string())
                .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
            match read {
                Ok(record) => {
                    let record: Record = record;
                    records.insert(record.id.clone(), record);
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), error, "a record of an attachment cannot be read; it is renamed to .unreadable, and DEL will look for what it had");
                    fs::rename(&path, path.with_extension("unreadable"))?;
                }
            }
        }
        Ok(Journal { dir: dir.to_owned(), records: Mutex::new(records) })
    }

    pub fn get(&self, id: &AttachmentId) -> Option<Record> {
        self.lock().get(id).cloned()
    }

    pub fn all(&self) -> Vec<Record> {
        self.lock().values().cloned().collect()
    }

    pub fn find(&self, wanted: impl Fn(&Record) -> bool) -> Option<Record> {
        self.lock().values().find(|record| wanted(record)).cloned()
    }

    /// Lets everybody who asks know of a record before it is written.
    pub fn announce(&self, record: &Record) {
        self.lock().insert(record.id.clone(), record.clone());
    }

    /// Writes a record. With `durable` it survives the loss of power, not only of the process.
    pub fn put(&self, record: &Record, durable: bool) -> io::Result<()> {
        let path = self.path(&record.id);
        let new = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        if durable {
            file.sync_data()?;
        }
        fs::rename(&new, &path)?;
        self.lock().insert(record.id.clone(), record.clone());
        Ok(())
    }

    pub fn remove(&self, id: &AttachmentId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.lock().remove(id);
        Ok(())
    }

    fn path(&self, id: &AttachmentId) -> PathBuf {
        self.dir.join(format!("{}:{}.json", id.container_id, id.ifname))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AttachmentId, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What lives here keeps its address, also if the datastore says that it is free.
impl InUse for Journal {
    fn addresses(&self) -> Vec<IpAddr> {
        self.lock().values().flat_map(Record::addresses).collect()
    }

    fn is_held_by_another(&self, address: IpAddr, handle: Option<&str>) -> bool {
        let holds = |record: &&Record| record.addresses().any(|held| held == address);
        self.lock().values().filter(holds).any(|record| record.handle.as_deref() != handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(container: &str) -> Record {
        Record {
            id: AttachmentId { container_id: container.into(), ifname: "eth0".into() },
            phase: Phase::Adding,
            network: "net".into(),
            netns: "/run/netns/x".into(),
            host_interface: "cali1".into(),
            handle: Some("net.c1".into()),
            delegate: None,
            endpoint: Some(("default".into(), "n1-cni-c1-eth0".into())),
            result: None,
            chained: false,
            adopted: false,
            workload: None,
            joined: Vec::new(),
        }
    }

    #[test]
    fn what_was_written_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        journal.put(&record("c1"), true).unwrap();
        let mut live = record("c2");
        live.phase = Phase::Live;
        live.result = Some(CniResult::default());
        journal.put(&record("c2"), true).unwrap();
        journal.put(&live, false).unwrap();
        journal.put(&record("c3"), false).unwrap();
        journal.remove(&record("c3").id).unwrap();
        journal.remove(&record("c3").id).unwrap();
        let again = Journal::open(dir.path()).unwrap();
        assert_eq!(again.all(), [record("c1"), live]);
    }

    #[test]
    fn records_are_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("attachments");
        Journal::open(&place).unwrap().put(&record("c1"), true).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join("c1:eth0.json"))), (0o700, 0o600));
    }

    #[test]
    fn only_what_lives_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let result = CniResult::read(&serde_json::json!({"ips": [{"address": "10.0.0.1/32"}]})).unwrap();
        let address = "10.0.0.1".parse().unwrap();
        let mut live = Record { result: Some(result), ..record("c1") };
        journal.put(&live, false).unwrap();
        assert_eq!(journal.addresses(), Vec::<IpAddr>::new());
        live.phase = Phase::Live;
        journal.put(&live, false).unwrap();
        assert_eq!(journal.addresses(), [address]);
        assert!(journal.is_held_by_another(address, Some("net.c2")));
        assert!(!journal.is_held_by_another(address, Some("net.c1")));
        assert!(!journal.is_held_by_another("10.0.0.2".parse().unwrap(), None));
    }

    #[test]
    fn half_written_and_foreign_files_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("c1:eth0.new"), "{").unwrap();
        fs::write(dir.path().join("c2:eth0.json"), "{").unwrap();
        fs::write(dir.path().join("notes.txt"), "x").unwrap();
        assert!(Journal::open(dir.path()).unwrap().all().is_empty());
        assert!(dir.path().join("c2:eth0.unreadable").exists());
        assert!(!dir.path().join("c1:eth0.new").exists());
    }
}
