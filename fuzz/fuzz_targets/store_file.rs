//! Opens a database file with arbitrary modifications: it must be rejected, or opened with everything that can be read
//! from it.
//!
//! The input is a list of modifications: three bytes for the offset, one for the value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;
use tortie_datastore::core::{StoreCore, WriteRequest};
use tortie_datastore::limits::{MAX_RESPONSE_BYTES, ResponseAllowance};
use tortie_etcd_proto::etcdserverpb::{PutRequest, RangeRequest};

const FILE: &str = "store.redb";
const KEYS: usize = 50;

fn dir() -> PathBuf {
    let dir = PathBuf::from(format!("/dev/shm/tortie-fuzz-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).expect("a directory in memory");
    dir
}

/// Returns the file of a store that was not closed, as after a crash.
fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let dir = dir();
        let mut core = StoreCore::open(&dir, u64::MAX).expect("a new store");
        for number in 0..KEYS {
            let put = PutRequest {
                key: format!("/{number}").into(),
                value: vec![7; 100].into(),
                ..Default::default()
            };
            core.apply(&[WriteRequest::Put(put)]).expect("a write");
        }
        std::fs::read(dir.join(FILE)).expect("its file")
    })
}

// Silences the panics of redb on invalid numbers, which the store catches. Panics that reach the fuzzer are still
// reported.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |changes: &[u8]| {
    let mut image = image().to_vec();
    for change in changes.chunks_exact(4) {
        let at = u32::from_be_bytes([0, change[0], change[1], change[2]]) as usize;
        if let Some(byte) = image.get_mut(at) {
            *byte = change[3];
        }
    }
    let dir = dir();
    std::fs::write(dir.join(FILE), image).expect("a copy");
    if let Ok(core) = StoreCore::open(&dir, u64::MAX) {
        let everything = RangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() };
        let snapshot = core.latest().get();
        if let Ok(answer) = snapshot.range(&everything, &mut ResponseAllowance::new(MAX_RESPONSE_BYTES)) {
            assert!(answer.kvs.len() <= KEYS);
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
});
