//! Any bytes have a common name or none.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(name) = tortie_datastore::common_name(bytes) {
        assert!(name.len() <= bytes.len());
    }
});
