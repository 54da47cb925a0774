//! Control groups of the nodes' pods. Every node has its own group in every hierarchy; with a shared group, kubelets
//! would remove each other's pods.

use crate::error::{LabError, LabResult};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Time limit for the processes of a group to exit.
const CGROUP_REMOVE_TIMEOUT: Duration = Duration::from_secs(20);
const CGROUP_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Files of a cpuset group that must be set before a process can enter the group.
const CPUSET_FILES: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// Creates the group in every hierarchy.
pub fn create(name: &str) -> LabResult<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        match fs::create_dir(&group) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(LabError::file(&group)(error));
            }
            _ => {}
        }
        for file in CPUSET_FILES {
            let (own, parent) = (group.join(file), hierarchy.join(file));
            if let Ok(value) = fs::read_to_string(&parent)
                && own.exists()
            {
                fs::write(&own, value.trim()).map_err(LabError::file(&own))?;
            }
        }
    }
    Ok(())
}

/// Removes every group whose name starts with `prefix`, including its subgroups, as soon as they are empty.
pub fn remove(prefix: &str) -> LabResult<()> {
    let deadline = Instant::now() + CGROUP_REMOVE_TIMEOUT;
    loop {
        let left: Vec<PathBuf> = groups(prefix).into_iter().filter(|group| !remove_tree(group)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let left: Vec<String> = left.iter().map(|group| group.display().to_string()).collect();
            return Err(LabError::refused(format!("control groups are still in use: {}", left.join(", "))));
        }
        std::thread::sleep(CGROUP_POLL_INTERVAL);
    }
}

pub fn groups(prefix: &str) -> Vec<PathBuf> {
    let begins = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
    };
    hierarchies().iter().flat_map(|hierarchy| directories(hierarchy)).filter(begins).collect()
}

/// Returns the hierarchies: one in cgroup v2, one per controller in v1.
fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(CGROUP_ROOT);
    let is_hierarchy = |dir: &PathBuf| dir.join("cgroup.procs").is_file();
    match is_hierarchy(&root) {
        true => vec![root],
        false => directories(&root).into_iter().filter(is_hierarchy).collect(),
    }
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let entries = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_type().ok()?.is_dir().then(|| entry.path())
    });
    entries.collect()
}

/// Removes a group and its subgroups; its files disappear with the directory. Returns false if it still has processes.
fn remove_tree(group: &Path) -> bool {
    let below = directories(group).iter().all(|group| remove_tree(group));
    below
        && match fs::remove_dir(group) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
}
