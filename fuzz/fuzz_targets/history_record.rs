//! Decodes any bytes as a version in the store's history. A version must not change when it is encoded and decoded
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tortie_datastore::history_record::{CommitRevision, decode_history, encode_history};

fuzz_target!(|bytes: &[u8]| {
    let at = CommitRevision { main: 7, sub: 1 };
    let Ok(entry) = decode_history(at, bytes) else { return };
    let mut written = Vec::new();
    encode_history(&entry, &mut written);
    assert_eq!(decode_history(at, &written).ok(), Some(entry));
});
