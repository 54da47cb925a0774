//! Publishes the policy-sync socket of a pod in a volume, and removes it again.
//!
//! The node creates the socket of a pod in `<prefix>/mount/<UID>` while there are credentials for it. The volume is a tmpfs
//! in which that directory is bound to `nodeagent`, so that containers find the socket at `<volume>/nodeagent/socket`,
//! as with Calico. Each step can be repeated: after a crash kubelet requests it again, and it continues from any state.

#[cfg(test)]
mod tests;

use crate::credentials::{CredentialStore, PodCredentials};
use crate::error::VolumeError;
use crate::mounts;
use crate::volume::{PodVolume, VolumeTarget, is_plain};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directory of sockets and credentials, the usual value of `policySyncPathPrefix`.
pub const DEFAULT_PREFIX: &str = "/var/run/nodeagent";
/// Maximum number of volumes; the node reads as many credential files.
pub const MAX_VOLUMES: usize = 1024;
/// Directory of the socket in a volume.
const SOCKET_DIRECTORY: &str = "nodeagent";
const SOCKET_NAME: &str = "socket";
const STAGING_DIRECTORY: &str = "staging";
const LOCK_NAME: &str = "lock";
/// Time limit for other processes that change volumes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Prefix of the ids that kubelet gives to inline volumes.
const KUBELET_ID_PREFIX: &str = "csi-";

/// Changes the volumes of a node. Several processes may do so: a lock orders them.
#[derive(Clone, Debug)]
pub struct VolumePublisher {
    prefix: PathBuf,
    credentials: CredentialStore,
}

impl VolumePublisher {
    pub fn new(prefix: PathBuf) -> VolumePublisher {
        let credentials = CredentialStore::new(prefix.join("creds"));
        VolumePublisher { prefix, credentials }
    }

    /// Mounts the volume and writes the credentials of its pod. Does nothing if that is done.
    pub fn publish(&self, volume: &PodVolume) -> Result<(), VolumeError> {
        let _lock = self.lock()?;
        let wanted = PodCredentials::from(&volume.pod);
        let known = self.credentials.read(&volume.id)?;
        match &known {
            Some(known) if *known != wanted => {
                let pod = format!("{}/{}", known.namespace, known.workload);
                return Err(VolumeError::Conflict { id: volume.id.clone(), pod });
            }
            Some(_) => {}
            None if self.credentials.list()?.len() >= MAX_VOLUMES => return Err(VolumeError::TooMany),
            None => {}
        }
        check_directories(&volume.target)?;
        let source = self.socket_directory(&volume.pod.uid);
        create_directory(&self.prefix.join("mount"), 0o755)?;
        create_directory(&source, 0o755)?;
        create_directory(self.credentials.dir(), 0o700)?;
        let target = &volume.target.path;
        if !is_mounted(&source, target) {
            unmount_volume(target)?;
            let mounted = self.mount_volume(&source, target);
            if mounted.is_err() {
                // The first error is the one to report; kubelet repeats the request.
                let _ = mounts::unmount_all(&self.staging()).and_then(|()| unmount_volume(target));
            }
            mounted?;
        }
        match known {
            Some(_) => Ok(()),
            None => self.credentials.write(&volume.id, &wanted),
        }
    }

    /// Removes the credentials and the mounts of a volume. Parts that do not exist are no errors.
    pub fn unpublish(&self, volume_id: &str, target: &VolumeTarget) -> Result<(), VolumeError> {
        let _lock = self.lock()?;
        self.credentials.remove(volume_id)?;
        if target.path.symlink_metadata().is_ok() {
            check_directories(target)?;
            unmount_volume(&target.path)?;
            accept_missing("remove", &target.path, fs::remove_dir(&target.path))?;
        }
        self.remove_socket_directory(&target.pod_uid)
    }

