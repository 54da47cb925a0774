//! Removes a lab, or what a crash left of one.

use crate::error::{Error, Result};
use crate::place::Place;
use crate::{kube, netns};
use std::fs;
use std::io::ErrorKind;

/// Goes on past failures and tells all of them. Nothing there is no failure; returns whether there was anything.
pub fn down(place: &Place) -> Result<bool> {
    let mut failures = Vec::new();
    let mut note = |result: Result<()>| failures.extend(result.err().map(|error| error.to_string()));
    let namespaces = netns::names(&place.prefix())?;
    // Every process first: a daemon that is still alive might make anew what is removed.
    for name in &namespaces {
        note(netns::end_processes(name));
    }
    for name in &namespaces {
        note(netns::remove(name));
    }
    // Whoever was in them has been killed with the first process of the node.
    note(kube::remove_cgroups(&place.prefix()));
    let existed = place.dir().exists() || !namespaces.is_empty();
    note(remove_dir(place));
    match failures.is_empty() {
        true => Ok(existed),
        false => Err(Error::Leftovers(failures)),
    }
}

/// Only a directory that is a lab's is removed with its contents.
fn remove_dir(place: &Place) -> Result<()> {
    let dir = place.dir();
    let removed = match place.cluster_file().exists() {
        true => fs::remove_dir_all(dir),
        false => fs::remove_dir(dir),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            return Err(Error::refused(format!("{} is no lab's; not removed", dir.display())));
        }
        other => other.map_err(Error::file(dir))?,
    }
    if let Some(parent) = place.shared_parent() {
        // There may be other labs.
        let _ = fs::remove_dir(parent);
    }
    Ok(())
}
