//! Any text is an answer of BIRD or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    tortie_bgp::bird::read_reply(text);
});
