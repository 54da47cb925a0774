//! Disk faults for tests: no space, I/O errors, torn writes, and power cuts that drop unsynced data. They affect the
//! database files of the thread that injects them.

use crate::core::{StoreCore, WriteRequest};
use crate::limits::{MAX_RESPONSE_BYTES, ResponseAllowance};
use crate::rejection::RequestRejection;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tortie_etcd_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};

thread_local! {
    static FAULT_INJECTOR: RefCell<Option<FaultInjector>> = const { RefCell::new(None) };
}

/// How often each fault was injected.
#[derive(Clone, Copy, Debug, Default)]
struct FaultCounts {
    full: usize,
    error: usize,
    torn: usize,
    sync_error: usize,
    power_cut: usize,
}

struct FaultInjector {
    rng: StdRng,
    /// Faults per million operations.
    rate: u32,
    /// Whether the power has been cut: nothing reaches the disk any more.
    dead: bool,
    /// Undo records of the writes that have not been synced.
    unsynced: Vec<WriteUndo>,
    struck: FaultCounts,
}

struct WriteUndo {
    file: File,
    offset: u64,
    old: Vec<u8>,
}

impl FaultInjector {
    fn strikes(&mut self) -> bool {
        self.rng.random_ratio(self.rate, 1_000_000)
    }

    /// Keeps, reverts or tears each unsynced write at random.
    fn cut_power(&mut self) -> io::Result<()> {
        self.struck.power_cut += 1;
        self.dead = true;
        while let Some(WriteUndo { file, offset, old }) = self.unsynced.pop() {
            match self.rng.random_range(0..3) {
                0 => {}
                1 => file.write_all_at(&old, offset)?,
                _ => file.write_all_at(&old[..old.len() / 2], offset)?,
            }
        }
        Ok(())
    }
}

/// Called before a write to the database.
pub fn before_write(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    FAULT_INJECTOR.with_borrow_mut(|faults| {
        let Some(faults) = faults else { return Ok(()) };
        if faults.dead {
            return Err(io::Error::other("the power is gone"));
        }
        let mut old = vec![0; data.len()];
        let mut read = 0;
        while read < old.len() {
            match file.read_at(&mut old[read..], offset + read as u64)? {
                0 => break,
                n => read += n,
            }
        }
        faults.unsynced.push(WriteUndo { file: file.try_clone()?, offset, old });
        if !faults.strikes() {
            return Ok(());
        }
        match faults.rng.random_range(0..3) {
            0 => {
                faults.struck.full += 1;
                Err(io::ErrorKind::StorageFull.into())
            }
            1 => {
                faults.struck.error += 1;
                Err(io::Error::from_raw_os_error(5))
            }
            _ => {
                faults.struck.torn += 1;
                file.write_all_at(&data[..data.len() / 2], offset)?;
                Err(io::Error::from_raw_os_error(5))
            }
        }
    })
}

/// Called before a sync; an error replaces it.
pub fn before_sync() -> io::Result<()> {
    FAULT_INJECTOR.with_borrow_mut(|faults| {
        let Some(faults) = faults else { return Ok(()) };
        if faults.dead {
            return Err(io::Error::other("the power is gone"));
        }
        if faults.strikes() {
            faults.struck.sync_error += 1;
            return Err(io::Error::from_raw_os_error(5));
        }
        faults.unsynced.clear();
        Ok(())
    })
}

type KeyContents = BTreeMap<Bytes, Bytes>;

fn contents(core: &StoreCore) -> KeyContents {
    let all = RangeRequest {
        key: Bytes::from_static(&[0]),
        range_end: Bytes::from_static(&[0]),
        ..Default::default()
    };
    let answer = core.latest().get().range(&all, &mut ResponseAllowance::new(MAX_RESPONSE_BYTES)).unwrap();
    answer.kvs.into_iter().map(|kv| (kv.key, kv.value)).collect()
}

