//! Decodes any key and any bytes as an entry. An entry must survive being written again, and an unreadable entry may be
//! salvaged only partially.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tortie_model::StoreValue;
use tortie_model::salvage::salvage;
use tortie_store::backend::etcd::keys;

fuzz_target!(|text: &str| {
    let Some((path, value)) = text.split_once('\n') else { return };
    let Some(key) = keys::parse(path) else { return };
    assert_eq!(keys::path(&key), path);
    match StoreValue::decode(&key, value.as_bytes()) {
        Ok(read) => {
            let again = StoreValue::decode(&key, &read.encode()).expect("what we write we can read");
            assert_eq!(again, read);
        }
        Err(_) => {
            if let Some(salvaged) = salvage(&key, value) {
                assert!(!salvaged.lost.is_empty(), "it was not readable as it is");
                StoreValue::decode(&key, &salvaged.value.encode()).expect("what is left can be read");
            }
        }
    }
});
