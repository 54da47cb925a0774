//! Decodes any bytes as a message of the policy-sync server: the client must not panic, and encoding a decoded object
//! again must return the same message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tortie_plan::PlanUpdate;
use tortie_policysync::proto::ToDataplane;
use tortie_policysync::proto::to_dataplane::Payload;
use tortie_policysync::{SyncEvent, decode_message, encode_endpoint, encode_policy, encode_profile};

fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = ToDataplane::decode(bytes) else { return };
    let Ok(decoded) = decode_message(message) else { return };
    for problem in &decoded.problems {
        assert!(!problem.to_string().is_empty());
    }
    let SyncEvent::Updates(updates) = decoded.event else { return };
    for update in updates {
        let Some(payload) = encode(&update) else { continue };
        let message = ToDataplane { sequence_number: 1, payload: Some(payload.clone()) };
        let again = decode_message(message).expect("an encoded object has a name");
        assert!(again.problems.is_empty(), "{:?}", again.problems);
        let SyncEvent::Updates(again) = again.event else { panic!("an object became something else") };
        let encoded: Vec<Payload> = again.iter().filter_map(encode).collect();
        assert_eq!(encoded, [payload]);
    }
});

fn encode(update: &PlanUpdate) -> Option<Payload> {
    match update {
        PlanUpdate::Policy(id, policy) => Some(encode_policy(id, policy.as_deref())),
        PlanUpdate::Profile(name, profile) => Some(encode_profile(name, profile.as_deref())),
        PlanUpdate::WorkloadPolicy(id, endpoint) => Some(encode_endpoint(id, endpoint.as_ref(), None)),
        _ => None,
    }
}
