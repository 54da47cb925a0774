//! Locks that allow one daemon per directory and per network namespace. A second daemon gets an error that names the
//! holder, and changes nothing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// Lock on a directory, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{dir} is in use by another node daemon ({holder}); stop that one, or use another directory")]
    Held { dir: String, holder: String },
    #[error(
        "another node daemon ({holder}) runs in this network namespace; stop that one: a host is one node"
    )]
    Served { holder: String },
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
}

/// Lock on a network namespace, which keeps out a second daemon whatever directories it uses: two daemons that
/// program one kernel would undo each other's changes. It is a listening socket with an abstract name, which is
/// scoped to the network namespace and disappears with the process.
#[derive(Debug)]
pub struct NetnsLock {
    _socket: Option<UnixListener>,
}

impl NetnsLock {
    /// Locks the network namespace of this process.
    pub async fn acquire() -> Result<NetnsLock, LockError> {
        NetnsLock::named("tortie-node").await
    }

    async fn named(name: &str) -> Result<NetnsLock, LockError> {
        // A socket path that begins with a NUL byte is an abstract name.
        let path = format!("\0{name}");
        match UnixListener::bind(&path) {
            Ok(socket) => Ok(NetnsLock { _socket: Some(socket) }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let other = UnixStream::connect(&path).await.and_then(|other| other.peer_cred());
                match other {
                    // Any user can bind an abstract name. A holder that is not root is not a node daemon and must not
                    // prevent the start.
                    Ok(other) if other.uid() != 0 => {
                        tracing::warn!(
                            uid = other.uid(),
                            "a process without privileges has the name @{name}: this network namespace is not locked"
                        );
                        Ok(NetnsLock { _socket: None })
                    }
                    Ok(other) => {
                        let pid = other.pid().filter(|pid| *pid > 0);
                        let holder =
                            pid.map_or("of another container".to_owned(), |pid| format!("process {pid}"));
                        Err(LockError::Served { holder })
                    }
                    Err(_) => Err(LockError::Served { holder: "it does not say who it is".to_owned() }),
                }
            }
            Err(source) => Err(LockError::Io { path: format!("@{name}"), source }),
        }
    }
}

impl DirLock {
    /// Locks an existing directory.
    pub fn acquire(dir: &Path) -> Result<DirLock, LockError> {
        let path = dir.join("lock");
        let failed = |source| LockError::Io { path: path.display().to_string(), source };
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(LockError::Held {
                        dir: dir.display().to_string(),
                        holder: read_holder(file),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The previous holder may have removed the file after we opened it. Other processes would not see our
            // lock on it, so retry.
            let there = std::fs::metadata(&path).map(|there| there.ino()).ok();
            if there != Some(file.metadata().map_err(failed)?.ino()) {
                continue;
            }
            let text = format!("process {}, since {:.0}\n", std::process::id(), jiff::Timestamp::now());
            file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(failed)?;
            return Ok(DirLock { _file: file, path });
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // A file that could not be removed is not locked.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the description that the holder wrote to the lock file.
fn read_holder(file: File) -> String {
    let mut text = String::new();
    // An unreadable description does not change that the lock is held.
    let _ = file.take(4096).read_to_string(&mut text);
    match text.trim() {
        "" => "it has not said who it is".to_owned(),
        holder => holder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_learns_who_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        let error = DirLock::acquire(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}, since 2", std::process::id())), "{error}");
        drop(first);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        DirLock::acquire(dir.path()).unwrap();
    }

    #[tokio::test]
    async fn a_namespace_has_one_holder_until_it_ends() {
        let name = format!("tortie-test-{}", std::process::id());
        let first = NetnsLock::named(&name).await.unwrap();
        let error = NetnsLock::named(&name).await.unwrap_err().to_string();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(first);
        NetnsLock::named(&name).await.unwrap();
    }
}
