//! The containers that this host's node has attached, read from the node's journal: its daemon need not run.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

/// What a record of the journal says to people.
#[derive(Debug, Deserialize)]
pub struct Attachment {
    id: Id,
    phase: String,
    /// Empty if it is unknown, for a container that another program attached.
    pub network: String,
    netns: String,
    pub host_interface: String,
    /// Namespace and name.
    endpoint: Option<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct Id {
    container_id: String,
    ifname: String,
}

impl Attachment {
    pub fn container_id(&self) -> &str {
        &self.id.container_id
    }

    pub fn ifname(&self) -> &str {
        &self.id.ifname
    }

    /// Whether the container still runs. `interfaces` are those of the host.
    pub fn is_live(&self, interfaces: &BTreeMap<String, bool>) -> bool {
        let runs = match self.netns.is_empty() {
            true => interfaces.contains_key(&self.host_interface),
            false => Path::new(&self.netns).exists(),
        };
        self.phase == "live" && runs
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {} ({}", self.id.container_id, self.id.ifname)?;
        match &self.endpoint {
            Some((namespace, name)) => write!(f, ", endpoint {namespace}/{name})"),
            None => f.write_str(")"),
        }
    }
}

/// All records. Those that cannot be read are passed over: the node names them, and the interfaces of their containers are unknown
/// then.
pub fn read(journal: &Path) -> io::Result<Vec<Attachment>> {
    let entries = match std::fs::read_dir(journal) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let bytes = std::fs::read(entry?.path())?;
        if let Ok(attachment) = serde_json::from_slice::<Attachment>(&bytes) {
            found.push(attachment);
        }
    }
    found.sort_by(|one, other| one.id.container_id.cmp(&other.id.container_id));
    Ok(found)
}
