//! Parses any text as a reply of BIRD, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    tortie_bgp::bird::read_reply(text);
});
