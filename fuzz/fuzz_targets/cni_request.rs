//! Decodes any bytes as a CNI plugin request, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tortie_node::is_cni_request(bytes);
});
