//! Unix sockets of the daemon, accessible only to root and removed only by the daemon that created them.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

#[derive(Debug)]
pub struct DaemonSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket, because another daemon may later replace it at the same path.
    made: (u64, u64),
}

impl DaemonSocket {
    /// Creates the socket and replaces one that an earlier daemon left. The caller holds the lock of the directory.
    pub fn bind(path: &Path) -> io::Result<DaemonSocket> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(DaemonSocket { listener, path: path.to_owned(), made: read_identity(path)? })
    }

    pub async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for DaemonSocket {
    fn drop(&mut self) {
        if read_identity(&self.path).is_ok_and(|there| there == self.made) {
            // If this fails, the next daemon removes the socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn read_identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_removed_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let first = DaemonSocket::bind(&path).unwrap();
        let second = DaemonSocket::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(second);
        assert!(!path.exists());
    }
}
