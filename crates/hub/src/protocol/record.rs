//! One store entry on the wire: the key in the JSON form of recordings, the value in the encoding of the store.

use bytes::Bytes;
use prost::{Enumeration, Message};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use tortie_model::{FeedEvent, KeyRange, Kind, Revision, StoreValue};
use tortie_store::collection_prefix;
use tortie_sync::FeedMessage;
use tortie_sync::record::RecordFormatError;
use tortie_sync::record::json::{key_from_json, key_to_json};

const KIND: &str = "kind";
const BLOCK: &str = "block";
const BLOCK_AFFINITY: &str = "blockAffinity";
const ENDPOINT_SLICE: &str = "endpointSlice";
const SERVICE: &str = "service";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum RecordAction {
    Put = 0,
    Delete = 1,
    /// The value is text that does not decode as the kind of its key.
    Unreadable = 2,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct FeedRecord {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(enumeration = "RecordAction", tag = "2")]
    pub action: i32,
    /// Revision of the write or deletion.
    #[prost(string, tag = "3")]
    pub revision: String,
    #[prost(bytes = "bytes", tag = "4")]
    pub value: Bytes,
    /// Error if the value is unreadable.
    #[prost(string, tag = "5")]
    pub reason: String,
}

impl FeedRecord {
    fn parse_revision(&self) -> Result<Revision, RecordFormatError> {
        self.revision
            .parse()
            .map_err(|_| RecordFormatError::Text { what: "revision", text: self.revision.clone() })
    }

    /// Returns the size of key and value.
    pub fn size(&self) -> usize {
        self.key.len() + self.value.len()
    }

    /// Returns a digest of key and revision, which identifies a version of an entry. Revisions come from the store,
    /// so every hub computes the same digest.
    pub fn digest(&self) -> u64 {
        let mut hash = Sha256::new();
        hash.update((self.key.len() as u64).to_be_bytes());
        hash.update(self.key.as_bytes());
        hash.update(self.revision.as_bytes());
        let hash = hash.finalize();
        u64::from_be_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
    }
}

/// Converts a feed event. Returns `None` for events without an entry and an error for keys that feeds do not carry.
/// A value that the store has not decoded is forwarded as it is.
pub fn to_record(message: FeedMessage) -> Result<Option<FeedRecord>, RecordFormatError> {
    Ok(Some(match message {
        FeedMessage::Event(FeedEvent::Put { key, value, revision }) => FeedRecord {
            key: key_to_json(&key)?.to_string(),
            action: RecordAction::Put.into(),
            revision: revision.to_string(),
            value: match value {
                StoreValue::Raw(bytes) => bytes.into(),
                decoded => decoded.encode().into(),
            },
            reason: String::new(),
        },
        FeedMessage::Event(FeedEvent::Delete { key, revision }) => FeedRecord {
            key: key_to_json(&key)?.to_string(),
            action: RecordAction::Delete.into(),
            revision: revision.to_string(),
            ..FeedRecord::default()
        },
        FeedMessage::Event(FeedEvent::Unreadable { key, revision, text, reason }) => FeedRecord {
            key: key_to_json(&key)?.to_string(),
            action: RecordAction::Unreadable.into(),
            revision: revision.to_string(),
            value: text.into(),
            reason,
        },
        FeedMessage::Event(_) | FeedMessage::Reached { .. } => return Ok(None),
    }))
}

/// Converts a record to a feed event. Returns an error if this version does not know the kind of the key: the node
/// has no use for it. A value that this version cannot decode becomes an unreadable entry, as if it came from the
/// store.
pub fn from_record(record: &FeedRecord) -> Result<FeedEvent, RecordFormatError> {
    let json: Json = serde_json::from_str(&record.key)
        .map_err(|_| RecordFormatError::Text { what: "key", text: record.key.clone() })?;
    let key = key_from_json(&json)?;
    let reason = match record.action() {
        RecordAction::Delete => return Ok(FeedEvent::Delete { key, revision: record.parse_revision()? }),
        RecordAction::Unreadable => record.reason.clone(),
        RecordAction::Put => match StoreValue::decode(&key, &record.value) {
            Ok(mut value) => {
                let revision = record.parse_revision()?;
                if let StoreValue::Resource(resource) = &mut value {
                    resource.metadata_mut().resource_version = revision.to_string();
                }
                return Ok(FeedEvent::Put { key, value, revision });
            }
            Err(error) => error.to_string(),
        },
    };
    let revision = record.parse_revision()?;
    Ok(FeedEvent::Unreadable {
        key,
        revision,
        text: String::from_utf8_lossy(&record.value).into_owned(),
        reason,
    })
}

/// Returns the class of a key: the entries that are watched together, so that revisions within a class are ordered.
pub fn find_class(key: &str) -> Option<String> {
    read_class(&serde_json::from_str(key).ok()?)
}

fn read_class(key: &Json) -> Option<String> {
    let fields = key.as_object()?;
    match fields.get(KIND) {
        Some(kind) => kind.as_str().map(str::to_owned),
        None => fields.keys().next().cloned(),
    }
}

/// Returns the class of a key and the name prefix of its collection: a class can be the union of collections.
pub fn find_collection(key: &str) -> Option<(String, &'static str)> {
    let json: Json = serde_json::from_str(key).ok()?;
    let prefix = key_from_json(&json).map_or("", |key| collection_prefix(&key));
    read_class(&json).map(|class| (class, prefix))
}

/// Returns the prefix of the keys of all resources of a kind.
pub fn build_key_prefix(kind: Kind) -> String {
    format!("{{\"{KIND}\":\"{}\",", kind.name())
}

/// Returns the class of the keys of a range, or `None` if feeds do not carry them.
pub fn find_range_class(range: &KeyRange) -> Option<&'static str> {
    Some(match range {
        KeyRange::Resources { kind, .. } | KeyRange::Written { kind, .. } => kind.name(),
        KeyRange::Blocks { .. } => BLOCK,
        KeyRange::BlockAffinities { .. } => BLOCK_AFFINITY,
        KeyRange::EndpointSlices => ENDPOINT_SLICE,
        KeyRange::Services => SERVICE,
        KeyRange::Handles
        | KeyRange::IpamConfig
        | KeyRange::FelixStatuses
        | KeyRange::DhcpSubnets { .. }
        | KeyRange::LegacyDhcpSubnets
        | KeyRange::WorkloadEndpointStatuses { .. }
        | KeyRange::HostEndpointStatuses { .. } => return None,
    })
}
