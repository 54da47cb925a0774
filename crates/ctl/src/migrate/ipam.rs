//! The address records of a datastore, in the format of the third part of an exported file.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::Arc;
use tortie_model::ipam::TunnelType;
use tortie_model::key::AffinityType;
use tortie_model::value::ValueError;
use tortie_model::{KeyRange, StoreKey, StoreValue};
use tortie_store::backend::etcd::keys;
use tortie_store::{StoreClient, StoreError};

/// Maps old to new node names.
pub type NodeNames = BTreeMap<String, String>;

#[derive(Debug, thiserror::Error)]
pub enum AddressRecordError {
    #[error("{0} is not the key of an address record")]
    WrongKey(String),
    #[error("{key}: {source}")]
    Encode { key: String, source: serde_json::Error },
    #[error("{key}: {source}")]
    Decode { key: String, source: ValueError },
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AddressRecords {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_affinities: Vec<AddressRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<AddressRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handles: Vec<AddressRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<AddressRecord>,
}

/// One entry of the store in its stored form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AddressRecord {
    pub key: String,
    pub value: Json,
    #[serde(default, rename = "TTL")]
    pub ttl: i64,
}

impl AddressRecord {
    fn new(key: &StoreKey, value: &StoreValue) -> Result<AddressRecord, AddressRecordError> {
        let key = keys::path(key);
        match serde_json::from_slice(&value.encode()) {
            Ok(value) => Ok(AddressRecord { key, value, ttl: 0 }),
            Err(source) => Err(AddressRecordError::Encode { key, source }),
        }
    }

    fn decode(&self) -> Result<(StoreKey, StoreValue), AddressRecordError> {
        let key = keys::parse(&self.key).ok_or_else(|| AddressRecordError::WrongKey(self.key.clone()))?;
        let value = StoreValue::decode(&key, self.value.to_string().as_bytes())
            .map_err(|source| AddressRecordError::Decode { key: self.key.clone(), source })?;
        Ok((key, value))
    }
}

