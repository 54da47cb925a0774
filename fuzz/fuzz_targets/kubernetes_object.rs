//! Decodes any text from an API server as an object or a list of the kinds that Tortie reads, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    tortie_store::backend::read_objects(text);
});
