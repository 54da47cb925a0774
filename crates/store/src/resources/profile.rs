//! The built-in profile that allows all traffic. It exists without being stored.

use crate::StoreError;
use tortie_model::kinds::{Action, Profile, ProfileSpec, Rule};
use tortie_model::{Kind, ObjectMeta, Resource};

const NAME: &str = "projectcalico-default-allow";
const REVISION: &str = "1";

pub fn is_synthetic(kind: Kind, name: &str) -> bool {
    kind == Kind::Profile && name == NAME
}

pub fn synthetic() -> Resource {
    let allow = || vec![Rule { action: Action::Allow, ..Default::default() }];
    let metadata =
        ObjectMeta { name: NAME.to_owned(), resource_version: REVISION.to_owned(), ..Default::default() };
    let spec = ProfileSpec { ingress: allow(), egress: allow(), ..Default::default() };
    Profile::new(metadata, spec).into()
}

pub fn exists() -> StoreError {
    StoreError::AlreadyExists {
        id: Kind::Profile.identify("", NAME),
        reason: "it is built in".into(),
        current: Some(Box::new(synthetic())),
    }
}

pub fn refused(operation: &'static str) -> StoreError {
    StoreError::NotSupported {
        operation,
        id: Kind::Profile.identify("", NAME),
        reason: "it is built in".into(),
    }
}
