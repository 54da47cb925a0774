//! Decodes any bytes as a CNI result. A result must not change when it is printed and parsed again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for version in ["0.2.0", "0.4.0", "1.1.0"] {
        let Some(printed) = tortie_node::convert_cni_result(bytes, version) else { return };
        let again = tortie_node::convert_cni_result(printed.as_bytes(), version);
        assert_eq!(again.as_deref(), Some(&*printed));
    }
});
