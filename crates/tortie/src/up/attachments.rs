//! The containers that this host's node has attached, read from the node's journal: its daemon need not run.

use serde::Deserialize;
use std::fmt;
use std::io;
use std::path::Path;

/// What a record of the journal says to people.
#[derive(Debug, Deserialize)]
pub struct Attachment {
    id: Id,
    phase: String,
    netns: String,
    /// Namespace and name.
    endpoint: Option<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct Id {
    container_id: String,
    ifname: String,
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

/// Those whose network namespace still exists. Records that cannot be read are passed over: the node names them.
pub fn live(journal: &Path) -> io::Result<Vec<Attachment>> {
    let entries = match std::fs::read_dir(journal) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let bytes = std::fs::read(entry?.path())?;
        let Ok(attachment) = serde_json::from_slice::<Attachment>(&bytes) else { continue };
        if attachment.phase == "live" && Path::new(&attachment.netns).exists() {
            found.push(attachment);
        }
    }
    found.sort_by(|one, other| one.id.container_id.cmp(&other.id.container_id));
    Ok(found)
}
