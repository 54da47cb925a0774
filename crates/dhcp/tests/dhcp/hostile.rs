//! Arbitrary and damaged frames.

use crate::samples::{
    ALL_SERVERS, CLIENT_LINK_LOCAL, CLIENT_MAC, Client4, association, frame6, message6, port, solicitation,
};
use proptest::prelude::*;
use tortie_dhcp::codec::frame::{MacAddress, parse_frame};
use tortie_dhcp::respond::respond;

/// Maximum length of a reply without routes.
const MAX_REPLY_BYTES: usize = 1500;

fn valid_frames() -> Vec<Vec<u8>> {
    vec![
        Client4::new(1).with(55, &[1, 3, 6, 121]).with(61, b"id").with(57, &[5, 0]).with(52, &[3]).frame(),
        Client4::new(3).with(50, &[10, 65, 0, 2]).frame(),
        frame6(CLIENT_LINK_LOCAL, ALL_SERVERS, &message6(1, &[association(1, &["fd00::1"])])),
        frame6(CLIENT_LINK_LOCAL, ALL_SERVERS, &message6(6, &[association(1, &[]), association(2, &[])])),
        solicitation(CLIENT_LINK_LOCAL, 255, &[133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]),
    ]
}

proptest! {
    #[test]
    fn damaged_frames_never_reach_others(
        number in 0_usize..5,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut frame = valid_frames().swap_remove(number);
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if cuts {
            frame.truncate(cut.index(frame.len()));
        }
        let mut reply = Vec::new();
        let port = port();
        if let Ok(processed) = respond(&frame, &port, &mut reply) {
            prop_assert_eq!(&frame[6..12], CLIENT_MAC);
            prop_assert_eq!(processed.reply.is_some(), !reply.is_empty());
            prop_assert!(reply.len() <= MAX_REPLY_BYTES);
            if processed.reply.is_some() {
                prop_assert_eq!(&reply[6..12], port.link.mac.0);
                let to_client = reply[..6] == CLIENT_MAC || reply[0] & 1 == 1;
                prop_assert!(to_client);
            }
        }
    }

    #[test]
    fn arbitrary_frames_are_parsed_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse_frame(&bytes);
        for head in [&[8, 0, 0x45][..], &[0x86, 0xdd, 0x60]] {
            let frame = [&[0xff; 6][..], &CLIENT_MAC, head, &bytes].concat();
            let _ = respond(&frame, &port(), &mut Vec::new());
        }
    }

    #[test]
    fn mac_addresses_read_back(bytes in any::<[u8; 6]>()) {
        prop_assert_eq!(MacAddress(bytes).to_string().parse(), Ok(MacAddress(bytes)));
    }
}

#[test]
fn every_prefix_of_a_frame_is_rejected() {
    let port = port();
    for frame in valid_frames() {
        assert!(respond(&frame, &port, &mut Vec::new()).is_ok());
        for length in 0..frame.len() {
            assert!(
                respond(&frame[..length], &port, &mut Vec::new()).is_err(),
                "{length} of {}",
                frame.len()
            );
        }
    }
}

#[test]
fn nested_options_do_not_recurse() {
    let mut nested = Vec::new();
    for _ in 0..90 {
        let length = u16::try_from(nested.len() + 12).unwrap().to_be_bytes();
        nested = [&[0, 3][..], &length, &[0; 12], &nested].concat();
    }
    let frame = frame6(CLIENT_LINK_LOCAL, ALL_SERVERS, &message6(1, &[nested]));
    let mut reply = Vec::new();
    respond(&frame, &port(), &mut reply).unwrap();
    let many: Vec<Vec<u8>> = (0..80).map(|id| association(id, &[])).collect();
    respond(&frame6(CLIENT_LINK_LOCAL, ALL_SERVERS, &message6(1, &many)), &port(), &mut reply).unwrap();
    assert!(reply.len() < 400, "only a few associations are answered: {} bytes", reply.len());
}
