//! Prints the logs of the lab's daemons, each line prefixed with the name of its daemon.

use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::sidecar::PodSidecar;
use crate::topology::LabNode;
use crate::{hub, kube, node, pod, store};
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

/// Prints the logs of one node with the sidecars of its pods, or of the datastore, the hubs and all nodes.
pub fn print(place: &LabPaths, node: Option<&str>, follow: bool, out: &mut dyn Write) -> LabResult<()> {
    let cluster = LabCluster::load(place)?;
    let mut logs = Vec::new();
    let nodes = match node {
        Some(name) => vec![cluster.node(name)?],
        None => {
            logs.push(FollowedLog::new("store", store::daemon(place).log));
            for hub in 1..=cluster.process_hubs() {
                logs.push(FollowedLog::new(&format!("hub{hub}"), hub::daemon(place, hub).log));
            }
            cluster.nodes.iter().collect()
        }
    };
    let pods = pod::all(place)?;
    for LabNode { name, .. } in nodes {
        if cluster.kubernetes.is_some() {
            // A restarted container writes a new log file.
            logs.extend(kube::node::logs(place, name).into_iter().map(|file| FollowedLog::new(name, file)));
        } else {
            logs.push(FollowedLog::new(name, node::daemon(place, name).log));
            for pod in pods.iter().filter(|pod| pod.node == *name && pod.envoy.is_some()) {
                let sidecar = PodSidecar::new(place, pod);
                logs.push(FollowedLog::new(&format!("{}/envoy", pod.name), sidecar.envoy().log));
                logs.push(FollowedLog::new(&format!("{}/l7", pod.name), sidecar.server().log));
            }
        }
    }
    loop {
        for log in &mut logs {
            log.copy(out)?;
        }
        out.flush().map_err(LabError::Output)?;
        if !follow {
            return Ok(());
        }
        std::thread::sleep(FOLLOW_INTERVAL);
    }
}

impl FollowedLog {
    fn new(name: &str, path: PathBuf) -> FollowedLog {
        FollowedLog { name: name.to_owned(), path, reader: None, rest: Vec::new() }
    }

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
                    .map_err(LabError::Output)?;
                self.rest.clear();
            }
        }
        Ok(())
    }
}
