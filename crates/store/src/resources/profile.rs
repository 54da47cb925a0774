//! The built-in profile that allows all traffic. It exists without being stored.

use crate::StoreError;
use tortie_model::kinds::{Action, Profile, ProfileSpec, Rule};
use tortie_model::{Kind, ObjectMeta, Resource};

const DEFAULT_ALLOW_NAME: &str = "projectcalico-default-allow";
const SYNTHETIC_RESOURCE_VERSION: &str = "1";

pub fn is_synthetic(kind: Kind, name: &str) -> bool {
    kind == Kind::Profile && name == DEFAULT_ALLOW_NAME
}

pub fn synthetic() -> Resource {
    let allow = vec![Rule { action: Action::Allow, ..Default::default() }];
    let metadata = ObjectMeta {
        name: DEFAULT_ALLOW_NAME.to_owned(),
        resource_version: SYNTHETIC_RESOURCE_VERSION.to_owned(),
        ..Default::default()
    };
    let spec = ProfileSpec { ingress: allow.clone(), egress: allow, ..Default::default() };
    Profile::new(metadata, spec).into()
}

pub fn exists() -> StoreError {
    StoreError::AlreadyExists {
        id: Kind::Profile.identify("", DEFAULT_ALLOW_NAME),
        reason: "it is built in".into(),
        current: Some(Box::new(synthetic())),
    }
}

pub fn refused(operation: &'static str) -> StoreError {
    StoreError::NotSupported {
        operation,
        id: Kind::Profile.identify("", DEFAULT_ALLOW_NAME),
        reason: "it is built in".into(),
    }
}
