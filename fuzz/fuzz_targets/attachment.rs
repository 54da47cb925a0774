//! Any bytes are the record of an attachment, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tortie_node::is_attachment(bytes);
});
