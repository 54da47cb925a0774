//! Any text from an API server is an object or a list of a kind that we read, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    tortie_store::backend::read_objects(text);
});
