//! Checks of the metadata of all kinds before a write.

use crate::StoreResult;
use tortie_model::{FieldError, Kind, ObjectMeta, Resource, ValidationError};
use uuid::Uuid;

/// Collects all errors, so that they are reported together.
#[derive(Default)]
struct MetadataErrors(Vec<FieldError>);

impl MetadataErrors {
    fn add(&mut self, name: &str, value: &str, reason: &str) {
        self.0.push(FieldError { name: name.to_owned(), value: value.to_owned(), reason: reason.to_owned() });
    }

    fn into_result(self) -> StoreResult<()> {
        if self.0.is_empty() { Ok(()) } else { Err(ValidationError { errors: self.0 }.into()) }
    }
}

/// Checks that there is a name and, for namespaced kinds only, a namespace.
pub fn check_identity(kind: Kind, namespace: &str, name: &str) -> StoreResult<()> {
    let mut findings = MetadataErrors::default();
    identity(kind, namespace, name, &mut findings);
    findings.into_result()
}

fn identity(kind: Kind, namespace: &str, name: &str, findings: &mut MetadataErrors) {
    if name.is_empty() {
        findings.add("Metadata.Name", name, "name must be specified");
    }
    if kind.is_namespaced() && namespace.is_empty() {
        findings.add("Metadata.Namespace", namespace, "namespace is not specified on namespaced resource");
    }
    if !kind.is_namespaced() && !namespace.is_empty() {
        findings.add(
            "Metadata.Namespace",
            namespace,
            "namespace is not supported for a cluster scoped resource",
        );
    }
}

pub fn check_create(resource: &Resource) -> StoreResult<()> {
    let meta = resource.metadata();
    let mut findings = MetadataErrors::default();
    // Together with a name, generateName only records the origin of the name, as on the endpoints of pods.
    if meta.generate_name.is_empty() || !meta.name.is_empty() {
        identity(resource.kind(), &meta.namespace, &meta.name, &mut findings);
    } else {
        findings.add("Metadata.GenerateName", &meta.generate_name, "generateName is not supported");
    }
    if !meta.resource_version.is_empty() {
        findings.add(
            "Metadata.ResourceVersion",
            &meta.resource_version,
            "field must not be set for a Create request",
        );
    }
    findings.into_result()
}

pub fn check_update(resource: &Resource) -> StoreResult<()> {
    let meta = resource.metadata();
    let mut findings = MetadataErrors::default();
    identity(resource.kind(), &meta.namespace, &meta.name, &mut findings);
    let needed = [
        ("Metadata.ResourceVersion", meta.resource_version.as_str()),
        ("Metadata.CreationTimestamp", meta.creation_timestamp.as_deref().unwrap_or_default()),
        ("Metadata.UID", meta.uid.as_str()),
    ];
    for (field, value) in needed {
        if value.is_empty() {
            findings.add(field, value, "field must be set for an Update request");
        }
    }
    findings.into_result()
}

/// Sets the UID and the creation timestamp of a new object, unless they are present, as in an import.
pub fn stamp(meta: &mut ObjectMeta) {
    if meta.uid.is_empty() {
        meta.uid = Uuid::new_v4().to_string();
    }
    if meta.creation_timestamp.as_deref().unwrap_or_default().is_empty() {
        meta.creation_timestamp = Some(format!("{:.0}", jiff::Timestamp::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_names_all_missing_fields() {
        let mut policy = Resource::new(Kind::NetworkPolicy);
        policy.metadata_mut().name = "web".into();
        let text = check_update(&policy).unwrap_err().to_string();
        for field in ["Namespace", "ResourceVersion", "CreationTimestamp", "UID"] {
            assert!(text.contains(&format!("Metadata.{field} = ''")), "{text}");
        }
    }

    #[test]
    fn a_new_object_must_not_have_a_revision() {
        let mut pool = Resource::new(Kind::IPPool);
        assert!(check_create(&pool).unwrap_err().to_string().contains("Metadata.Name"));
        pool.metadata_mut().generate_name = "pool-".into();
        pool.metadata_mut().resource_version = "3".into();
        let text = check_create(&pool).unwrap_err().to_string();
        assert!(text.contains("GenerateName = 'pool-'") && text.contains("ResourceVersion = '3'"), "{text}");
        pool.metadata_mut().name = "pool-x".into();
        pool.metadata_mut().resource_version = String::new();
        assert!(check_create(&pool).is_ok());
    }

    #[test]
    fn what_an_import_brings_is_kept() {
        let mut meta =
            ObjectMeta { uid: "u".into(), creation_timestamp: Some("t".into()), ..Default::default() };
        stamp(&mut meta);
        assert_eq!((meta.uid.as_str(), meta.creation_timestamp.as_deref()), ("u", Some("t")));
        let mut meta = ObjectMeta::default();
        stamp(&mut meta);
        assert_eq!(meta.uid.len(), 36);
        let time = meta.creation_timestamp.unwrap();
        assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    }
}
