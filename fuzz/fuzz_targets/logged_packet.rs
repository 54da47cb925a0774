//! Any packet has a flow or none, however long or short its headers are.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| {
    if let Some(flow) = tortie_dataplane::describe_packet(packet) {
        assert!(flow.contains(" -> "));
    }
});
