//! Reads the live attachments of this host from the journal that its node keeps in the state directory. The
//! journal is authoritative even if the datastore is outdated: after a restored backup, or during a
//! migration.

use clap::Args;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const DEFAULT_STATE_DIR: &str = "/var/lib/tortie";
/// Maximum size of a record in bytes; larger files are rejected.
const MAX_RECORD_BYTES: u64 = 1 << 20;

#[derive(Debug, Args)]
pub struct JournalArgs {
    /// State directory of a node of this host: its running containers are taken into account; may be given
    /// several times
    #[arg(long, value_name = "DIR", env = "TORTIE_STATE_DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: Vec<PathBuf>,
}

/// A live attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveAttachment {
    pub container_id: String,
    /// `None` if another IPAM plugin assigned the addresses.
    pub handle: Option<String>,
    /// Namespace and name of its WorkloadEndpoint, unless a newer sandbox of the same pod owns it.
    pub endpoint: Option<(String, String)>,
    pub addresses: Vec<IpAddr>,
}

/// The contents of the journals, and the parts that could not be read.
#[derive(Debug, Default)]
pub struct AttachmentJournals {
    pub attachments: Vec<LiveAttachment>,
    /// The names of the nodes that the journals belong to, as far as known.
    pub nodes: BTreeSet<String>,
    pub read: Vec<PathBuf>,
    /// Directories and files that could not be read, with the reason.
    pub unreadable: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("{0} bytes are too many for a record")]
    TooLarge(u64),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct JournalRecord {
    id: JournalRecordId,
    phase: String,
    handle: Option<String>,
    endpoint: Option<(String, String)>,
    result: Option<JournalCniResult>,
}

#[derive(Deserialize)]
struct JournalRecordId {
    container_id: String,
}

#[derive(Deserialize)]
struct JournalCniResult {
    #[serde(default)]
    ips: Vec<JournalAddress>,
}

#[derive(Deserialize)]
struct JournalAddress {
    address: String,
}

impl AttachmentJournals {
    pub fn load(args: &JournalArgs) -> AttachmentJournals {
        let mut journals = AttachmentJournals::default();
        for dir in &args.state_dir {
            journals.add(dir);
        }
        journals
    }

    /// Returns the live attachment that has the address.
    pub fn holder(&self, address: IpAddr) -> Option<&LiveAttachment> {
        self.attachments.iter().find(|attachment| attachment.addresses.contains(&address))
    }

    fn add(&mut self, state_dir: &Path) {
        let dir = state_dir.join("attachments");
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return self.unreadable.push(format!("{}: {error}", dir.display())),
        };
        self.nodes.extend(read_node_name(state_dir));
        self.read.push(dir.clone());
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    self.unreadable.push(format!("{}: {error}", dir.display()));
                    continue;
                }
            };
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read_attachment(&path) {
                Ok(attachment) => self.attachments.extend(attachment),
                Err(error) => self.unreadable.push(format!("{}: {error}", path.display())),
            }
        }
        self.attachments.sort_by(|a, b| a.container_id.cmp(&b.container_id));
    }
}

/// Reads an attachment; returns `None` if it is being removed, because then the node releases its addresses.
fn read_attachment(path: &Path) -> Result<Option<LiveAttachment>, RecordError> {
    let length = std::fs::metadata(path)?.len();
    if length > MAX_RECORD_BYTES {
        return Err(RecordError::TooLarge(length));
    }
    let record: JournalRecord = serde_json::from_slice(&std::fs::read(path)?)?;
    let ips = record.result.map(|result| result.ips).unwrap_or_default();
    Ok((record.phase != "removing").then(|| LiveAttachment {
        container_id: record.id.container_id,
        handle: record.handle,
        endpoint: record.endpoint,
        addresses: ips.iter().filter_map(|ip| ip.address.split('/').next()?.parse().ok()).collect(),
    }))
}

/// Returns the name that the node has written to its state directory, or Calico to its own.
fn read_node_name(state_dir: &Path) -> Option<String> {
    let mut name = std::fs::read_to_string(state_dir.join("nodename")).ok();
    if name.is_none() && state_dir == Path::new(DEFAULT_STATE_DIR) {
        name = std::fs::read_to_string("/var/lib/calico/nodename").ok();
    }
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: &str = r#"{"id":{"container_id":"c1","ifname":"eth0"},"phase":"live","network":"net",
        "netns":"/run/netns/x","host_interface":"cali1","handle":"net.c1","delegate":null,
        "endpoint":["default","n1-cni-c1-eth0"],
        "result":{"ips":[{"address":"10.0.0.1/32"},{"address":"fd00::1/128"}],"interfaces":[],"routes":[]}}"#;

    #[test]
    fn live_attachments_are_found_unreadable_records_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let attachments = dir.path().join("attachments");
        std::fs::create_dir(&attachments).unwrap();
        std::fs::write(dir.path().join("nodename"), "n1\n").unwrap();
        std::fs::write(attachments.join("c1:eth0.json"), LIVE).unwrap();
        std::fs::write(attachments.join("c2:eth0.json"), LIVE.replace("\"live\"", "\"removing\"")).unwrap();
        std::fs::write(attachments.join("c3:eth0.json"), "{").unwrap();
        std::fs::write(attachments.join("c4:eth0.new"), "{").unwrap();
        let args = JournalArgs { state_dir: vec![dir.path().to_owned(), dir.path().join("elsewhere")] };
        let journals = AttachmentJournals::load(&args);
        let [attachment] = journals.attachments.as_slice() else { panic!("{journals:?}") };
        assert_eq!(attachment.handle.as_deref(), Some("net.c1"));
        assert_eq!(journals.nodes, BTreeSet::from(["n1".to_owned()]));
        assert_eq!(journals.read, [attachments]);
        assert_eq!(journals.holder("fd00::1".parse().unwrap()), Some(attachment));
        assert_eq!(journals.holder("10.0.0.2".parse().unwrap()), None);
        assert!(journals.unreadable[0].contains("c3:eth0.json"), "{journals:?}");
    }
}
