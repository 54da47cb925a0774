//! An object as served: its JSON text and the properties that selectors use.

use crate::selectors::SelectionSubject;
use crate::write::read_text_at;
use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use tortie_model::{Resource, Revision};
use tortie_store::tier_of;

#[derive(Clone, Debug, PartialEq)]
pub struct StoredObject {
    pub namespace: String,
    pub name: String,
    /// Empty for kinds without tiers.
    pub tier: String,
    pub labels: BTreeMap<String, String>,
    pub revision: u64,
    pub json: Bytes,
}

impl StoredObject {
    pub fn new(resource: &Resource) -> StoredObject {
        let tier = tier_of(resource).unwrap_or_default().to_owned();
        StoredObject::from_value(tier, resource.metadata().labels.clone(), &resource.to_value())
    }

    fn from_value(tier: String, labels: BTreeMap<String, String>, object: &Value) -> StoredObject {
        StoredObject {
            namespace: read_text_at(object, "/metadata/namespace").to_owned(),
            name: read_text_at(object, "/metadata/name").to_owned(),
            tier,
            labels,
            revision: read_text_at(object, "/metadata/resourceVersion").parse().unwrap_or_default(),
            json: Bytes::from(object.to_string()),
        }
    }

    /// Returns the object as reported in a deletion at a revision.
    pub fn deleted_at(&self, revision: u64) -> StoredObject {
        let mut object = self.value();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        StoredObject::from_value(self.tier.clone(), self.labels.clone(), &object)
    }

    pub fn value(&self) -> Value {
        // The text was serialized from a value, so it can be parsed.
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    pub fn subject(&self) -> SelectionSubject<'_> {
        SelectionSubject {
            name: &self.name,
            namespace: &self.namespace,
            tier: &self.tier,
            labels: &self.labels,
        }
    }
}

/// Returns a revision as the number that clients see. A revision over several collections is the lowest of its parts,
/// so that no change is missed from there.
pub fn convert_revision(revision: &Revision) -> u64 {
    match revision.number() {
        Some(number) => number,
        None => {
            let text = revision.to_string();
            text.split('/').filter_map(|part| part.parse::<u64>().ok()).min().unwrap_or_default()
        }
    }
}
