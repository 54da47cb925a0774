//! Disk space: how much is available, and a reserve for a full disk.
//!
//! On a full disk a delete or a compaction must still write a few pages before it frees any. The reserve is a file of
//! allocated blocks beside the database. When a write to the database finds no space, a piece of the reserve is
//! released to the file system and the write is retried; puts have been rejected long before that.

use super::storage_fault::StorageFault;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Name of the reserve file inside a data directory.
pub const RESERVE_FILE_NAME: &str = "store.reserve";
/// Space that deletes and compaction may use while the disk is full.
const RESERVE_BYTES: u64 = 8 << 20;
/// The last part, kept for reopening the database if a write failed in spite of the reserve.
const LAST_RESERVE_BYTES: u64 = 1 << 20;
/// The reserve is released in pieces, so that other processes on the same disk cannot take all of it at once.
const RESERVE_PIECE_BYTES: u64 = 512 << 10;
/// Space that must stay free in addition to the planned write.
pub const FREE_MARGIN_BYTES: u64 = 4 << 20;

/// Returns the number of bytes that can still be written to the file system of a directory.
pub fn available(dir: &Path) -> io::Result<u64> {
    let stat = statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Returns an error unless a file of `needed` bytes fits into the file system of a directory.
pub fn require(dir: &Path, needed: u64) -> Result<(), StorageFault> {
    let available = available(dir)?;
    if available < needed {
        Err(StorageFault::NoRoom { dir: dir.to_owned(), needed, available })
    } else {
        Ok(())
    }
}

/// The purpose for which the reserve is used, which determines how far it may be used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveUse {
    Writing,
    Opening,
}

#[derive(Debug)]
pub struct DiskReserve {
    path: PathBuf,
    held: Mutex<ReserveFile>,
}

#[derive(Debug, Default)]
struct ReserveFile {
    file: Option<File>,
    bytes: u64,
}

impl DiskReserve {
    /// Opens the existing reserve of a data directory; `hold` restores its full size.
    pub fn open(dir: &Path) -> DiskReserve {
        let path = dir.join(RESERVE_FILE_NAME);
        let mut held = ReserveFile::default();
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) {
            held.bytes = file.metadata().map_or(0, |metadata| metadata.len());
            held.file = Some(file);
        }
        DiskReserve { path, held: Mutex::new(held) }
    }

    /// Returns whether the reserve is complete; restores it if the disk has enough space.
    pub fn hold(&self) -> bool {
        let mut held = self.held();
        if held.bytes >= RESERVE_BYTES {
            return true;
        }
        match self.fill(&mut held) {
            Ok(whole) => whole,
            Err(error) => {
                tracing::debug!("cannot allocate the reserve {}: {error}", self.path.display());
                false
            }
        }
    }

    fn fill(&self, held: &mut ReserveFile) -> io::Result<bool> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        if available(dir)? < RESERVE_BYTES - held.bytes + FREE_MARGIN_BYTES {
            return Ok(false);
        }
        let file = match &held.file {
            Some(file) => file,
            None => held.file.insert(
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(&self.path)?,
            ),
        };
        if fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES).is_err() {
            // Not every file system can allocate blocks without writing them.
            let zeroes = vec![0; RESERVE_PIECE_BYTES as usize];
            for offset in (0..RESERVE_BYTES).step_by(RESERVE_PIECE_BYTES as usize) {
                file.write_all_at(&zeroes, offset)?;
            }
        }
        held.bytes = RESERVE_BYTES;
        Ok(true)
    }

    /// Releases a piece to the file system. Returns false if nothing is left for this use.
    pub fn release(&self, what_for: ReserveUse) -> bool {
        let floor = match what_for {
            ReserveUse::Writing => LAST_RESERVE_BYTES,
            ReserveUse::Opening => 0,
        };
        let mut held = self.held();
        if held.bytes <= floor {
            return false;
        }
        let left = held.bytes.saturating_sub(RESERVE_PIECE_BYTES).max(floor);
        match held.file.as_ref().map(|file| file.set_len(left)) {
            Some(Ok(())) => {
                held.bytes = left;
                true
            }
            _ => false,
        }
    }

    fn held(&self) -> MutexGuard<'_, ReserveFile> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether there is enough space for a group of writes, in addition to a complete reserve.
pub fn suffices(available: u64, bytes: u64) -> bool {
    available >= compute_needed_space(bytes).saturating_add(FREE_MARGIN_BYTES)
}

/// Returns the space that writes of this size need: pages are copied before they are changed.
fn compute_needed_space(bytes: u64) -> u64 {
    bytes.saturating_mul(3)
}

/// Skips the check of available space before a commit while there is plenty of it.
#[derive(Debug, Default)]
pub struct SpaceCheckCache {
    looked: Option<Instant>,
    /// Number of bytes that may be written before the next check.
    left: u64,
}

impl SpaceCheckCache {
    /// Minimum space that counts as plenty: more than other processes on the same disk can write between two checks.
    const PLENTY_BYTES: u64 = 1 << 30;
    const CHECK_INTERVAL: Duration = Duration::from_millis(100);

    /// Records the result of a successful check.
    pub fn found(&mut self, room: u64, now: Instant) {
        self.looked = (room >= Self::PLENTY_BYTES).then_some(now);
        self.left = room / 64;
    }

    /// Returns whether a group of writes needs no check.
    pub fn covers(&mut self, bytes: u64, now: Instant) -> bool {
        let is_fresh = self.looked.is_some_and(|looked| now.duration_since(looked) < Self::CHECK_INTERVAL);
        match self.left.checked_sub(compute_needed_space(bytes)) {
            Some(left) if is_fresh => {
                self.left = left;
                true
            }
            _ => false,
        }
    }
}

/// Returns whether an operation failed because the disk is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_of_space_is_checked_again_in_time() {
        let mut plenty = SpaceCheckCache::default();
        let now = Instant::now();
        assert!(!plenty.covers(0, now), "nobody has looked yet");
        plenty.found(SpaceCheckCache::PLENTY_BYTES - 1, now);
        assert!(!plenty.covers(1, now), "there is not that much");
        plenty.found(SpaceCheckCache::PLENTY_BYTES, now);
        let half = SpaceCheckCache::PLENTY_BYTES / 64 / 3 / 2;
        assert!(plenty.covers(half, now) && plenty.covers(half, now));
        assert!(!plenty.covers(half, now), "enough was written");
        plenty.found(SpaceCheckCache::PLENTY_BYTES, now);
        assert!(plenty.covers(1, now + SpaceCheckCache::CHECK_INTERVAL / 2));
        assert!(!plenty.covers(1, now + SpaceCheckCache::CHECK_INTERVAL));
        plenty.found(0, now);
        assert!(!plenty.covers(0, now));
    }
}
