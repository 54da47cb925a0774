//! Writes one status file per active endpoint (`endpoint-status`), as Felix does, for other software on this host.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use tortie_plan::{PlannedWorkload, WorkloadId};

#[derive(Debug)]
pub struct EndpointFiles {
    dir: PathBuf,
    /// File contents by file name; None for a file that an earlier run of the daemon wrote.
    present: BTreeMap<String, Option<String>>,
}

/// The JSON contents of a status file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointFileContents<'a> {
    iface_name: &'a str,
    mac: String,
    ipv4_nets: Vec<String>,
    ipv6_nets: Vec<String>,
    bgp_peer_name: &'a str,
}

impl EndpointFiles {
    /// Opens the directory and takes over the files of an earlier run.
    pub fn open(prefix: &Path) -> io::Result<EndpointFiles> {
        let dir = prefix.join("endpoint-status");
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        let mut present = BTreeMap::new();
        for entry in entries.into_iter().flatten() {
            if let Ok(name) = entry?.file_name().into_string() {
                present.insert(name, None);
            }
        }
        Ok(EndpointFiles { dir, present })
    }

    pub fn is_below(&self, prefix: &Path) -> bool {
        self.dir.parent() == Some(prefix)
    }

    /// Writes the file of an endpoint that is up, if its contents changed.
    pub fn put(&mut self, id: &WorkloadId, workload: &PlannedWorkload) -> io::Result<()> {
        let name = build_file_name(id);
        let text = render(workload)?;
        if self.present.get(&name) == Some(&Some(text.clone())) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.dir)?;
        // Write and rename, so that readers never see a partial file.
        let new = self.dir.join(format!(".{name}"));
        std::fs::write(&new, &text)?;
        std::fs::rename(&new, self.dir.join(&name))?;
        self.present.insert(name, Some(text));
        Ok(())
    }

    pub fn remove(&mut self, id: &WorkloadId) -> io::Result<()> {
        self.remove_named(&build_file_name(id))
    }

    /// Removes the files of all endpoints except these.
    pub fn keep<'a>(&mut self, living: impl Iterator<Item = &'a WorkloadId>) -> io::Result<()> {
        let living: BTreeSet<String> = living.map(build_file_name).collect();
        let dead: Vec<String> = self.present.keys().filter(|name| !living.contains(*name)).cloned().collect();
        dead.iter().try_for_each(|name| self.remove_named(name))
    }

    fn remove_named(&mut self, name: &str) -> io::Result<()> {
        if !self.present.contains_key(name) {
            return Ok(());
        }
        match std::fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.present.remove(name),
        };
        if self.present.is_empty() {
            // Fails if the directory contains a file of other software, which is fine.
            let _ = std::fs::remove_dir(&self.dir);
        }
        Ok(())
    }
}

/// Returns the file name of an endpoint: the parts of its id, escaped as in a URL path and separated by spaces.
fn build_file_name(id: &WorkloadId) -> String {
    [&id.orchestrator, &id.workload, &id.endpoint].map(|part| escape_name(part)).join(" ")
}

fn escape_name(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b if b.is_ascii_alphanumeric() || b"-_.~$&+=:@".contains(&b) => out.push(char::from(b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

fn render(workload: &PlannedWorkload) -> io::Result<String> {
    let nets = |v4: bool| {
        let length = if v4 { 32 } else { 128 };
        let family = workload.addresses.iter().filter(|address| address.is_ipv4() == v4);
        family.map(|address| format!("{address}/{length}")).collect()
    };
    let mac = workload.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
    let contents = EndpointFileContents {
        iface_name: &workload.interface,
        mac: mac.unwrap_or_default(),
        ipv4_nets: nets(true),
        ipv6_nets: nets(false),
        bgp_peer_name: workload.bgp_peer.as_ref().map_or("", |peer| &peer.name),
    };
    Ok(serde_json::to_string(&contents)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(workload: &str) -> WorkloadId {
        WorkloadId { orchestrator: "k8s".into(), workload: workload.into(), endpoint: "eth0".into() }
    }

    fn names(prefix: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(prefix.join("endpoint-status")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn files_come_and_go_with_their_endpoints() {
        let dir = tempfile::tempdir().unwrap();
        let workload = PlannedWorkload {
            interface: "cali1".into(),
            mac: Some([2, 0, 0, 0, 0, 1]),
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            ..PlannedWorkload::default()
        };
        let mut files = EndpointFiles::open(dir.path()).unwrap();
        files.put(&id("shop/cart-0"), &workload).unwrap();
        let path = dir.path().join("endpoint-status/k8s shop%2Fcart-0 eth0");
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            r#"{"ifaceName":"cali1","mac":"02:00:00:00:00:01","ipv4Nets":["10.0.0.1/32"],"ipv6Nets":["fd00::1/128"],"bgpPeerName":""}"#
        );
        files.put(&id("shop/../x"), &workload).unwrap();
        // The next run takes over the files of the last one.
        let mut files = EndpointFiles::open(dir.path()).unwrap();
        files.keep([id("shop/../x")].iter()).unwrap();
        assert_eq!(names(dir.path()), ["k8s shop%2F..%2Fx eth0"]);
        assert!(files.is_below(dir.path()));
        files.keep([].iter()).unwrap();
        assert!(!dir.path().join("endpoint-status").exists());
    }
}
