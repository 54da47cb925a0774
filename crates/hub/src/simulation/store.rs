//! A simulated store: its current content and its complete history.

use serde_json::json;
use std::collections::BTreeMap;
use tortie_model::{API_VERSION, FeedEvent, KeyRange, Kind, Resource, Revision, StoreKey, StoreValue};
use tortie_sync::FeedMessage;

pub const CLASS_COUNT: usize = 2;
pub const KEY_COUNT: usize = 5;
const CLASS_KINDS: [Kind; CLASS_COUNT] = [Kind::Tier, Kind::GlobalNetworkSet];

#[derive(Debug, Default)]
pub struct SimulatedHubStore {
    pub revision: u64,
    pub history: Vec<(u64, StoreKey, FeedMessage)>,
    pub content: BTreeMap<StoreKey, (u64, FeedMessage)>,
}

pub fn key(class: usize, number: usize) -> StoreKey {
    StoreKey::resource(CLASS_KINDS[class], "", &format!("n{number}"))
}

pub fn range(class: usize) -> KeyRange {
    KeyRange::all(CLASS_KINDS[class])
}

pub fn class_names() -> Vec<String> {
    CLASS_KINDS.iter().map(|kind| kind.name().to_owned()).collect()
}

fn put_event(key: &StoreKey, revision: u64) -> FeedMessage {
    let StoreKey::Resource { kind, name, .. } = key else { panic!("{key}") };
    let metadata = json!({"name": name, "labels": {"revision": revision.to_string()}});
    let object = json!({"apiVersion": API_VERSION, "kind": kind.name(), "metadata": metadata, "spec": {}});
    let mut resource = Resource::from_user(object).unwrap();
    resource.metadata_mut().resource_version = revision.to_string();
    let value = StoreValue::Resource(resource);
    FeedMessage::Event(FeedEvent::Put { key: key.clone(), value, revision: revision.into() })
}

impl SimulatedHubStore {
    pub fn write(&mut self, class: usize, number: usize) {
        let key = key(class, number);
        self.revision += 1;
        let event = put_event(&key, self.revision);
        self.record(key, event);
    }

    /// Writes a value that cannot be decoded.
    pub fn write_unreadable(&mut self, class: usize, number: usize) {
        let key = key(class, number);
        self.revision += 1;
        let text = format!("unreadable {}", self.revision);
        let event = FeedMessage::Event(FeedEvent::Unreadable {
            key: key.clone(),
            revision: self.revision.into(),
            text,
            reason: "not JSON".to_owned(),
        });
        self.record(key, event);
    }

    fn record(&mut self, key: StoreKey, event: FeedMessage) {
        self.history.push((self.revision, key.clone(), event.clone()));
        self.content.insert(key, (self.revision, event));
    }

    pub fn delete(&mut self, class: usize, number: usize) {
        let key = key(class, number);
        if self.content.remove(&key).is_some() {
            self.revision += 1;
            let revision = Revision::from(self.revision);
            let event = FeedMessage::Event(FeedEvent::Delete { key: key.clone(), revision });
            self.history.push((self.revision, key, event));
        }
    }

    /// Returns whether the entry was deleted after the revision `written`.
    pub fn was_deleted_after(&self, key: &StoreKey, written: u64) -> bool {
        self.history.iter().any(|(revision, changed, event)| {
            changed == key
                && *revision > written
                && matches!(event, FeedMessage::Event(FeedEvent::Delete { .. }))
        })
    }

    /// Returns the current revision of each entry.
    pub fn versions(&self) -> BTreeMap<StoreKey, u64> {
        self.content.iter().map(|(key, (revision, _))| (key.clone(), *revision)).collect()
    }

    /// Returns the current entries of a class.
    pub fn list_class(&self, class: usize) -> impl Iterator<Item = (&StoreKey, &(u64, FeedMessage))> {
        let range = range(class);
        self.content.iter().filter(move |(key, _)| range.contains(key))
    }
}
