//! The address records of a datastore, in the format of the third part of an exported file.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::Arc;
use tortie_model::ipam::TunnelType;
use tortie_model::key::AffinityType;
use tortie_model::{KeyRange, StoreKey, StoreValue};
use tortie_store::backend::etcd::keys;
use tortie_store::{StoreClient, StoreEntry, StoreError};

/// Maps old to new node names.
pub type NodeNames = BTreeMap<String, String>;

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
    fn new(key: &StoreKey, value: &StoreValue) -> Result<AddressRecord, String> {
        let path = keys::path(key);
        let value = serde_json::from_slice(&value.encode()).map_err(|error| format!("{path}: {error}"))?;
        Ok(AddressRecord { key: path, value, ttl: 0 })
    }

    fn read(&self) -> Result<(StoreKey, StoreValue), String> {
        let key = keys::parse(&self.key)
            .ok_or_else(|| format!("{} is not the key of an address record", self.key))?;
        let bytes = self.value.to_string();
        let value =
            StoreValue::decode(&key, bytes.as_bytes()).map_err(|error| format!("{}: {error}", self.key))?;
        Ok((key, value))
    }
}

impl AddressRecords {
    /// Reads all address records of a store.
    pub async fn pull(client: &StoreClient, names: &NodeNames) -> Result<AddressRecords, String> {
        let affinities = |affinity| KeyRange::BlockAffinities { affinity, owner: None, ip_version: None };
        let mut block_affinities = list(client, affinities(AffinityType::Host), names).await?;
        block_affinities.extend(list(client, affinities(AffinityType::Virtual), names).await?);
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
    pub fn entries(&self) -> Result<Vec<(StoreKey, StoreValue)>, String> {
        self.records().map(AddressRecord::read).collect()
    }
}

async fn list(
    client: &StoreClient,
    range: KeyRange,
    names: &NodeNames,
) -> Result<Vec<AddressRecord>, String> {
    let listing = client.list(&range).await.map_err(|error: StoreError| error.to_string())?;
    // Migrating without a record would lose addresses.
    if let Some(error) = listing.unreadable.first() {
        return Err(error.to_string());
    }
    let renamed = |StoreEntry { key, value, .. }: StoreEntry| {
        let (key, value) = rename(key, value, names);
        AddressRecord::new(&key, &value)
    };
    listing.entries.into_iter().map(renamed).collect()
}

/// Replaces node names in a record with the new ones.
fn rename(key: StoreKey, value: StoreValue, names: &NodeNames) -> (StoreKey, StoreValue) {
    let node = |name: &str| names.get(name).cloned();
    let handle = |id: &str| {
        let (tunnel, of) = TunnelType::of_handle(id)?;
        node(of).map(|new| tunnel.handle(&new))
    };
    let key = match key {
        StoreKey::BlockAffinity { affinity: AffinityType::Host, owner, cidr } => StoreKey::BlockAffinity {
            affinity: AffinityType::Host,
            owner: node(&owner).unwrap_or(owner),
            cidr,
        },
        StoreKey::Handle { id } => StoreKey::Handle { id: handle(&id).unwrap_or(id) },
        other => other,
    };
    let value = match value {
        StoreValue::Block(mut block) => {
            if let Some((AffinityType::Host, owner)) = block.owner()
                && let Some(new) = node(owner)
            {
                block.affinity = Some(format!("host:{new}"));
            }
            for attribute in block.attributes.iter_mut().map(Arc::make_mut) {
                if let Some(new) = attribute.secondary.get("node").and_then(|name| node(name)) {
                    attribute.secondary.insert("node".to_owned(), new);
                }
                if let Some(new) = attribute.handle_id.as_deref().and_then(handle) {
                    attribute.handle_id = Some(new);
                }
            }
            StoreValue::Block(block)
        }
        other => other,
    };
    (key, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(key: &str, value: Json) -> AddressRecord {
        AddressRecord { key: key.to_owned(), value, ttl: 0 }
    }

    fn renamed(record: &AddressRecord, names: &NodeNames) -> AddressRecord {
        let (key, value) = record.read().unwrap();
        let (key, value) = rename(key, value, names);
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
        assert_eq!(addresses.entries().unwrap_err(), "/elsewhere is not the key of an address record");
        let addresses = AddressRecords {
            blocks: vec![record("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26", json!(7))],
            ..AddressRecords::default()
        };
        assert!(
            addresses
                .entries()
                .unwrap_err()
                .starts_with("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26: ")
        );
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
