//! The socket of one workload. Its directory is mounted into the workload, which can create, replace and remove files in
//! it at any time; nothing here follows a symbolic link of the workload.

use nix::fcntl::OFlag;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Any user of the workload may connect: the socket itself is the credential.
const SOCKET_MODE: u32 = 0o777;
const SOCKET_NAME: &str = "socket";

/// A bound socket.
#[derive(Debug)]
pub struct WorkloadSocket {
    pub listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket. It stays when the daemon ends: the next daemon replaces it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl WorkloadSocket {
    /// Creates `<mount>/<uid>/socket` and its directory. A socket that an earlier daemon left is replaced.
    pub fn bind(mount: &Path, uid: &str) -> io::Result<WorkloadSocket> {
        let dir = mount.join(uid);
        fs::create_dir_all(mount)?;
        match fs::create_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created?,
        }
        if !fs::symlink_metadata(&dir)?.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                "the path of its directory is something else",
            ));
        }
        let path = dir.join(SOCKET_NAME);
        // Removes a link itself, not its target. A directory with this name is an error.
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        let listener = UnixListener::bind(&path)?;
        let inode = open_to_everyone(&path)?;
        Ok(WorkloadSocket { listener, file: SocketFile { path, inode } })
    }

    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

impl SocketFile {
    /// Returns whether the path still leads to the socket.
    pub fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.inode)
    }

    /// Removes the socket unless the path leads to another one.
    pub fn remove(&self) {
        if self.exists() {
            // If this fails, the socket has no listener, and its directory goes away with the workload.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Removes the directory, which a workload without credentials does not need.
    pub fn remove_directory(&self) {
        if let Some(dir) = self.path.parent() {
            // Fails if a volume is mounted there or the workload has files in it; both are removed by their owner.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Sets the mode of a socket and returns its identity. The mode is set through a descriptor: the workload may have put a
/// link to another file in the place of the socket.
fn open_to_everyone(path: &Path) -> io::Result<(u64, u64)> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    let socket: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = socket.metadata()?;
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "something else has replaced the socket"));
    }
    let descriptor = format!("/proc/self/fd/{}", socket.as_raw_fd());
    fs::set_permissions(descriptor, Permissions::from_mode(SOCKET_MODE))?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn sockets_are_open_to_all_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("mount");
        let path = mount.join("a/socket");
        let first = WorkloadSocket::bind(&mount, "a").unwrap();
        assert_eq!(mode(&path), 0o777);
        assert!(first.file.exists());
        let second = WorkloadSocket::bind(&mount, "a").unwrap();
        assert!(!first.file.exists(), "it was replaced");
        first.file.remove();
        assert!(second.file.exists(), "a socket is removed by its owner alone");
        drop(second.listener);
        assert!(path.exists(), "it stays when the daemon ends");
        let third = WorkloadSocket::bind(&mount, "a").unwrap();
        third.file.remove();
        third.file.remove_directory();
        assert!(!mount.join("a").exists());
    }

    #[tokio::test]
    async fn links_of_workloads_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("mount");
        let secret = dir.path().join("secret");
        fs::write(&secret, "x").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        fs::create_dir_all(mount.join("a")).unwrap();
        symlink(&secret, mount.join("a/socket")).unwrap();
        assert!(open_to_everyone(&mount.join("a/socket")).is_err());
        let socket = WorkloadSocket::bind(&mount, "a").unwrap();
        assert!(socket.file.exists());
        assert_eq!(mode(&secret), 0o600);
        symlink(dir.path(), mount.join("b")).unwrap();
        assert!(WorkloadSocket::bind(&mount, "b").is_err(), "the directory is a link");
        fs::create_dir_all(mount.join("c/socket")).unwrap();
        assert!(WorkloadSocket::bind(&mount, "c").is_err(), "a directory has the name of the socket");
    }
}
