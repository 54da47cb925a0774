//! Any bytes are a recording of a node or an error, and what is one can be replayed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = tortie_node::replay_from(bytes, &mut std::io::sink());
});
