//! Object metadata: the fields that all resources share.

use crate::{FieldChecker, Kind, names};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Fields are in the order in which Calico writes them, so that stored JSON is byte-identical.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub self_link: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// RFC 3339, UTC, whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Kubernetes' field ownership records; preserved but never interpreted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managed_fields: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl ObjectMeta {
    /// Checks names, labels and annotations. Whether a namespace is required depends on the operation and is
    /// not checked here.
    pub(crate) fn check(&self, kind: Kind, at: &FieldChecker<'_>) {
        let report = |at: FieldChecker<'_>, value: &str, result: Result<(), String>| {
            if let Err(reason) = result {
                at.fail(value, reason);
            }
        };
        report(at.field("name"), &self.name, names::check_name(kind, &self.name));
        if !self.namespace.is_empty() {
            let fits = if kind.is_namespaced() {
                names::check_label_form(&self.namespace)
            } else {
                Err(format!("{kind} is not namespaced"))
            };
            report(at.field("namespace"), &self.namespace, fits);
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
    if let Err(reason) = names::check_annotations_size(annotations) {
        at.fail(format_args!("{} annotations", annotations.len()), reason);
    }
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}
