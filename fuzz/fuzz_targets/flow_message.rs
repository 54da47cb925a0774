//! Parses the kernel's messages about flows from arbitrary attributes, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|attributes: &[u8]| {
    if let Some(message) = tortie_dataplane::describe_flow_message(attributes) {
        assert!(message.contains("connection"));
    }
});
