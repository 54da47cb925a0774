//! The on-disk record of this node's attachments. A record is written before any work is done, so that after a crash
//! at any point the started work is known and can be undone.
//!
//! There is one file per attachment, which is always replaced atomically. Reads use the copy in memory.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tortie_dataplane::Netns;
use tortie_ipam::AddressesInUse;
use tortie_model::{Kind, StoreKey};

use crate::cni::CniResult;

/// Identifies an interface of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentId {
    pub container_id: String,
    pub ifname: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachmentPhase {
    /// The ADD has begun and has not been answered. If no request works on it any more, it is undone.
    Adding,
    /// The ADD has been answered. The attachment stays until the runtime sends DEL.
    Live,
    /// The attachment is to be undone.
    Removing,
}

/// Everything that is needed to undo an attachment, and to repeat the response to its ADD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachmentRecord {
    pub id: AttachmentId,
    pub phase: AttachmentPhase,
    /// Empty in an adopted record if unknown.
    pub network: String,
    /// Empty in an adopted record if unknown.
    pub netns: String,
    /// Empty if the interface belongs to a newer attachment of the same pod.
    pub host_interface: String,
    /// Handle in Calico IPAM.
    pub handle: Option<String>,
    /// The other IPAM plugin that assigned the addresses, if any.
    pub delegate: Option<DelegatedIpam>,
    /// Namespace and name of the endpoint; None if it belongs to a newer attachment.
    pub endpoint: Option<(String, String)>,
    pub result: Option<CniResult>,
    /// Another plugin created the interface, so DEL must not remove it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chained: bool,
    /// Another program, such as Calico, attached the container in the same way. The record was derived from the
    /// datastore and the kernel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The endpoint as it was written to the datastore, to be written again if the datastore loses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<serde_json::Value>,
    /// Further networks that the container has joined through this attachment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<JoinedNetwork>,
}

/// A network that shares the interface, the addresses and the endpoint of an attachment to another network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNetwork {
    pub network: String,
    /// The interface name in the runtime's request. No such interface exists, unless it is the name of the shared
    /// one.
    pub ifname: String,
    pub phase: AttachmentPhase,
    /// The profile that the network adds to the endpoint.
    pub profile: String,
    /// The endpoint already had the profile, so it stays when the container leaves the network.
    pub had_profile: bool,
}

/// How to call an IPAM plugin other than `calico-ipam`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DelegatedIpam {
    pub plugin: String,
    pub config: String,
    pub args: String,
    pub path: Vec<PathBuf>,
}

#[derive(Debug)]
pub struct AttachmentJournal {
    dir: PathBuf,
    records: Mutex<BTreeMap<AttachmentId, AttachmentRecord>>,
}

impl AttachmentRecord {
    pub fn endpoint_key(&self) -> Option<StoreKey> {
        let (namespace, name) = self.endpoint.as_ref()?;
        Some(StoreKey::resource(Kind::WorkloadEndpoint, namespace, name))
    }

    /// Returns the further network with this name and interface name.
    pub fn joined(&self, network: &str, ifname: &str) -> Option<&JoinedNetwork> {
        self.joined.iter().find(|joined| joined.network == network && joined.ifname == ifname)
    }

    /// Returns whether the container is in this network namespace; true if the record does not know its namespace.
    pub fn is_in(&self, netns: &str) -> bool {
        self.netns.is_empty() || Netns::is_same(&self.netns, netns)
    }

    /// Returns whether the container is still running. `interfaces` are those of the host.
    pub fn is_running(&self, interfaces: &BTreeMap<String, bool>) -> bool {
        let has_network = if self.netns.is_empty() {
            interfaces.contains_key(&self.host_interface)
        } else {
            Path::new(&self.netns).exists()
        };
        self.phase == AttachmentPhase::Live && has_network
    }

    /// Returns the addresses of the attachment if it is live, else none.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let result = self.result.as_ref().filter(|_| self.phase == AttachmentPhase::Live);
        result.into_iter().flat_map(|result| result.ips.iter().map(|ip| ip.address.addr()))
    }
}

impl fmt::Display for AttachmentRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {} ({}", self.id.container_id, self.id.ifname)?;
        match &self.endpoint {
            Some((namespace, name)) => write!(f, ", endpoint {namespace}/{name})"),
            None => f.write_str(")"),
        }
    }
}

