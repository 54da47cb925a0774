//! Reads the containers attached by this host's node from the node's journal. The daemon need not be running.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

/// The fields of a journal record that are shown to users.
#[derive(Debug, Deserialize)]
pub struct JournalAttachment {
    id: AttachmentKey,
    phase: String,
    /// Empty if unknown, for a container that another program attached.
    pub network: String,
    netns: String,
    pub host_interface: String,
    /// Namespace and name of the endpoint.
    endpoint: Option<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct AttachmentKey {
    container_id: String,
    ifname: String,
}

impl JournalAttachment {
    pub fn container_id(&self) -> &str {
        &self.id.container_id
    }

    pub fn ifname(&self) -> &str {
        &self.id.ifname
    }

    /// Returns whether the container is still running. `interfaces` are those of the host.
    pub fn is_live(&self, interfaces: &BTreeMap<String, bool>) -> bool {
        let has_network = if self.netns.is_empty() {
            interfaces.contains_key(&self.host_interface)
        } else {
            Path::new(&self.netns).exists()
        };
        self.phase == "live" && has_network
    }
}

impl fmt::Display for JournalAttachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {} ({}", self.id.container_id, self.id.ifname)?;
        match &self.endpoint {
            Some((namespace, name)) => write!(f, ", endpoint {namespace}/{name})"),
            None => f.write_str(")"),
        }
    }
}

/// Reads all records. Unreadable records are skipped: the node reports them, and the interfaces of their containers
/// count as unknown.
pub fn read(journal: &Path) -> io::Result<Vec<JournalAttachment>> {
    let entries = match std::fs::read_dir(journal) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let bytes = std::fs::read(entry?.path())?;
        if let Ok(attachment) = serde_json::from_slice::<JournalAttachment>(&bytes) {
            found.push(attachment);
        }
    }
    found.sort_by(|one, other| one.id.container_id.cmp(&other.id.container_id));
    Ok(found)
}
