//! Conversion of namespaces and service accounts to profiles.

use super::core::CoreMetadataObject;
use super::uid;
use std::collections::BTreeMap;
use tortie_model::kinds::{Action, Profile, ProfileSpec, Rule};
use tortie_model::{Kind, StoreKey};

pub const NAMESPACE_PROFILE_PREFIX: &str = "kns.";
pub const SERVICE_ACCOUNT_PROFILE_PREFIX: &str = "ksa.";

/// Kubernetes object from which a profile is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileOrigin<'a> {
    Namespace(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
}

/// Returns the origin of a profile by its name. Namespace names contain no dots, so the first dot ends the namespace.
pub fn origin(profile: &str) -> Option<ProfileOrigin<'_>> {
    if let Some(namespace) = profile.strip_prefix(NAMESPACE_PROFILE_PREFIX) {
        return (!namespace.is_empty()).then_some(ProfileOrigin::Namespace(namespace));
    }
    let (namespace, name) = profile.strip_prefix(SERVICE_ACCOUNT_PROFILE_PREFIX)?.split_once('.')?;
    (!namespace.is_empty() && !name.is_empty()).then_some(ProfileOrigin::ServiceAccount { namespace, name })
}

/// Converts a namespace to a profile that allows all traffic: a namespace without policies is open.
pub fn from_namespace(namespace: &CoreMetadataObject) -> (StoreKey, Profile) {
    let allow = vec![Rule { action: Action::Allow, ..Default::default() }];
    let labels_to_apply = labels("pcns.", namespace);
    let spec = ProfileSpec { ingress: allow.clone(), egress: allow, labels_to_apply };
    profile(format!("{NAMESPACE_PROFILE_PREFIX}{}", namespace.metadata.name), namespace, spec)
}

/// Converts a service account to a profile that only adds labels.
pub fn from_service_account(account: &CoreMetadataObject) -> (StoreKey, Profile) {
    let name =
        format!("{SERVICE_ACCOUNT_PROFILE_PREFIX}{}.{}", account.metadata.namespace, account.metadata.name);
    let spec = ProfileSpec { labels_to_apply: labels("pcsa.", account), ..Default::default() };
    profile(name, account, spec)
}

fn labels(prefix: &str, object: &CoreMetadataObject) -> BTreeMap<String, String> {
    let own = object.metadata.labels.iter().map(|(key, value)| (format!("{prefix}{key}"), value.clone()));
    let name = (format!("{prefix}projectcalico.org/name"), object.metadata.name.clone());
    own.chain([name]).collect()
}

fn profile(name: String, object: &CoreMetadataObject, spec: ProfileSpec) -> (StoreKey, Profile) {
    let key = StoreKey::resource(Kind::Profile, "", &name);
    let metadata = object.metadata.derived(name, "", uid::convert(&object.metadata.uid));
    (key, Profile::new(metadata, spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: serde_json::Value) -> CoreMetadataObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_namespace_is_open_and_labels_its_pods() {
        let namespace =
            object(json!({"metadata": {"name": "prod", "uid": "80000000-0000-4000-8000-000000000001",
            "labels": {"team": "a"}, "managedFields": [{}]}, "spec": {"finalizers": ["kubernetes"]}}));
        let (key, profile) = from_namespace(&namespace);
        assert_eq!(key, StoreKey::resource(Kind::Profile, "", "kns.prod"));
        assert_eq!(profile.metadata.uid, "01000000-0000-4000-8000-000000000080");
        assert_eq!((profile.spec.ingress.len(), profile.spec.egress.len()), (1, 1));
        let labels: Vec<_> = profile.spec.labels_to_apply.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(labels, ["pcns.projectcalico.org/name=prod", "pcns.team=a"]);
    }

    #[test]
    fn a_service_account_brings_labels_only() {
        let account = object(json!({"metadata": {"name": "db", "namespace": "prod", "labels": {"a": "b"}}}));
        let (key, profile) = from_service_account(&account);
        assert_eq!(key, StoreKey::resource(Kind::Profile, "", "ksa.prod.db"));
        assert!(profile.spec.ingress.is_empty() && profile.spec.egress.is_empty());
        let labels: Vec<_> = profile.spec.labels_to_apply.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(labels, ["pcsa.a=b", "pcsa.projectcalico.org/name=db"]);
    }

    #[test]
    fn the_name_says_where_a_profile_comes_from() {
        assert_eq!(origin("kns.prod"), Some(ProfileOrigin::Namespace("prod")));
        let account = ProfileOrigin::ServiceAccount { namespace: "prod", name: "db.old" };
        assert_eq!(origin("ksa.prod.db.old"), Some(account));
        for other in ["projectcalico-default-allow", "kns.", "ksa.prod", "ksa..x", "ksa.prod."] {
            assert_eq!(origin(other), None, "{other}");
        }
    }
}
