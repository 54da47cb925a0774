//! Gives the host back to whoever comes next: policy, our rules in the chains of others, and our files go. Interfaces,
//! routes, tunnels and settings stay: live pods use them, and they are named as Calico names its own, which adopts them.

use crate::install;
use crate::lock::{DirLock, LockError};
use crate::options::NodeArgs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tortie_dataplane::Netns;

#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{0}")]
    Kernel(#[from] tortie_dataplane::Error),
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("CNI plugins: {0}")]
    Install(String),
}

/// Returns what was removed. Refused while the daemon runs: it would restore everything.
pub async fn leave(args: &NodeArgs) -> Result<Vec<String>, LeaveError> {
    let mut locks = Vec::new();
    for dir in [&args.state_dir, &args.run_dir] {
        let held = locks.iter().any(|(locked, _)| *locked == dir);
        if dir.is_dir() && !held {
            locks.push((dir, DirLock::acquire(dir)?));
        }
    }
    tortie_dataplane::remove_policy(&Netns::current()?).await?;
    let mut removed =
        vec!["policy: tables inet tortie and arp tortie, and our rules in chains of others".to_owned()];
    let installed = install::remove(&args.state_dir).map_err(LeaveError::Install)?;
    removed.extend(installed.iter().map(|file| file.display().to_string()));
    let mut files = vec![args.socket(), args.query_socket(), args.run_dir.join("bgp"), args.journal_dir()];
    if let Some(own) = args.own_run_dir() {
        files.push(own.join("endpoint-status"));
    }
    // In Calico's own directory they are Calico's.
    if args.calico_dir() == args.state_dir {
        files.extend(["nodename", "mtu"].map(|name| args.state_dir.join(name)));
    }
    for file in files {
        if take_away(&file)? {
            removed.push(file.display().to_string());
        }
    }
    let dirs: Vec<&PathBuf> = locks.iter().map(|(dir, _)| *dir).collect();
    drop(locks);
    for dir in dirs {
        // Others, the datastore for one, may keep something there.
        if std::fs::remove_dir(dir).is_ok() {
            removed.push(dir.display().to_string());
        }
    }
    Ok(removed)
}

/// A file or a directory; says whether there was one.
fn take_away(path: &Path) -> Result<bool, LeaveError> {
    let outcome = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(LeaveError::Io { path: path.to_owned(), error }),
    }
}
