//! The JSON form of feed events and of entries (key, value, revision).

use serde_json::{Map, Value as Json, json};
use std::str::FromStr;
use tortie_model::{FeedEvent, Kind, Revision, StoreKey, StoreValue};

/// The JSON does not have the form that this module writes, or a key cannot be part of a feed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecordFormatError {
    #[error("{field} is missing or has the wrong type in {within}")]
    Field { field: &'static str, within: String },
    #[error("{text:?} is no {what}")]
    Text { what: &'static str, text: String },
    #[error("{0} cannot be part of a feed")]
    Key(StoreKey),
    #[error("the value of {key} cannot be read: {reason}")]
    Value { key: StoreKey, reason: String },
}

type FormatResult<T> = std::result::Result<T, RecordFormatError>;

/// Encodes a key of a feed: a resource, a block, a block affinity, a service or an endpoint slice. Other keys are an
/// error.
pub fn key_to_json(key: &StoreKey) -> FormatResult<Json> {
    Ok(match key {
        StoreKey::Resource { kind, namespace, name } if namespace.is_empty() => {
            json!({ "kind": kind.name(), "name": name })
        }
        StoreKey::Resource { kind, namespace, name } => {
            json!({ "kind": kind.name(), "namespace": namespace, "name": name })
        }
        StoreKey::Block { cidr } => json!({ "block": cidr.to_string() }),
        StoreKey::BlockAffinity { affinity, owner, cidr } => {
            json!({ "blockAffinity": cidr.to_string(), "type": affinity.as_str(), "owner": owner })
        }
        StoreKey::EndpointSlice { namespace, name } => {
            json!({ "endpointSlice": name, "namespace": namespace })
        }
        StoreKey::Service { namespace, name } => json!({ "service": name, "namespace": namespace }),
        other => return Err(RecordFormatError::Key(other.clone())),
    })
}

pub fn key_from_json(json: &Json) -> FormatResult<StoreKey> {
    if let Some(block) = json.get("block").and_then(Json::as_str) {
        return Ok(StoreKey::Block { cidr: parse("CIDR", block)? });
    }
    if let Some(block) = json.get("blockAffinity").and_then(Json::as_str) {
        return Ok(StoreKey::BlockAffinity {
            affinity: parse("affinity type", text(json, "type")?)?,
            owner: text(json, "owner")?.to_owned(),
            cidr: parse("CIDR", block)?,
        });
    }
    if let Some(name) = json.get("endpointSlice").and_then(Json::as_str) {
        let namespace = text(json, "namespace")?.to_owned();
        return Ok(StoreKey::EndpointSlice { namespace, name: name.to_owned() });
    }
    if let Some(name) = json.get("service").and_then(Json::as_str) {
        let namespace = text(json, "namespace")?.to_owned();
        return Ok(StoreKey::Service { namespace, name: name.to_owned() });
    }
    let name = text(json, "kind")?;
    let kind = Kind::ALL.iter().copied().find(|kind| kind.name() == name);
    let kind = kind.ok_or_else(|| RecordFormatError::Text { what: "kind", text: name.to_owned() })?;
    let namespace = json.get("namespace").and_then(Json::as_str).unwrap_or_default();
    Ok(StoreKey::resource(kind, namespace, text(json, "name")?))
}

fn parse<T: FromStr>(what: &'static str, text: &str) -> FormatResult<T> {
    text.parse().map_err(|_| RecordFormatError::Text { what, text: text.to_owned() })
}

/// Encodes an entry: key, value and, if known, revision.
pub fn entry_to_json(key: &StoreKey, value: &StoreValue, revision: Option<&Revision>) -> FormatResult<Json> {
    let bytes = value.encode();
    let value: Json = serde_json::from_slice(&bytes)
        .map_err(|error| RecordFormatError::Value { key: key.clone(), reason: error.to_string() })?;
    let mut entry = Map::new();
    entry.insert("key".to_owned(), key_to_json(key)?);
    entry.insert("value".to_owned(), value);
    entry.extend(revision.map(|revision| ("revision".to_owned(), revision.to_string().into())));
    Ok(Json::Object(entry))
}

/// Decodes an entry. The revision is also set as the resource version of the value, as the store does.
pub fn entry_from_json(json: &Json) -> FormatResult<(StoreKey, StoreValue, Option<Revision>)> {
    let key = key_from_json(field(json, "key")?)?;
    let bytes = field(json, "value")?.to_string();
    let mut value = StoreValue::decode(&key, bytes.as_bytes())
        .map_err(|error| RecordFormatError::Value { key: key.clone(), reason: error.to_string() })?;
    let revision = match json.get("revision") {
        Some(_) => Some(revision(json)?),
        None => None,
    };
    if let (StoreValue::Resource(resource), Some(revision)) = (&mut value, &revision) {
        resource.metadata_mut().resource_version = revision.to_string();
    }
    Ok((key, value, revision))
}

pub fn feed_to_json(event: &FeedEvent) -> FormatResult<Json> {
    Ok(match event {
        FeedEvent::Put { key, value, revision } => {
            json!({ "put": entry_to_json(key, value, Some(revision))? })
        }
        FeedEvent::Delete { key, revision } => {
            json!({ "delete": { "key": key_to_json(key)?, "revision": revision.to_string() } })
        }
        FeedEvent::Unreadable { key, revision, text, reason } => {
            json!({ "unreadable": { "key": key_to_json(key)?, "revision": revision.to_string(), "text": text,
                "reason": reason } })
        }
        FeedEvent::InSync => json!("inSync"),
        FeedEvent::ConnectionLost { reason } => json!({ "connectionLost": { "reason": reason } }),
        FeedEvent::ConnectionBack { failed_attempts } => {
            json!({ "connectionBack": { "failedAttempts": failed_attempts } })
        }
    })
}

/// Decodes a feed event. Returns None for an event of another kind.
pub fn feed_from_json(json: &Json) -> FormatResult<Option<FeedEvent>> {
    if json == "inSync" {
        return Ok(Some(FeedEvent::InSync));
    }
    let Some((name, event)) = json.as_object().and_then(|object| object.iter().next()) else {
        return Ok(None);
    };
    Ok(Some(match name.as_str() {
        "put" => {
            let (key, value, _) = entry_from_json(event)?;
            FeedEvent::Put { key, value, revision: revision(event)? }
        }
        "delete" => {
            FeedEvent::Delete { key: key_from_json(field(event, "key")?)?, revision: revision(event)? }
        }
        "unreadable" => FeedEvent::Unreadable {
            key: key_from_json(field(event, "key")?)?,
            revision: revision(event)?,
            text: text(event, "text")?.to_owned(),
            reason: text(event, "reason")?.to_owned(),
        },
        "connectionLost" => FeedEvent::ConnectionLost { reason: text(event, "reason")?.to_owned() },
        "connectionBack" => {
            let failed_attempts = field(event, "failedAttempts")?.as_u64();
            FeedEvent::ConnectionBack {
                failed_attempts: failed_attempts.ok_or_else(|| missing(event, "failedAttempts"))?,
            }
        }
        _ => return Ok(None),
    }))
}

pub fn revision(json: &Json) -> FormatResult<Revision> {
    parse("revision", text(json, "revision")?)
}

pub fn field<'a>(json: &'a Json, name: &'static str) -> FormatResult<&'a Json> {
    json.get(name).ok_or_else(|| missing(json, name))
}

pub fn text<'a>(json: &'a Json, name: &'static str) -> FormatResult<&'a str> {
    field(json, name)?.as_str().ok_or_else(|| missing(json, name))
}

fn missing(json: &Json, field: &'static str) -> RecordFormatError {
    let mut within = json.to_string();
    within.truncate(within.char_indices().nth(200).map_or(within.len(), |(end, _)| end));
    RecordFormatError::Field { field, within }
}
