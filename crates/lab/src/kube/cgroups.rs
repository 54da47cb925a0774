//! Control groups of the nodes' pods. Every node has its own group in every hierarchy; with a shared group, kubelets
//! would remove each other's pods.

use crate::error::{LabError, LabResult};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tortie_process::wait_until;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Time limit for the processes of a group to exit.
const CGROUP_REMOVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Files of a cpuset group that must be set before a process can enter the group.
const CPUSET_FILES: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// Creates the group in every hierarchy.
pub fn create(name: &str) -> LabResult<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        fs::create_dir_all(&group).map_err(LabError::file(&group))?;
        for file in CPUSET_FILES {
            let own = group.join(file);
            if let Ok(value) = fs::read_to_string(hierarchy.join(file))
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
    let mut left = Vec::new();
    let removed = wait_until(CGROUP_REMOVE_TIMEOUT, || {
        left = groups(prefix);
        left.retain(|group| !remove_tree(group));
        left.is_empty()
    });
    if !removed {
        let left: Vec<String> = left.iter().map(|group| group.display().to_string()).collect();
        return Err(LabError::refused(format!("control groups are still in use: {}", left.join(", "))));
    }
    Ok(())
}

fn groups(prefix: &str) -> Vec<PathBuf> {
    let mut groups: Vec<PathBuf> =
        hierarchies().iter().flat_map(|hierarchy| directories(hierarchy)).collect();
    groups.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)));
    groups
}

/// Returns the hierarchies: one in cgroup v2, one per controller in v1.
fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(CGROUP_ROOT);
    let mut candidates = directories(&root);
    candidates.insert(0, root);
    candidates.retain(|dir| dir.join("cgroup.procs").is_file());
    if candidates.first().is_some_and(|dir| dir == Path::new(CGROUP_ROOT)) {
        candidates.truncate(1);
    }
    candidates
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
