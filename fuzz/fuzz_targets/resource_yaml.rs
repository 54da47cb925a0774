//! Decodes any bytes as resources. Accepted objects must not change when they are printed and parsed again, as YAML and
//! as JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tortie_model::{Resource, codec};

fuzz_target!(|bytes: &[u8]| {
    let Ok(objects) = codec::documents(bytes) else { return };
    for value in objects {
        round_trip(&value);
        if let Ok(resource) = Resource::from_user(value.clone()) {
            applied(resource);
        }
        if let Ok(kind) = Resource::from_user(value.clone()).map(|resource| resource.kind()) {
            let stored = Resource::from_store(kind, value).expect("what a user may write can be read back");
            applied(stored);
        }
    }
});

/// Processes a resource as `apply` does: defaults, validation, then the store.
fn applied(mut resource: Resource) {
    resource.set_defaults();
    let valid = resource.validate();
    let once = resource.clone();
    resource.set_defaults();
    assert_eq!(resource, once, "defaults are filled in once");

    let value = resource.to_value();
    round_trip(&value);
    let again = Resource::from_user(value.clone()).expect("what we print is what a user may write");
    assert_eq!(again.to_value(), value);
    assert_eq!(again.validate(), valid);
    let stored = Resource::from_store(resource.kind(), value.clone()).expect("what we print can be stored");
    assert_eq!(stored.to_value(), value);
}

fn round_trip(value: &Value) {
    let yaml = codec::to_yaml(value);
    assert_eq!(codec::documents(yaml.as_bytes()).as_deref(), Ok([value.clone()].as_slice()), "{yaml}");
    let json = codec::to_json(value);
    assert_eq!(codec::documents(json.as_bytes()).as_deref(), Ok([value.clone()].as_slice()), "{json}");
}