/// Reads the records of a node that may be running, without changes to the directory. Unreadable records are skipped: the
/// node reports them, and the interfaces of their containers count as unknown.
pub fn read_attachments(journal: &Path) -> io::Result<Vec<AttachmentRecord>> {
    let entries = match fs::read_dir(journal) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut records: Vec<AttachmentRecord> = Vec::new();
    for entry in entries {
        records.extend(serde_json::from_slice(&fs::read(entry?.path())?).ok());
    }
    records.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(records)
}

impl AttachmentJournal {
    /// Reads the records of an earlier run. An unreadable file is renamed, and its path is logged.
    pub fn open(dir: &Path) -> io::Result<AttachmentJournal> {
        fs::create_dir_all(dir)?;
        // Records name every workload of this node and contain configurations of other plugins, so only root may read
        // them.
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => {}
                // An incomplete write: the process ended before the rename.
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
                    let record: AttachmentRecord = record;
                    records.insert(record.id.clone(), record);
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), error, "cannot read the record of an attachment; renamed it to .unreadable; DEL searches for the resources of the attachment");
                    fs::rename(&path, path.with_extension("unreadable"))?;
                }
            }
        }
        Ok(AttachmentJournal { dir: dir.to_owned(), records: Mutex::new(records) })
    }

    pub fn get(&self, id: &AttachmentId) -> Option<AttachmentRecord> {
        self.lock().get(id).cloned()
    }

    pub fn all(&self) -> Vec<AttachmentRecord> {
        self.lock().values().cloned().collect()
    }

    pub fn find(&self, wanted: impl Fn(&AttachmentRecord) -> bool) -> Option<AttachmentRecord> {
        self.lock().values().find(|record| wanted(record)).cloned()
    }

    /// Adds a record to the copy in memory before it is written to disk, so that concurrent requests see it.
    pub fn announce(&self, record: &AttachmentRecord) {
        self.lock().insert(record.id.clone(), record.clone());
    }

    /// Writes a record. With `durable` it survives a power failure, not only the end of the process.
    pub fn put(&self, record: &AttachmentRecord, durable: bool) -> io::Result<()> {
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AttachmentId, AttachmentRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Addresses of live attachments count as in use even if they are free in the datastore.
impl AddressesInUse for AttachmentJournal {
    fn addresses(&self) -> Vec<IpAddr> {
        self.lock().values().flat_map(AttachmentRecord::addresses).collect()
    }

    fn is_held_by_another(&self, address: IpAddr, handle: Option<&str>) -> bool {
        self.lock().values().any(|record| {
            record.handle.as_deref() != handle && record.addresses().any(|held| held == address)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(container: &str) -> AttachmentRecord {
        AttachmentRecord {
            id: AttachmentId { container_id: container.into(), ifname: "eth0".into() },
            phase: AttachmentPhase::Adding,
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
        let journal = AttachmentJournal::open(dir.path()).unwrap();
        journal.put(&record("c1"), true).unwrap();
        let mut live = record("c2");
        live.phase = AttachmentPhase::Live;
        live.result = Some(CniResult::default());
        journal.put(&record("c2"), true).unwrap();
        journal.put(&live, false).unwrap();
        journal.put(&record("c3"), false).unwrap();
        journal.remove(&record("c3").id).unwrap();
        journal.remove(&record("c3").id).unwrap();
        let again = AttachmentJournal::open(dir.path()).unwrap();
        assert_eq!(again.all(), [record("c1"), live]);
    }

    #[test]
    fn records_are_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("attachments");
        AttachmentJournal::open(&place).unwrap().put(&record("c1"), true).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join("c1:eth0.json"))), (0o700, 0o600));
    }

    #[test]
    fn only_what_lives_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let journal = AttachmentJournal::open(dir.path()).unwrap();
        let result = CniResult::parse(&serde_json::json!({"ips": [{"address": "10.0.0.1/32"}]})).unwrap();
        let address = "10.0.0.1".parse().unwrap();
        let mut live = AttachmentRecord { result: Some(result), ..record("c1") };
        journal.put(&live, false).unwrap();
        assert_eq!(journal.addresses(), Vec::<IpAddr>::new());
        live.phase = AttachmentPhase::Live;
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
        assert!(AttachmentJournal::open(dir.path()).unwrap().all().is_empty());
        assert!(dir.path().join("c2:eth0.unreadable").exists());
        assert!(!dir.path().join("c1:eth0.new").exists());
    }
}
