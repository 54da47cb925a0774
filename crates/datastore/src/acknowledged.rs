//! Records the newest acknowledged commit in a file beside the database.
//!
//! After a crash redb falls back to the commit before the last one if the last one is incomplete. It cannot
//! distinguish a commit that was never finished from one that was finished, acknowledged and damaged later. This
//! record can: it is written after a commit is durable and before any client is answered. A database that is older
//! than its record has lost writes.
//!
//! The record is not synced with every commit: it survives `kill -9` immediately, and a power cut after at most one
//! second.

use super::directory::StoreIdentity;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the record file inside a data directory.
pub const ACKNOWLEDGED_FILE_NAME: &str = "store.acknowledged";
const MAGIC: &[u8; 8] = b"tortieak";
/// Two slots written alternately, one sector each, so that one of them is intact at any moment.
const SLOT_BYTES: u64 = 512;
const BODY_BYTES: usize = 32;
const RECORD_BYTES: usize = BODY_BYTES + 32;

/// A durable commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitMark {
    pub cluster: u64,
    /// Number of the commit in this store.
    pub sequence: u64,
    pub revision: i64,
}

#[derive(Debug)]
pub struct AcknowledgedFile {
    file: File,
    unsynced: AtomicBool,
    failed: AtomicBool,
}

impl AcknowledgedFile {
    /// Opens the record of a data directory, or creates one with its blocks allocated, so that it never needs disk
    /// space later.
    pub fn open(dir: &Path) -> io::Result<AcknowledgedFile> {
        let path = dir.join(ACKNOWLEDGED_FILE_NAME);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if file.metadata()?.len() < 2 * SLOT_BYTES {
            file.write_all_at(&[0; 2 * SLOT_BYTES as usize], 0)?;
        }
        Ok(AcknowledgedFile { file, unsynced: AtomicBool::new(false), failed: AtomicBool::new(false) })
    }

    /// Returns the newest commit that a data directory is known to have acknowledged.
    pub fn read(dir: &Path) -> io::Result<Option<CommitMark>> {
        let file = match File::open(dir.join(ACKNOWLEDGED_FILE_NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut newest: Option<CommitMark> = None;
        for slot in 0..2 {
            let mut record = [0; RECORD_BYTES];
            if file.read_exact_at(&mut record, slot * SLOT_BYTES).is_err() {
                continue;
            }
            if let Some(mark) = decode(&record)
                && newest.is_none_or(|newest| newest.sequence < mark.sequence)
            {
                newest = Some(mark);
            }
        }
        Ok(newest)
    }

    /// Records a durable commit. A failure does not stop the store: it only makes the check at the next start less
    /// strict.
    pub fn record(&self, mark: CommitMark) {
        match self.file.write_all_at(&encode(mark), (mark.sequence % 2) * SLOT_BYTES) {
            Ok(()) => self.unsynced.store(true, Ordering::Release),
            Err(error) => {
                if !self.failed.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "cannot write {ACKNOWLEDGED_FILE_NAME}: {error}; a damaged commit could go unnoticed at the next start"
                    );
                }
            }
        }
    }

    /// Records a commit as the only one, for a store that replaces another.
    pub fn restart(&self, mark: CommitMark) {
        if let Err(error) = self.file.write_all_at(&[0; 2 * SLOT_BYTES as usize], 0) {
            tracing::warn!("cannot clear {ACKNOWLEDGED_FILE_NAME}: {error}");
        }
        self.record(mark);
    }

    /// Makes the newest record survive a power cut.
    pub fn sync(&self) -> io::Result<()> {
        if self.unsynced.swap(false, Ordering::AcqRel) { self.file.sync_data() } else { Ok(()) }
    }
}

impl CommitMark {
    pub fn new(identity: StoreIdentity, sequence: u64, revision: i64) -> CommitMark {
        CommitMark { cluster: identity.cluster, sequence, revision }
    }
}

fn encode(mark: CommitMark) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let words =
        [*MAGIC, mark.cluster.to_le_bytes(), mark.sequence.to_le_bytes(), mark.revision.to_le_bytes()];
    let (body, checksum) = record.split_at_mut(BODY_BYTES);
    body.copy_from_slice(words.as_flattened());
    checksum.copy_from_slice(&Sha256::digest(&*body));
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<CommitMark> {
    let (body, checksum) = record.split_at(BODY_BYTES);
    let ([magic, cluster, sequence, revision], []) = body.as_chunks::<8>() else { return None };
    let whole = magic == MAGIC && Sha256::digest(body).as_slice() == checksum;
    whole.then(|| CommitMark {
        cluster: u64::from_le_bytes(*cluster),
        sequence: u64::from_le_bytes(*sequence),
        revision: i64::from_le_bytes(*revision),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(sequence: u64) -> CommitMark {
        CommitMark { cluster: 7, sequence, revision: sequence as i64 * 2 }
    }

    #[test]
    fn the_newest_intact_record_counts() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(AcknowledgedFile::read(dir.path()).unwrap(), None);
        let file = AcknowledgedFile::open(dir.path()).unwrap();
        assert_eq!(AcknowledgedFile::read(dir.path()).unwrap(), None);
        for sequence in 1..=4 {
            file.record(mark(sequence));
            assert_eq!(AcknowledgedFile::read(dir.path()).unwrap(), Some(mark(sequence)));
        }
        file.sync().unwrap();
        // If the newest slot is torn or damaged, the previous record is still there.
        file.file.write_all_at(&[0xff], 20).unwrap();
        assert_eq!(AcknowledgedFile::read(dir.path()).unwrap(), Some(mark(3)));
    }
}
