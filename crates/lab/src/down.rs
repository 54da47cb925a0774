//! Removes a lab, or the remains of one after a crash.

use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::{kube, netns};
use std::fs;
use std::io::ErrorKind;

/// Removes everything, continuing after failures, and returns all errors. A lab that does not exist is not an error.
/// Returns whether anything existed.
pub fn down(place: &LabPaths) -> LabResult<bool> {
    let namespaces = netns::names(&place.prefix())?;
    let existed = place.dir().exists() || !namespaces.is_empty();
    // End all processes first: a running daemon might recreate removed objects.
    let mut results: Vec<LabResult<()>> = namespaces.iter().map(|name| netns::end_processes(name)).collect();
    results.extend(namespaces.iter().map(|name| netns::remove(name)));
    // Their processes were killed together with the node's init process.
    results.push(kube::remove_cgroups(&place.prefix()));
    results.push(remove_dir(place));
    let failures: Vec<LabError> = results.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() { Ok(existed) } else { Err(LabError::Leftovers(failures)) }
}

/// Removes the contents only of a directory that belongs to a lab.
fn remove_dir(place: &LabPaths) -> LabResult<()> {
    let dir = place.dir();
    let removed = if place.cluster_file().exists() { fs::remove_dir_all(dir) } else { fs::remove_dir(dir) };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            return Err(LabError::refused(format!(
                "{} does not belong to a lab; not removed",
                dir.display()
            )));
        }
        other => other.map_err(LabError::file(dir))?,
    }
    if let Some(parent) = place.shared_parent() {
        // Fails if the directory contains other labs.
        let _ = fs::remove_dir(parent);
    }
    Ok(())
}
