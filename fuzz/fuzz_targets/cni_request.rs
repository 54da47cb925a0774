//! Any bytes are a request of a CNI plugin or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tortie_node::is_cni_request(bytes);
});
