//! One entry of the store as it travels: its key in the form of recordings, its value in the form of the store.

use bytes::Bytes;
use prost::{Enumeration, Message};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use tortie_model::{FeedEvent, KeyRange, Kind, Revision, Value};
use tortie_store::collection_prefix;
use tortie_sync::Heard;
use tortie_sync::record::FormatError;
use tortie_sync::record::json::{key_from_json, key_to_json};

const KIND: &str = "kind";
const BLOCK: &str = "block";
const BLOCK_AFFINITY: &str = "blockAffinity";
const ENDPOINT_SLICE: &str = "endpointSlice";
const SERVICE: &str = "service";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum What {
    Put = 0,
    Delete = 1,
    /// The value is a text that is not what its key asks for.
    Unreadable = 2,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Record {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(enumeration = "What", tag = "2")]
    pub what: i32,
    /// Of the write or of the deletion.
    #[prost(string, tag = "3")]
    pub revision: String,
    #[prost(bytes = "bytes", tag = "4")]
    pub value: Bytes,
    /// Why it is not readable.
    #[prost(string, tag = "5")]
    pub reason: String,
}

impl Record {
    /// Tells versions of an entry apart. Revisions are the store's, so every hub comes to the same.
    pub fn digest(&self) -> u64 {
        let mut hash = Sha256::new();
        hash.update((self.key.len() as u64).to_be_bytes());
        hash.update(self.key.as_bytes());
        hash.update(self.revision.as_bytes());
        let hash = hash.finalize();
        u64::from_be_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
    }
}

/// None for what is no entry. An error for keys that no node has a use for.
pub fn to_record(heard: &Heard) -> Result<Option<Record>, FormatError> {
    Ok(Some(match heard {
        Heard::Event(FeedEvent::Put { key, value, revision }) => Record {
            key: key_to_json(key)?.to_string(),
            what: What::Put.into(),
            revision: revision.to_string(),
            value: value.encode().into(),
            reason: String::new(),
        },
        Heard::Event(FeedEvent::Delete { key, revision }) => Record {
            key: key_to_json(key)?.to_string(),
            what: What::Delete.into(),
            revision: revision.to_string(),
            ..Record::default()
        },
        Heard::Unreadable { key, revision, text, reason } => Record {
            key: key_to_json(key)?.to_string(),
            what: What::Unreadable.into(),
            revision: revision.to_string(),
            value: text.clone().into(),
            reason: reason.clone(),
        },
        Heard::Event(_) | Heard::Reached { .. } => return Ok(None),
    }))
}

/// An error if the key is of a kind that this version does not know: it means nothing to this node. A value that this version
/// cannot read is an entry that cannot be read, as it would be if it came from the store.
pub fn from_record(record: &Record) -> Result<FeedEvent, FormatError> {
    let no_key = || FormatError::Text { what: "key", text: record.key.clone() };
    let json: Json = serde_json::from_str(&record.key).map_err(|_| no_key())?;
    let key = key_from_json(&json)?;
    let revision = || {
        let no_revision = |_| FormatError::Text { what: "revision", text: record.revision.clone() };
        record.revision.parse::<Revision>().map_err(no_revision)
    };
    let text = || String::from_utf8_lossy(&record.value).into_owned();
    Ok(match record.what() {
        What::Put => match Value::decode(&key, &record.value) {
            Ok(mut value) => {
                let revision = revision()?;
                if let Value::Resource(resource) = &mut value {
                    resource.metadata_mut().resource_version = revision.to_string();
                }
                FeedEvent::Put { key, value, revision }
            }
            Err(error) => FeedEvent::Unreadable { key, text: text(), reason: error.to_string() },
        },
        What::Delete => FeedEvent::Delete { key, revision: revision()? },
        What::Unreadable => FeedEvent::Unreadable { key, text: text(), reason: record.reason.clone() },
    })
}

/// What is watched together, by the key of one of them: revisions within a class come in their order.
pub fn class_of(key: &str) -> Option<String> {
    class_of_json(&serde_json::from_str(key).ok()?)
}

fn class_of_json(key: &Json) -> Option<String> {
    let fields = key.as_object()?;
    match fields.get(KIND) {
        Some(kind) => kind.as_str().map(str::to_owned),
        None => fields.keys().next().cloned(),
    }
}

/// Returns the class of a key and the name prefix of its collection: a class can be the union of collections.
pub fn collection_of(key: &str) -> Option<(String, &'static str)> {
    let json: Json = serde_json::from_str(key).ok()?;
    let prefix = key_from_json(&json).map_or("", |key| collection_prefix(&key));
    class_of_json(&json).map(|class| (class, prefix))
}

/// What the keys of all resources of a kind begin with.
pub fn key_of_kind(kind: Kind) -> String {
    format!("{{\"{KIND}\":\"{}\",", kind.name())
}

/// The class of the keys of a range, if a feed can have them.
pub fn class_of_range(range: &KeyRange) -> Option<&'static str> {
    Some(match range {
        KeyRange::Resources { kind, .. } | KeyRange::Written { kind, .. } => kind.name(),
        KeyRange::Blocks { .. } => BLOCK,
        KeyRange::BlockAffinities { .. } => BLOCK_AFFINITY,
        KeyRange::EndpointSlices => ENDPOINT_SLICE,
        KeyRange::Services => SERVICE,
        KeyRange::Handles
        | KeyRange::IpamConfig
        | KeyRange::FelixStatuses
        | KeyRange::WorkloadEndpointStatuses { .. }
        | KeyRange::HostEndpointStatuses { .. } => return None,
    })
}
