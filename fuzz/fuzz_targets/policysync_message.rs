//! Decodes any bytes as a message of the policy-sync server: the client must not panic, and decoding the encoding of a
//! decoded object must return the same object.
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
        if let Some(payload) = encode(&update) {
            let again = decode_message(ToDataplane { sequence_number: 1, payload: Some(payload) });
            let again = again.expect("an encoded object has a name");
            assert!(again.problems.is_empty(), "{:?}", again.problems);
            assert_eq!(again.event, SyncEvent::Updates(vec![normalised(update)]));
        }
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

/// Encoding orders the addresses of an endpoint by family.
fn normalised(update: PlanUpdate) -> PlanUpdate {
    match update {
        PlanUpdate::WorkloadPolicy(id, Some(mut endpoint)) => {
            endpoint.addresses.sort_by_key(|address| address.is_ipv6());
            PlanUpdate::WorkloadPolicy(id, Some(endpoint))
        }
        other => other,
    }
}