    /// Removes the credentials of inline volumes whose pods kubelet has removed while no driver was running, and returns
    /// their number. Files with other names belong to others.
    pub fn remove_orphans(&self, kubelet_dir: &Path) -> Result<usize, VolumeError> {
        let _lock = self.lock()?;
        if !kubelet_dir.join("pods").is_dir() {
            // A wrong directory does not prove that pods are gone.
            return Ok(0);
        }
        let mut removed = 0;
        for id in self.credentials.list()? {
            let Some(credentials) = self.credentials.read(&id)? else { continue };
            let is_ours = id.starts_with(KUBELET_ID_PREFIX) && credentials.has_plain_uid();
            let pod = kubelet_dir.join("pods").join(&credentials.uid);
            let missing = pod.symlink_metadata().err().map(|error| error.kind());
            if is_ours && missing == Some(ErrorKind::NotFound) {
                self.credentials.remove(&id)?;
                self.remove_socket_directory(&credentials.uid)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn mount_volume(&self, source: &Path, target: &Path) -> Result<(), VolumeError> {
        let staging = self.staging();
        mounts::unmount_all(&staging)?;
        create_directory(&staging, 0o700)?;
        create_directory(target, 0o755)?;
        mounts::mount_tmpfs(&staging)?;
        create_directory(&staging.join(SOCKET_DIRECTORY), 0o755)?;
        self.move_staged(target)?;
        mounts::bind(source, &staging)?;
        self.move_staged(&target.join(SOCKET_DIRECTORY))
    }

    /// Makes the mount in the staging directory read-only and moves it.
    fn move_staged(&self, target: &Path) -> Result<(), VolumeError> {
        let staging = self.staging();
        mounts::restrict(&staging)?;
        mounts::bind(&staging, target)?;
        mounts::unmount_all(&staging)
    }

    /// Removes the directory of the socket of a pod, unless another volume uses it.
    fn remove_socket_directory(&self, uid: &str) -> Result<(), VolumeError> {
        if !is_plain(uid, usize::MAX) || self.credentials.has_pod(uid)? {
            return Ok(());
        }
        let dir = self.socket_directory(uid);
        let socket = dir.join(SOCKET_NAME);
        accept_missing("remove", &socket, fs::remove_file(&socket))?;
        accept_missing("remove", &dir, fs::remove_dir(&dir))
    }

    fn socket_directory(&self, uid: &str) -> PathBuf {
        self.prefix.join("mount").join(uid)
    }

    fn staging(&self) -> PathBuf {
        self.prefix.join(STAGING_DIRECTORY)
    }

    /// Waits for the lock, which is released when the result is dropped.
    fn lock(&self) -> Result<File, VolumeError> {
        create_directory(&self.prefix, 0o755)?;
        let path = self.prefix.join(LOCK_NAME);
        let mut options = OpenOptions::new();
        let file = options.create(true).write(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(VolumeError::io("open", &path))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_RETRY_DELAY);
                }
                Err(TryLockError::WouldBlock) => return Err(VolumeError::Locked { path }),
                Err(TryLockError::Error(error)) => return Err(VolumeError::io("lock", &path)(error)),
            }
        }
    }
}

fn is_mounted(source: &Path, target: &Path) -> bool {
    mounts::is_bound(source, &target.join(SOCKET_DIRECTORY)) && mounts::is_read_only(target)
}

fn unmount_volume(target: &Path) -> Result<(), VolumeError> {
    mounts::unmount_all(&target.join(SOCKET_DIRECTORY))?;
    mounts::unmount_all(target)
}

/// Checks that the directories from kubelet's to the volume are no links, which would lead elsewhere. The volume itself
/// may not exist yet.
fn check_directories(target: &VolumeTarget) -> Result<(), VolumeError> {
    let below = target.path.strip_prefix(&target.kubelet_dir).unwrap_or(&target.path);
    let mut path = target.kubelet_dir.clone();
    for name in below {
        path.push(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(VolumeError::io("use", &path)(ErrorKind::NotADirectory.into())),
            Err(error) if error.kind() == ErrorKind::NotFound && path == target.path => {}
            Err(error) => return Err(VolumeError::io("use", &path)(error)),
        }
    }
    Ok(())
}

/// Creates a directory unless it exists. Its parents must exist, except for those of the prefix.
fn create_directory(path: &Path, mode: u32) -> Result<(), VolumeError> {
    let failed = |error| VolumeError::io("create", path)(error);
    match DirBuilder::new()
        .mode(mode)
        .recursive(path.parent().is_some_and(|parent| !parent.exists()))
        .create(path)
    {
        // The mode of a new directory does not depend on the umask of the driver.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            match fs::symlink_metadata(path).map(|found| found.is_dir()) {
                Ok(true) => Ok(()),
                Ok(false) => Err(failed(ErrorKind::NotADirectory.into())),
                Err(error) => Err(failed(error)),
            }
        }
        Err(error) => Err(failed(error)),
    }
}

/// Converts the result of a removal; a path that does not exist is not an error.
fn accept_missing(action: &'static str, path: &Path, removed: io::Result<()>) -> Result<(), VolumeError> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(VolumeError::io(action, path)(error)),
        _ => Ok(()),
    }
}
