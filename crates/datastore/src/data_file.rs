//! The database file. Until it has been checked, nothing is written to it.
//!
//! Opening a redb database marks it as in use and may repair it, both before it is known whether the file is sound. A
//! rejected file must stay unchanged, so writes of redb during the check are held in memory and reach the disk only
//! after the check has passed.

use super::disk_space::{self, DiskReserve, ReserveUse};
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: u64 = 4096;

#[derive(Clone, Debug)]
pub struct DataFile {
    inner: Arc<DataFileInner>,
}

#[derive(Debug)]
struct DataFileInner {
    file: File,
    trusted: AtomicBool,
    held: Mutex<HeldPages>,
    /// Disk space that is released when a write finds none.
    reserve: Option<Arc<DiskReserve>>,
}

/// Held writes, in whole pages.
#[derive(Debug, Default)]
struct HeldPages {
    len: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl DataFile {
    /// Wraps a file that has not been checked; its first `len` bytes are the database.
    pub fn on_probation(file: File, len: u64, reserve: Option<Arc<DiskReserve>>) -> DataFile {
        let held = Mutex::new(HeldPages { len, pages: BTreeMap::new() });
        DataFile { inner: Arc::new(DataFileInner { file, trusted: AtomicBool::new(false), held, reserve }) }
    }

    /// Wraps a file that we have just created.
    pub fn trusted(file: File, reserve: Option<Arc<DiskReserve>>) -> DataFile {
        let held = Mutex::new(HeldPages::default());
        DataFile { inner: Arc::new(DataFileInner { file, trusted: AtomicBool::new(true), held, reserve }) }
    }

    /// Writes the held pages after the check has passed; from now on writes go to the disk.
    pub fn trust(&self) -> io::Result<()> {
        let mut held = self.held();
        let DataFileInner { file, .. } = &*self.inner;
        self.with_reserve(ReserveUse::Opening, || file.set_len(held.len))?;
        for (number, page) in std::mem::take(&mut held.pages) {
            let offset = number * PAGE_BYTES;
            let len = PAGE_BYTES.min(held.len.saturating_sub(offset)) as usize;
            let bytes = page.get(..len).unwrap_or(&page);
            self.with_reserve(ReserveUse::Opening, || write(file, bytes, offset))?;
        }
        sync(file)?;
        self.inner.trusted.store(true, Ordering::Release);
        Ok(())
    }

    pub fn file(&self) -> &File {
        &self.inner.file
    }

    /// Retries an operation that finds no space as long as the reserve has some.
    fn with_reserve(
        &self,
        what_for: ReserveUse,
        mut write: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            match (write(), &self.inner.reserve) {
                (Err(error), Some(reserve)) if disk_space::is_full(&error) && reserve.release(what_for) => {}
                (outcome, _) => return outcome,
            }
        }
    }

    fn is_trusted(&self) -> bool {
        self.inner.trusted.load(Ordering::Acquire)
    }

    fn held(&self) -> MutexGuard<'_, HeldPages> {
        self.inner.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldPages {
    /// Calls `each` with every page that `offset..offset + len` touches: its number, the range within the page, and
    /// the range within the request.
    fn pieces(
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let position = offset + done as u64;
            let start = (position % PAGE_BYTES) as usize;
            let take = (PAGE_BYTES as usize - start).min(len - done);
            each(position / PAGE_BYTES, start..start + take, done..done + take)?;
            done += take;
        }
        Ok(())
    }
}

/// Reads from the file into `out`; bytes beyond the end of the file read as zero.
fn read_padded(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match file.read_at(out, offset)? {
            0 => {
                out.fill(0);
                return Ok(());
            }
            n => {
                offset += n as u64;
                out = &mut out[n..];
            }
        }
    }
    Ok(())
}

fn write(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(test)]
    crate::disk_fault_tests::before_write(file, data, offset)?;
    file.write_all_at(data, offset)
}

fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    crate::disk_fault_tests::before_sync()?;
    file.sync_data()
}

impl StorageBackend for DataFile {
    fn len(&self) -> io::Result<u64> {
        if self.is_trusted() { Ok(self.inner.file.metadata()?.len()) } else { Ok(self.held().len) }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.is_trusted() {
            return self.inner.file.read_exact_at(out, offset);
        }
        let held = self.held();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > held.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = out.len();
        HeldPages::pieces(offset, len, |number, page, part| {
            let out = &mut out[part];
            match held.pages.get(&number) {
                Some(bytes) => out.copy_from_slice(&bytes[page]),
                None => read_padded(&self.inner.file, number * PAGE_BYTES + page.start as u64, out)?,
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.is_trusted() {
            return self.with_reserve(ReserveUse::Writing, || self.inner.file.set_len(len));
        }
        let mut held = self.held();
        held.len = len;
        held.pages.retain(|number, _| number * PAGE_BYTES < len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // Never retried: after a failed sync the kernel may have dropped the pages that it could not write.
        if self.is_trusted() { sync(&self.inner.file) } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_trusted() {
            return self.with_reserve(ReserveUse::Writing, || write(&self.inner.file, data, offset));
        }
        let mut held = self.held();
        HeldPages::pieces(offset, data.len(), |number, page, part| {
            let bytes = match held.pages.entry(number) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let mut bytes = vec![0; PAGE_BYTES as usize];
                    read_padded(&self.inner.file, number * PAGE_BYTES, &mut bytes)?;
                    entry.insert(bytes)
                }
            };
            bytes[page].copy_from_slice(&data[part]);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_disk_before_trust() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 5000], 0).unwrap();
        let data = DataFile::on_probation(file.try_clone().unwrap(), 5000, None);
        data.set_len(12_000).unwrap();
        data.write(4090, &[9; 100]).unwrap();
        data.write(11_990, &[8; 10]).unwrap();

        let mut seen = [0; 12];
        data.read(4085, &mut seen).unwrap();
        assert_eq!(seen, [7, 7, 7, 7, 7, 9, 9, 9, 9, 9, 9, 9]);
        data.read(11_988, &mut seen).unwrap();
        assert_eq!(seen, [0, 0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]);
        assert!(data.read(11_995, &mut seen).is_err());
        assert_eq!(file.metadata().unwrap().len(), 5000);

        data.trust().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 12_000);
        data.read(4085, &mut seen).unwrap();
        assert_eq!(seen, [7, 7, 7, 7, 7, 9, 9, 9, 9, 9, 9, 9]);
        data.read(11_988, &mut seen).unwrap();
        assert_eq!(seen, [0, 0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]);
    }
}
