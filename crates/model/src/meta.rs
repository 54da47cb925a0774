//! Object metadata: the fields that all resources share.

use crate::{FieldChecker, Kind, names};
use std::collections::BTreeMap;

api_types! {
    /// Fields are in the order in which Calico writes them, so that stored JSON is byte-identical.
    pub struct ObjectMeta {
        pub name: String,
        pub generate_name: String,
        pub namespace: String,
        pub self_link: String,
        pub uid: String,
        pub resource_version: String,
        pub generation: i64,
        /// RFC 3339, UTC, whole seconds.
        pub creation_timestamp: Option<String>,
        pub deletion_timestamp: Option<String>,
        pub deletion_grace_period_seconds: Option<i64>,
        pub labels: BTreeMap<String, String>,
        pub annotations: BTreeMap<String, String>,
        pub owner_references: Vec<OwnerReference>,
        pub finalizers: Vec<String>,
        /// Kubernetes' field ownership records; preserved but never interpreted.
        pub managed_fields: Vec<serde_json::Value>,
    }

    pub struct OwnerReference {
        pub api_version: String = always,
        pub kind: String = always,
        pub name: String = always,
        pub uid: String = always,
        pub controller: Option<bool>,
        pub block_owner_deletion: Option<bool>,
    }
}

impl ObjectMeta {
    /// Checks names, labels and annotations. Whether a namespace is required depends on the operation and is
    /// not checked here.
    pub(crate) fn check(&self, kind: Kind, at: &FieldChecker<'_>) {
        at.field("name").report(&self.name, names::check_name(kind, &self.name));
        if !self.namespace.is_empty() {
            let at = at.field("namespace");
            if kind.is_namespaced() {
                at.report(&self.namespace, names::check_label_form(&self.namespace));
            } else {
                at.fail(&self.namespace, format_args!("{kind} is not namespaced"));
            }
        }
        check_labels(&at.field("labels"), &self.labels);
        check_annotations(&at.field("annotations"), &self.annotations);
    }
}

/// Checks label keys and values against the rules of Kubernetes.
pub(crate) fn check_labels(at: &FieldChecker<'_>, labels: &BTreeMap<String, String>) {
    for (key, value) in labels {
        let failures = [
            names::check_qualified(key).err().map(|reason| format!("label key {reason}")),
            names::check_label_value(value).err().map(|reason| format!("label value {reason}")),
        ];
        failures.into_iter().flatten().for_each(|reason| at.fail(format_args!("{key}={value}"), reason));
    }
}

/// Checks annotation keys and their total size against the rules of Kubernetes.
pub(crate) fn check_annotations(at: &FieldChecker<'_>, annotations: &BTreeMap<String, String>) {
    for key in annotations.keys() {
        if let Err(reason) = names::check_annotation_key(key) {
            at.fail(key, format!("annotation key {reason}"));
        }
    }
    let result = names::check_annotations_size(annotations);
    at.report(format_args!("{} annotations", annotations.len()), result);
}
