//! The mounts of a volume. A read-only flag that is set on a mount does not reach its copies in other mount namespaces, so
//! each mount is made complete in a staging directory before it is bound to the directory that kubelet sees.

use crate::error::VolumeError;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The volume itself only holds a mount point.
const TMPFS_OPTIONS: &str = "size=8k,mode=0755";
/// Maximum number of mounts that are removed from one directory.
const MAX_STACKED_MOUNTS: usize = 64;
const NONE: Option<&str> = None;

/// Mounts an empty file system.
pub fn mount_tmpfs(path: &Path) -> Result<(), VolumeError> {
    mount(Some("tmpfs"), path, Some("tmpfs"), restricted(), Some(TMPFS_OPTIONS))
        .map_err(failed("mount a tmpfs on", path))
}

pub fn bind(from: &Path, to: &Path) -> Result<(), VolumeError> {
    mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE).map_err(failed("bind the volume to", to))
}

/// Makes a mount private and read-only. A pod can then neither fill the memory of the host with files nor replace its
/// socket.
pub fn restrict(path: &Path) -> Result<(), VolumeError> {
    mount(NONE, path, NONE, MsFlags::MS_PRIVATE, NONE).map_err(failed("make private", path))?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | restricted();
    mount(NONE, path, NONE, flags, NONE).map_err(failed("make read-only", path))
}

fn restricted() -> MsFlags {
    MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC
}

/// Removes all mounts from a directory, which may not exist.
pub fn unmount_all(path: &Path) -> Result<(), VolumeError> {
    for _ in 0..MAX_STACKED_MOUNTS {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // It is not a mount point, or does not exist.
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(failed("unmount", path)(error)),
        }
    }
    Err(failed("unmount", path)(Errno::EBUSY))
}

/// Returns whether both paths lead to the same directory and the second is read-only.
pub fn is_bound(source: &Path, path: &Path) -> bool {
    let identity = |path: &Path| fs::symlink_metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(source).is_some_and(|source| identity(path) == Some(source)) && is_read_only(path)
}

pub fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> VolumeError {
    let failed = VolumeError::io(action, path);
    move |error| failed(io::Error::from(error))
}
