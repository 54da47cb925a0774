//! Prints the logs of the lab's daemons, each line prefixed with the name of its daemon.

use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::{hub, kube, node, store};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;

const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// A log file that is read incrementally and may not exist yet.
struct FollowedLog {
    name: String,
    path: PathBuf,
    reader: Option<BufReader<File>>,
    /// An incomplete last line.
    rest: Vec<u8>,
}

/// Prints the logs of one node, or of the datastore, the hubs and all nodes.
pub fn print(place: &LabPaths, of: Option<&str>, follow: bool, out: &mut dyn Write) -> LabResult<()> {
    let cluster = LabCluster::load(place)?;
    let log = |name: &str, path| FollowedLog { name: name.to_owned(), path, reader: None, rest: Vec::new() };
    // A restarted container writes a new log file.
    let of_node = |name: &str| -> Vec<FollowedLog> {
        let files = match cluster.kubernetes {
            Some(_) => kube::node::logs(place, name),
            None => vec![node::daemon(place, name).log],
        };
        files.into_iter().map(|file| log(name, file)).collect()
    };
    let mut logs = match of {
        Some(name) => of_node(&cluster.node(name)?.name),
        None => {
            let nodes = cluster.nodes.iter().flat_map(|node| of_node(&node.name));
            let own_hubs = if cluster.kubernetes.is_some() { 0 } else { cluster.hubs };
            let hubs = (1..=own_hubs).map(|hub| log(&format!("hub{hub}"), hub::daemon(place, hub).log));
            std::iter::once(log("store", store::daemon(place).log)).chain(hubs).chain(nodes).collect()
        }
    };
    loop {
        for log in &mut logs {
            log.copy(out)?;
        }
        out.flush().map_err(|source| LabError::Io { what: "output".to_owned(), source })?;
        if !follow {
            return Ok(());
        }
        std::thread::sleep(FOLLOW_INTERVAL);
    }
}

impl FollowedLog {
    fn copy(&mut self, out: &mut dyn Write) -> LabResult<()> {
        if self.reader.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.reader = Some(BufReader::new(file)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(LabError::file(&self.path)(error)),
            }
        }
        let Some(reader) = &mut self.reader else { return Ok(()) };
        while reader.read_until(b'\n', &mut self.rest).map_err(LabError::file(&self.path))? > 0 {
            if self.rest.last() == Some(&b'\n') {
                write!(out, "{} | {}", self.name, String::from_utf8_lossy(&self.rest))
                    .map_err(|source| LabError::Io { what: "output".to_owned(), source })?;
                self.rest.clear();
            }
        }
        Ok(())
    }
}