fn some_writes(rng: &mut StdRng) -> Vec<WriteRequest> {
    let mut writes = Vec::new();
    for _ in 0..rng.random_range(1..6) {
        let key = Bytes::from(format!("/{}", rng.random_range(0..40)));
        writes.push(match rng.random_range(0..10) {
            0..7 => {
                let value = vec![rng.random(); rng.random_range(0..9000)].into();
                WriteRequest::Put(PutRequest { key, value, ..Default::default() })
            }
            7..9 => WriteRequest::Delete(DeleteRangeRequest { key, ..Default::default() }),
            _ => WriteRequest::Alarm { no_space: false },
        });
    }
    writes
}

fn after(mut contents: KeyContents, writes: &[WriteRequest], answers: &[bool]) -> KeyContents {
    for (write, _) in writes.iter().zip(answers).filter(|(_, done)| **done) {
        match write {
            WriteRequest::Put(put) => drop(contents.insert(put.key.clone(), put.value.clone())),
            WriteRequest::Delete(delete) => drop(contents.remove(&delete.key)),
            _ => {}
        }
    }
    contents
}

/// Runs a store until the power is cut or the disk fails, and opens it again.
fn live(dir: &Path, seed: u64, struck: &mut FaultCounts) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut core = StoreCore::open(dir, u64::MAX).unwrap();
    let mut expected = contents(&core);
    let rate = [0, 500, 5_000, 50_000][rng.random_range(0..4)];
    let faults = FaultInjector {
        rng: StdRng::seed_from_u64(seed ^ 1),
        rate,
        dead: false,
        unsynced: Vec::new(),
        struck: FaultCounts::default(),
    };
    FAULT_INJECTOR.set(Some(faults));
    let mut in_doubt = Vec::new();
    for _ in 0..rng.random_range(1..80) {
        let writes = some_writes(&mut rng);
        let Ok(applied) = core.apply(&writes) else {
            // None of these writes was acknowledged; either all or none may be stored.
            in_doubt = writes;
            break;
        };
        let done: Vec<bool> = applied.answers.iter().map(Result::is_ok).collect();
        for refused in applied.answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(*refused, RequestRejection::NO_SPACE, "seed {seed}");
        }
        expected = after(expected, &writes, &done);
        assert!(contents(&core) == expected, "seed {seed}: what was acknowledged is not what is read");
    }
    FAULT_INJECTOR.with_borrow_mut(|faults| faults.as_mut().map(FaultInjector::cut_power).unwrap()).unwrap();
    drop(core);
    let faults = FAULT_INJECTOR.take().unwrap();
    let before = *struck;
    *struck = FaultCounts {
        full: before.full + faults.struck.full,
        error: before.error + faults.struck.error,
        torn: before.torn + faults.struck.torn,
        sync_error: before.sync_error + faults.struck.sync_error,
        power_cut: before.power_cut + faults.struck.power_cut,
    };
    let core = StoreCore::open(dir, u64::MAX).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let found = contents(&core);
    let everything = after(expected.clone(), &in_doubt, &vec![true; in_doubt.len()]);
    assert!(found == expected || found == everything, "seed {seed}: lost or invented after a fault");
}

#[test]
fn no_acknowledged_write_is_lost_to_disk_faults() {
    let lives = std::env::var("TORTIE_FAULT_LIVES").map_or(20, |text| text.parse().unwrap());
    let seed: u64 = match std::env::var("TORTIE_SEED") {
        Ok(text) if text == "random" => rand::random(),
        Ok(text) => text.parse().unwrap(),
        Err(_) => 1,
    };
    println!("TORTIE_SEED={seed}");
    let mut struck = FaultCounts::default();
    let mut dir = tempfile::tempdir().unwrap();
    for life in 0..lives {
        if life % 20 == 19 {
            dir = tempfile::tempdir().unwrap();
        }
        live(dir.path(), seed.wrapping_add(life), &mut struck);
    }
    println!("{lives} lives: {struck:?}");
    assert!(struck.power_cut > 0 && struck.error + struck.torn + struck.sync_error > 0);
}
