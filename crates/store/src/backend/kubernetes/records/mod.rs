//! Conversion of IPAM records (blocks, affinities, handles, configuration) to custom resources and back.

use super::group::CalicoApiGroup;
use super::{names, text_at};
use ipnet::IpNet;
use serde_json::{Map, Value as Json, json};
use tortie_model::ipam::BlockAffinity;
use tortie_model::key::AffinityType;
use tortie_model::{Kind, StoreKey, StoreValue};

/// Returns the kind and the name of the object that stores a record.
pub fn place(key: &StoreKey) -> Option<(Kind, String)> {
    Some(match key {
        StoreKey::Block { cidr } => (Kind::IPAMBlock, names::block(cidr)),
        StoreKey::BlockAffinity { owner, cidr, .. } => (Kind::BlockAffinity, names::affinity(owner, cidr)),
        StoreKey::Handle { id } => (Kind::IPAMHandle, names::handle(id)),
        StoreKey::IpamConfig => (Kind::IPAMConfiguration, "default".to_owned()),
        _ => return None,
    })
}

/// Returns the object to store; `None` if the value does not belong to the key.
pub fn write(group: CalicoApiGroup, key: &StoreKey, value: &StoreValue) -> Option<Json> {
    let (kind, name) = place(key)?;
    let mut labels = Map::new();
    let spec = match (key, value) {
        (StoreKey::Block { .. }, StoreValue::Block(block)) => {
            let mut spec = object(json!(block));
            rename(&mut spec, "affinity_claim_time", "affinityClaimTime");
            spec.insert("attributes".into(), json!(block.attributes));
            spec.entry("strictAffinity").or_insert(false.into());
            spec.retain(|_, value| !value.is_null());
            spec
        }
        (StoreKey::BlockAffinity { affinity, owner, cidr }, StoreValue::BlockAffinity(claim)) => {
            for (label, value) in names::affinity_labels(*affinity, owner, cidr) {
                labels.insert(label.into(), value.into());
            }
            let mut spec = object(json!(claim));
            spec.insert("node".into(), owner.as_str().into());
            spec.insert("type".into(), affinity.as_str().into());
            spec.insert("cidr".into(), cidr.to_string().into());
            let deleted: Json = match group {
                CalicoApiGroup::V1 => claim.deleted.to_string().into(),
                CalicoApiGroup::V3 => claim.deleted.into(),
            };
            spec.insert("deleted".into(), deleted);
            spec
        }
        (StoreKey::Handle { id }, StoreValue::Handle(handle)) => {
            let mut spec = object(json!(handle));
            spec.insert("handleID".into(), id.as_str().into());
            spec
        }
        (StoreKey::IpamConfig, StoreValue::IpamConfig(config)) => {
            let mut spec = object(json!(config));
            rename(&mut spec, "strict_affinity", "strictAffinity");
            rename(&mut spec, "auto_allocate_blocks", "autoAllocateBlocks");
            spec.entry("strictAffinity").or_insert(false.into());
            spec.entry("autoAllocateBlocks").or_insert(false.into());
            spec
        }
        _ => return None,
    };
    let mut metadata = json!({ "name": name });
    if !labels.is_empty() {
        metadata["labels"] = labels.into();
    }
    Some(json!({
        "apiVersion": group.api_version(), "kind": group.kind_name(kind), "metadata": metadata, "spec": spec,
    }))
}

/// Content of a stored object.
#[derive(Debug, PartialEq)]
// Nearly every record is present: boxing it would cost an allocation each to make the rare variants smaller.
#[allow(clippy::large_enum_variant)]
pub enum StoredIpamRecord {
    Present(StoreKey, Result<StoreValue, UnreadableRecord>),
    /// Marked as deleted: a client that reads it completes the deletion.
    Deleted(StoreKey),
    /// The key is unreadable; contains the reason.
    Nameless(String),
}

/// A record with a readable key and an unreadable value.
#[derive(Debug, PartialEq)]
pub struct UnreadableRecord {
    pub text: String,
    pub reason: String,
}

/// A field of a record that does not identify one.
#[derive(Debug, thiserror::Error)]
enum RecordKeyError {
    #[error("spec.cidr = '{0}' is not a CIDR")]
    Cidr(String),
    #[error("spec.type = '{0}' is not host or virtual")]
    AffinityType(String),
    #[error("{0} is not a record of IPAM")]
    Kind(Kind),
}

fn read_key(kind: Kind, stored: &Json) -> Result<StoreKey, RecordKeyError> {
    match kind {
        Kind::IPAMBlock => Ok(StoreKey::Block { cidr: read_cidr(stored)? }),
        Kind::BlockAffinity => {
            let cidr = read_cidr(stored)?;
            // Old clients left the type empty.
            let affinity = match text_at(stored, "/spec/type") {
                "" => AffinityType::Host,
                other => other.parse().map_err(|()| RecordKeyError::AffinityType(other.to_owned()))?,
            };
            Ok(StoreKey::BlockAffinity { affinity, owner: text_at(stored, "/spec/node").to_owned(), cidr })
        }
        Kind::IPAMHandle => Ok(StoreKey::Handle { id: text_at(stored, "/spec/handleID").to_owned() }),
        Kind::IPAMConfiguration => Ok(StoreKey::IpamConfig),
        other => Err(RecordKeyError::Kind(other)),
    }
}

fn read_cidr(stored: &Json) -> Result<IpNet, RecordKeyError> {
    let text = text_at(stored, "/spec/cidr");
    text.parse().map_err(|_| RecordKeyError::Cidr(text.to_owned()))
}

pub fn read(kind: Kind, stored: &Json) -> StoredIpamRecord {
    let mut spec = match stored.get("spec") {
        Some(Json::Object(spec)) => spec.clone(),
        _ => Map::new(),
    };
    let key = match read_key(kind, stored) {
        Ok(key) => key,
        Err(error) => return StoredIpamRecord::Nameless(error.to_string()),
    };
    if spec.get("deleted").is_some_and(|deleted| *deleted == true || *deleted == "true") {
        return StoredIpamRecord::Deleted(key);
    }
    match kind {
        Kind::IPAMBlock => {
            rename(&mut spec, "affinityClaimTime", "affinity_claim_time");
            spec.shift_remove("strictAffinity");
        }
        Kind::BlockAffinity => {
            for field in ["node", "type", "cidr"] {
                spec.shift_remove(field);
            }
            spec.insert("deleted".into(), false.into());
        }
        Kind::IPAMHandle => {
            spec.shift_remove("handleID");
        }
        _ => {
            rename(&mut spec, "strictAffinity", "strict_affinity");
            rename(&mut spec, "autoAllocateBlocks", "auto_allocate_blocks");
        }
    }
    let text = Json::Object(spec).to_string();
    let value = StoreValue::decode(&key, text.as_bytes());
    StoredIpamRecord::Present(
        key,
        value.map_err(|error| UnreadableRecord { text, reason: error.to_string() }),
    )
}

/// Returns the record marked as deleted.
pub fn deleted(value: &StoreValue) -> StoreValue {
    let mut value = value.clone();
    match &mut value {
        StoreValue::Block(block) => block.deleted = true,
        StoreValue::BlockAffinity(BlockAffinity { deleted, .. }) => *deleted = true,
        StoreValue::Handle(handle) => handle.deleted = true,
        _ => {}
    }
    value
}

fn object(value: Json) -> Map<String, Json> {
    match value {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}

fn rename(map: &mut Map<String, Json>, from: &str, to: &str) {
    if let Some(value) = map.shift_remove(from) {
        map.insert(to.to_owned(), value);
    }
}

#[cfg(test)]
mod tests;
