//! Decodes any bytes as frames of a hub and of a hub client: neither side may panic, accept messages out of order, or
//! exceed its limits.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tortie_hub::ledger::{ChangeLogLimits, HubLedger};
use tortie_hub::protocol::{
    ClientMessage, HubMessage, MAX_CLIENT_FRAME_BYTES, MAX_HUB_FRAME_BYTES, unframe,
};
use tortie_hub::replica::HubReplica;
use tortie_hub::session::{ClientSession, SessionOpening};
use tortie_model::{FeedEvent, KeyRange, Kind, StoreKey};
use tortie_sync::FeedMessage;

fuzz_target!(|bytes: &[u8]| {
    let mut replica = HubReplica::new("n", Vec::new());
    let _ = replica.hello();
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = unframe(&mut buffer, MAX_HUB_FRAME_BYTES) {
        let Ok(message) = HubMessage::decode(frame) else { break };
        if replica.receive(message).is_err() {
            break;
        }
    }
    let mut ledger = HubLedger::new(1, &[KeyRange::all(Kind::Tier)], ChangeLogLimits::default());
    let key = StoreKey::resource(Kind::Tier, "", "web");
    ledger.apply_feed([
        FeedMessage::Event(FeedEvent::Unreadable {
            key,
            revision: 17.into(),
            text: "[]".to_owned(),
            reason: "no object".to_owned(),
        }),
        FeedMessage::Event(FeedEvent::InSync),
    ]);
    let mut session = None;
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = unframe(&mut buffer, MAX_CLIENT_FRAME_BYTES) {
        match ClientMessage::decode(frame) {
            Ok(ClientMessage::Hello(hello)) => {
                if let SessionOpening::Served { session: opened, .. } =
                    ClientSession::open(&hello, &ledger, true)
                {
                    session = Some(opened);
                }
            }
            Ok(ClientMessage::Digests(digests)) => {
                if let (Some(session), Ok(sums)) = (&mut session, digests.sums()) {
                    let _ = session.compare(&sums, &ledger);
                }
            }
            Ok(ClientMessage::Pong(())) => {}
            Err(_) => break,
        }
        if let Some(session) = &mut session {
            let _ = session.next(&ledger);
        }
    }
});
