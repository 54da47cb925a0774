//! Extracts the common name from any bytes, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(name) = tortie_datastore::common_name(bytes) {
        assert!(name.len() <= bytes.len());
    }
});
