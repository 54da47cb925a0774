//! Decodes any bytes as an attachment record, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tortie_node::is_attachment(bytes);
});
