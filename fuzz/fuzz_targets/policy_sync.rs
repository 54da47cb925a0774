//! Decodes any bytes as messages of a node and applies them to a replica. A request must be decided afterwards, whatever
//! the messages contain.
//!
//! The input is a sequence of messages: two bytes for the length, then the protobuf message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::sync::Arc;
use tortie_l7::{
    AccessLog, AccessLogLevel, CheckSettings, L7Metrics, PolicyChecker, PolicyState, Replica, TestRequest,
    UnsyncedVerdict, prepare_changes,
};
use tortie_plan::PolicyDirection;
use tortie_policysync::proto::ToDataplane;
use tortie_policysync::{SyncEvent, decode_message};

const MAX_POLICY_BYTES: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let mut replica = Replica::new(MAX_POLICY_BYTES);
    for message in messages(bytes) {
        let Ok(Ok(decoded)) = ToDataplane::decode(message).map(decode_message) else { continue };
        let SyncEvent::Updates(updates) = decoded.event else { continue };
        for change in prepare_changes(updates) {
            if replica.apply(change).is_err() {
                return;
            }
        }
    }
    assert!(replica.bytes() <= MAX_POLICY_BYTES);
    let state = Arc::new(PolicyState::new(None));
    state.activate(replica);
    let settings = CheckSettings {
        direction: PolicyDirection::Ingress,
        not_synced: UnsyncedVerdict::Deny,
        http_rules_on_connections: false,
        denial_header: String::new(),
    };
    let log = AccessLog::new(AccessLogLevel::Off);
    let checker = PolicyChecker::new(state, settings, Arc::new(L7Metrics::new()), log);
    let request = TestRequest {
        principal: "spiffe://cluster.local/ns/shop/sa/web".to_owned(),
        source: ([10, 0, 0, 1], 40_000).into(),
        destination: ([10, 0, 0, 2], 80).into(),
        http: Some(("GET".to_owned(), "/api".to_owned())),
    };
    let code = checker.check(&request.encode()).status.unwrap_or_default().code;
    assert!(matches!(code, 0 | 7 | 13), "{code}");
});

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let ([low, high], rest) = bytes.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, rest) = rest.split_at(length);
        bytes = rest;
        Some(message)
    })
}
