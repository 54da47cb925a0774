//! Decodes any bytes as a recording of a node and replays it, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = tortie_node::replay_from(bytes, &mut std::io::sink());
});
