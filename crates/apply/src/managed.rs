//! The record of field owners: `metadata.managedFields`.

use crate::fields_v1;
use crate::set::FieldSet;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ManagerOperation {
    Apply,
    Update,
}

/// Identifies a field manager. An applier is the same manager for every version it applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    pub manager: String,
    pub operation: ManagerOperation,
    /// Empty for appliers.
    pub api_version: String,
    pub subresource: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedFields {
    pub set: FieldSet,
    pub api_version: String,
    /// When the owner last wrote, in RFC 3339 format.
    pub time: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedFields(pub(crate) BTreeMap<ManagerId, OwnedFields>);

/// Reason why `metadata.managedFields` cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum ManagedFieldsError {
    #[error("managed fields entry {index} has no valid {field}")]
    Entry { index: usize, field: &'static str },
    #[error("{name} is {value}, not an object")]
    NotAnObject { name: String, value: Value },
    #[error("{0:?} is not a path element")]
    PathElement(String),
}

/// Maximum number of managers with the operation Update; beyond it, the oldest are merged into one.
const MAX_UPDATE_MANAGERS: usize = 10;
const MERGED_MANAGER_NAME: &str = "ancient-changes";

impl ManagedFields {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Decodes `metadata.managedFields`.
    pub fn decode(entries: &[Value]) -> Result<ManagedFields, ManagedFieldsError> {
        let mut managed = ManagedFields::default();
        for (index, entry) in entries.iter().enumerate() {
            let operation = match read_text(entry, "operation") {
                "Apply" => ManagerOperation::Apply,
                "Update" => ManagerOperation::Update,
                _ => return Err(ManagedFieldsError::Entry { index, field: "operation" }),
            };
            let api_version = read_text(entry, "apiVersion").to_owned();
            if api_version.is_empty() {
                return Err(ManagedFieldsError::Entry { index, field: "apiVersion" });
            }
            if read_text(entry, "fieldsType") != "FieldsV1" {
                return Err(ManagedFieldsError::Entry { index, field: "fieldsType" });
            }
            let id = ManagerId {
                manager: read_text(entry, "manager").to_owned(),
                operation,
                api_version: match operation {
                    ManagerOperation::Apply => String::new(),
                    ManagerOperation::Update => api_version.clone(),
                },
                subresource: read_text(entry, "subresource").to_owned(),
            };
            let set = fields_v1::decode(entry.get("fieldsV1").unwrap_or(&Value::Null))?;
            let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
            managed.0.insert(id, OwnedFields { set, api_version, time });
        }
        Ok(managed)
    }

    /// Encodes `metadata.managedFields`: appliers first, then by time and name.
    pub fn encode(&self) -> Vec<Value> {
        let mut entries: Vec<(&ManagerId, &OwnedFields)> = self.0.iter().collect();
        entries.sort_by_key(|(id, owned)| {
            (id.operation, &owned.time, &id.manager, &owned.api_version, &id.subresource)
        });
        entries.into_iter().map(|(id, owned)| encode_entry(id, owned)).collect()
    }

    /// Drops the field sets of other API versions, whose paths may not exist in this version.
    pub(crate) fn keep_version(&mut self, api_version: &str) {
        self.0.retain(|_, owned| owned.api_version == api_version);
    }

    /// Merges the oldest updaters until there are few enough.
    pub(crate) fn cap_updaters(&mut self) {
        let mut updaters: Vec<(Option<String>, ManagerId)> = self
            .0
            .iter()
            .filter(|(id, _)| id.operation == ManagerOperation::Update)
            .map(|(id, owned)| (owned.time.clone(), id.clone()))
            .collect();
        updaters.sort();
        let mut left = updaters.len();
        let mut first: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (time, id) in updaters {
            if left <= MAX_UPDATE_MANAGERS {
                break;
            }
            let Some(version) = self.0.get(&id).map(|owned| owned.api_version.clone()) else { continue };
            let Some(oldest) = first.get(&version).cloned() else {
                first.insert(version, id);
                continue;
            };
            let bucket = ManagerId {
                manager: MERGED_MANAGER_NAME.to_owned(),
                operation: ManagerOperation::Update,
                api_version: version,
                subresource: String::new(),
            };
            if !self.0.contains_key(&bucket)
                && let Some(owned) = self.0.remove(&oldest)
            {
                self.0.insert(bucket.clone(), owned);
            }
            if let Some(owned) = self.0.remove(&id)
                && let Some(merged) = self.0.get_mut(&bucket)
            {
                merged.set.extend(&owned.set);
                merged.time = time;
                left -= 1;
            }
        }
    }
}

fn read_text<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn encode_entry(id: &ManagerId, owned: &OwnedFields) -> Value {
    let mut entry = json!({});
    if !id.manager.is_empty() {
        entry["manager"] = id.manager.as_str().into();
    }
    entry["operation"] = match id.operation {
        ManagerOperation::Apply => "Apply".into(),
        ManagerOperation::Update => "Update".into(),
    };
    entry["apiVersion"] = owned.api_version.as_str().into();
    if let Some(time) = &owned.time {
        entry["time"] = time.as_str().into();
    }
    entry["fieldsType"] = "FieldsV1".into();
    entry["fieldsV1"] = fields_v1::encode(&owned.set);
    if !id.subresource.is_empty() {
        entry["subresource"] = id.subresource.as_str().into();
    }
    entry
}
