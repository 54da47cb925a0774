//! Room on the disk: how much there is, and a reserve that is kept for the moment when there is none.
//!
//! On a full disk a delete or a compaction still has to write a few pages before it frees any. The reserve is a file of
//! allocated blocks beside the database. When a write of the database finds no space, a piece of the reserve is given
//! back to the file system and the write is repeated; puts have been refused since long before that.

use super::fault::Fault;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The reserve inside a data directory.
pub const FILE_NAME: &str = "store.reserve";
/// What deletes and compaction may use while the disk is full.
const RESERVE_BYTES: u64 = 8 << 20;
/// The last part is kept for opening the database again after a write has failed all the same.
const LAST_BYTES: u64 = 1 << 20;
/// The reserve is given back in pieces, so that others on the same disk cannot take all of it at once.
const PIECE_BYTES: u64 = 512 << 10;
/// This much stays free besides what is about to be written.
pub const MARGIN_BYTES: u64 = 4 << 20;

/// Bytes that may still be written to the file system of a directory.
pub fn available(dir: &Path) -> io::Result<u64> {
    let stat = statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Refuses unless a file of `needed` bytes can be made in a directory.
pub fn check(dir: &Path, needed: u64) -> Result<(), Fault> {
    let available = available(dir)?;
    if available < needed { Err(Fault::NoRoom { dir: dir.to_owned(), needed, available }) } else { Ok(()) }
}

/// How far the reserve may be used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Writing,
    Opening,
}

#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    file: Option<File>,
    bytes: u64,
}

impl Reserve {
    /// Takes over the reserve that a data directory has already; `hold` makes it whole.
    pub fn open(dir: &Path) -> Reserve {
        let path = dir.join(FILE_NAME);
        let mut held = Held::default();
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) {
            held.bytes = file.metadata().map_or(0, |metadata| metadata.len());
            held.file = Some(file);
        }
        Reserve { path, held: Mutex::new(held) }
    }

    /// Whether all of the reserve is there; makes it whole if the disk has room for it.
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

    fn fill(&self, held: &mut Held) -> io::Result<bool> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        if available(dir)? < RESERVE_BYTES - held.bytes + MARGIN_BYTES {
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
            let zeroes = vec![0; PIECE_BYTES as usize];
            for offset in (0..RESERVE_BYTES).step_by(PIECE_BYTES as usize) {
                file.write_all_at(&zeroes, offset)?;
            }
        }
        held.bytes = RESERVE_BYTES;
        Ok(true)
    }

    /// Gives a piece back to the file system; false when there is nothing left for this use.
    pub fn release(&self, what_for: Use) -> bool {
        let floor = match what_for {
            Use::Writing => LAST_BYTES,
            Use::Opening => 0,
        };
        let mut held = self.held();
        if held.bytes <= floor {
            return false;
        }
        let left = held.bytes.saturating_sub(PIECE_BYTES).max(floor);
        match held.file.as_ref().map(|file| file.set_len(left)) {
            Some(Ok(())) => {
                held.bytes = left;
                true
            }
            _ => false,
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a group of writes of so many bytes may begin, besides a reserve that is whole.
pub fn suffices(available: u64, bytes: u64) -> bool {
    available >= pages(bytes).saturating_add(MARGIN_BYTES)
}

/// What writes of so many bytes take up: pages are copied before they are changed.
fn pages(bytes: u64) -> u64 {
    bytes.saturating_mul(3)
}

/// Where there is plenty of room, it is not looked at before every commit.
#[derive(Debug, Default)]
pub struct Plenty {
    looked: Option<Instant>,
    /// What may be written before the next look.
    left: u64,
}

impl Plenty {
    /// From here on there is plenty: more than others on the same disk can write between two looks.
    const FROM_BYTES: u64 = 1 << 30;
    const INTERVAL: Duration = Duration::from_millis(100);

    /// What a look found, which let writes go on.
    pub fn found(&mut self, room: u64, now: Instant) {
        self.looked = (room >= Self::FROM_BYTES).then_some(now);
        self.left = room / 64;
    }

    /// Whether a group of writes needs no look.
    pub fn covers(&mut self, bytes: u64, now: Instant) -> bool {
        let is_fresh = self.looked.is_some_and(|looked| now.duration_since(looked) < Self::INTERVAL);
        match self.left.checked_sub(pages(bytes)) {
            Some(left) if is_fresh => {
                self.left = left;
                true
            }
            _ => false,
        }
    }
}

/// Whether an operation failed because there is no room on the disk.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_of_room_is_looked_at_again_in_time() {
        let mut plenty = Plenty::default();
        let now = Instant::now();
        assert!(!plenty.covers(0, now), "nobody has looked yet");
        plenty.found(Plenty::FROM_BYTES - 1, now);
        assert!(!plenty.covers(1, now), "there is not that much");
        plenty.found(Plenty::FROM_BYTES, now);
        let half = Plenty::FROM_BYTES / 64 / 3 / 2;
        assert!(plenty.covers(half, now) && plenty.covers(half, now));
        assert!(!plenty.covers(half, now), "enough was written");
        plenty.found(Plenty::FROM_BYTES, now);
        assert!(plenty.covers(1, now + Plenty::INTERVAL / 2));
        assert!(!plenty.covers(1, now + Plenty::INTERVAL));
        plenty.found(0, now);
        assert!(!plenty.covers(0, now));
    }
}
