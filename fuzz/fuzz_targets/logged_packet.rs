//! Extracts the flow of any packet, whatever the lengths in its headers, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| {
    if let Some(flow) = tortie_dataplane::describe_packet(packet) {
        assert!(flow.contains(" -> "));
    }
});