impl AddressRecords {
    /// Reads all address records of a store.
    pub async fn load(client: &StoreClient, names: &NodeNames) -> Result<AddressRecords, AddressRecordError> {
        let mut block_affinities = Vec::new();
        for affinity in [AffinityType::Host, AffinityType::Virtual] {
            let range = KeyRange::BlockAffinities { affinity, owner: None, ip_version: None };
            block_affinities.extend(list(client, range, names).await?);
        }
        Ok(AddressRecords {
            block_affinities,
            blocks: list(client, KeyRange::Blocks { ip_version: None }, names).await?,
            handles: list(client, KeyRange::Handles, names).await?,
            config: list(client, KeyRange::IpamConfig, names).await?.pop(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.records().next().is_none()
    }

    fn records(&self) -> impl Iterator<Item = &AddressRecord> {
        self.block_affinities.iter().chain(&self.blocks).chain(&self.handles).chain(&self.config)
    }

    /// Decodes every record; fails on the first invalid one, before anything is written.
    pub fn entries(&self) -> Result<Vec<(StoreKey, StoreValue)>, AddressRecordError> {
        self.records().map(AddressRecord::decode).collect()
    }
}

async fn list(
    client: &StoreClient,
    range: KeyRange,
    names: &NodeNames,
) -> Result<Vec<AddressRecord>, AddressRecordError> {
    let listing = client.list(&range).await?;
    // Migrating without a record would lose addresses.
    if let Some(error) = listing.unreadable.into_iter().next() {
        return Err(error.into());
    }
    let mut records = Vec::new();
    for mut entry in listing.entries {
        rename_nodes(&mut entry.key, &mut entry.value, names);
        records.push(AddressRecord::new(&entry.key, &entry.value)?);
    }
    Ok(records)
}

/// Replaces node names in a record with the new ones.
fn rename_nodes(key: &mut StoreKey, value: &mut StoreValue, names: &NodeNames) {
    match key {
        StoreKey::BlockAffinity { affinity: AffinityType::Host, owner, .. } => {
            if let Some(new) = names.get(owner) {
                owner.clone_from(new);
            }
        }
        StoreKey::Handle { id } => {
            if let Some(new) = rename_handle(id, names) {
                *id = new;
            }
        }
        _ => {}
    }
    let StoreValue::Block(block) = value else { return };
    if let Some((AffinityType::Host, owner)) = block.owner()
        && let Some(new) = names.get(owner)
    {
        block.affinity = Some(format!("host:{new}"));
    }
    for attribute in block.attributes.iter_mut().map(Arc::make_mut) {
        if let Some(new) = attribute.secondary.get("node").and_then(|name| names.get(name)) {
            attribute.secondary.insert("node".to_owned(), new.clone());
        }
        if let Some(new) = attribute.handle_id.as_deref().and_then(|id| rename_handle(id, names)) {
            attribute.handle_id = Some(new);
        }
    }
}

/// Returns the new handle of a tunnel address, if the node of the tunnel is renamed.
fn rename_handle(id: &str, names: &NodeNames) -> Option<String> {
    let (tunnel, node) = TunnelType::of_handle(id)?;
    Some(tunnel.handle(names.get(node)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(key: &str, value: Json) -> AddressRecord {
        AddressRecord { key: key.to_owned(), value, ttl: 0 }
    }

    fn renamed(record: &AddressRecord, names: &NodeNames) -> AddressRecord {
        let (mut key, mut value) = record.decode().unwrap();
        rename_nodes(&mut key, &mut value, names);
        AddressRecord::new(&key, &value).unwrap()
    }

    #[test]
    fn nodes_are_renamed_wherever_they_stand() {
        let names: NodeNames = [("old".to_owned(), "new".to_owned())].into();
        let affinity = record(
            "/calico/ipam/v2/host/old/ipv4/block/10.0.0.0-26",
            json!({"state": "confirmed", "deleted": false}),
        );
        assert_eq!(renamed(&affinity, &names).key, "/calico/ipam/v2/host/new/ipv4/block/10.0.0.0-26");
        for tunnel in TunnelType::ALL {
            let key = |node| format!("/calico/ipam/v2/handle/{}", tunnel.handle(node));
            let handle = record(&key("old"), json!({"block": {"10.0.0.0/26": 1}}));
            assert_eq!(renamed(&handle, &names).key, key("new"));
        }
        let block = record(
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30",
            json!({"cidr": "10.0.0.0/30", "affinity": "host:old", "allocations": [0, null, null, null],
                "unallocated": [1, 2, 3], "sequenceNumber": 1_800_000_000_000_000_001u64,
                "attributes": [{"handle_id": "ipip-tunnel-addr-old", "secondary": {"node": "old", "type": "ipip"}}]}),
        );
        let after = renamed(&block, &names).value;
        assert_eq!(after["affinity"], "host:new");
        assert_eq!(after["attributes"][0]["handle_id"], "ipip-tunnel-addr-new");
        assert_eq!(after["attributes"][0]["secondary"], json!({"node": "new", "type": "ipip"}));
        assert_eq!(after["sequenceNumber"], json!(1_800_000_000_000_000_001u64));
    }

    #[test]
    fn records_that_are_none_are_refused() {
        let addresses =
            AddressRecords { handles: vec![record("/elsewhere", json!({}))], ..AddressRecords::default() };
        let error = |addresses: &AddressRecords| addresses.entries().unwrap_err().to_string();
        assert_eq!(error(&addresses), "/elsewhere is not the key of an address record");
        let addresses = AddressRecords {
            blocks: vec![record("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26", json!(7))],
            ..AddressRecords::default()
        };
        assert!(error(&addresses).starts_with("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26: "));
    }

    #[test]
    fn the_file_spells_records_as_the_reference_does() {
        let addresses = AddressRecords {
            config: Some(record("/calico/ipam/v2/config", json!({}))),
            ..AddressRecords::default()
        };
        let text = serde_json::to_value(&addresses).unwrap();
        assert_eq!(text, json!({"config": {"Key": "/calico/ipam/v2/config", "Value": {}, "TTL": 0}}));
        assert!(!addresses.is_empty() && AddressRecords::default().is_empty());
    }
}
