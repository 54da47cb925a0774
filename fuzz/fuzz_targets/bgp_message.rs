//! Decodes any bytes as a BGP message, and parses an UPDATE under every combination of negotiated capabilities, without
//! a panic.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rustbgpd_wire::validate::validate_update_attributes;
use rustbgpd_wire::{Afi, Safi};
use rustbgpd_wire::{Message, decode_message, encode_message_with_limit};

const FAMILIES: [(Afi, Safi); 2] = [(Afi::Ipv4, Safi::Unicast), (Afi::Ipv6, Safi::Unicast)];

fuzz_target!(|bytes: &[u8]| {
    for limit in [4096, u16::MAX] {
        let mut stream = Bytes::copy_from_slice(bytes);
        let Ok(message) = decode_message(&mut stream, limit) else { continue };
        if let Message::Update(update) = &message {
            for (four_octet_as, internal, several) in
                [(true, true, false), (true, false, true), (false, true, true), (false, false, false)]
            {
                let families = if several { &FAMILIES[..] } else { &[] };
                if let Ok(parsed) = update.parse_revised(four_octet_as, internal, several, families) {
                    let _ = validate_update_attributes(&parsed.update.attributes, true, true, !internal);
                }
            }
        }
        // A decoded message can be encoded again and decodes to the same value.
        let Ok(again) = encode_message_with_limit(&message, limit) else { continue };
        let mut again = again.freeze();
        if let Ok(second) = decode_message(&mut again, limit) {
            assert_eq!(message, second);
        }
    }
});
