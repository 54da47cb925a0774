//! Writes slots with compare-and-swap.
//!
//! The driver first observes a slot, then reads its object from Neutron's database and sends both. The write succeeds only
//! if no other client wrote the slot in between, so the later one of two concurrent changes always wins.

use crate::metrics::OpenStackMetrics;
use crate::slot::{SlotContent, SlotKey, SlotObject};
use crate::{OpenStackRegion, stored_form};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tortie_model::{Revision, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreEntry, StoreError, StoreResult};
use uuid::Uuid;

/// State of a slot before the driver read Neutron's database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotObservation {
    Absent,
    Revision(String),
    /// An entry that cannot be decoded, for example a half-written one. The next write replaces it.
    Unreadable,
}

/// Result of a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotOutcome {
    Correct,
    Created,
    Updated,
    Deleted,
    /// Another client wrote the slot after the observation: observe it again and read Neutron again.
    Conflict,
    /// The object cannot be translated. The slot keeps its content.
    Invalid(String),
}

/// An outcome with warnings about parts of the object that cannot be enforced.
#[derive(Debug, Serialize)]
pub struct SlotReport {
    pub outcome: SlotOutcome,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Content of a slot in the datastore.
#[derive(Debug)]
pub enum StoredSlot {
    Absent,
    Entry(Box<StoreEntry>),
    Unreadable,
}

#[derive(Clone, Debug)]
pub struct SlotWriter {
    pub client: StoreClient,
    pub region: OpenStackRegion,
    pub(crate) metrics: Arc<OpenStackMetrics>,
}

impl SlotWriter {
    /// Returns the state of each slot.
    pub async fn observe(&self, slots: &[SlotKey]) -> StoreResult<Vec<SlotObservation>> {
        let mut observations = Vec::with_capacity(slots.len());
        for slot in slots {
            let stored = match slot.to_store_key(&self.region) {
                Some(key) => self.read(&key).await?,
                None => StoredSlot::Absent,
            };
            observations.push(stored.observation());
        }
        Ok(observations)
    }

    /// Writes what an object demands for a slot, if the slot is still as observed.
    pub async fn write(
        &self,
        slot: &SlotKey,
        seen: &SlotObservation,
        object: &SlotObject,
    ) -> StoreResult<SlotReport> {
        let translation = match slot.translate(object, &self.region) {
            Ok(translation) => translation,
            Err(error) => {
                tracing::warn!(%error, "cannot translate an object of Neutron; the datastore keeps its entry");
                return Ok(self.report(SlotOutcome::Invalid(error.to_string()), Vec::new()));
            }
        };
        for warning in &translation.warnings {
            tracing::warn!(slot = ?slot, warning, "a security group rule is not enforced");
        }
        let Some(key) = slot.to_store_key(&self.region) else {
            return Ok(self.report(SlotOutcome::Correct, translation.warnings));
        };
        let stored = self.read(&key).await?;
        let outcome = if stored.observation() == *seen {
            self.replace(&key, &stored, &translation.content).await?
        } else {
            SlotOutcome::Conflict
        };
        Ok(self.report(outcome, translation.warnings))
    }

    fn report(&self, outcome: SlotOutcome, warnings: Vec<String>) -> SlotReport {
        self.metrics.count_write(&outcome, warnings.len());
        SlotReport { outcome, warnings }
    }

    /// Reads a slot. An entry that cannot be decoded is a state, not an error.
    pub async fn read(&self, key: &StoreKey) -> StoreResult<StoredSlot> {
        match self.client.get(key).await {
            Ok(entry) => Ok(StoredSlot::Entry(Box::new(entry))),
            Err(StoreError::DoesNotExist { .. }) => Ok(StoredSlot::Absent),
            Err(StoreError::Parse { reason, .. }) => {
                tracing::warn!(%key, reason, "an entry in the datastore cannot be decoded; it is replaced");
                Ok(StoredSlot::Unreadable)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a slot have the content, unless another client has written it since it was read.
    pub async fn replace(
        &self,
        key: &StoreKey,
        stored: &StoredSlot,
        content: &SlotContent,
    ) -> StoreResult<SlotOutcome> {
        let written = match (stored, content) {
            (StoredSlot::Absent, SlotContent::Absent) => return Ok(SlotOutcome::Correct),
            (StoredSlot::Entry(entry), content) if content.is_equal(&entry.value) => {
                return Ok(SlotOutcome::Correct);
            }
            (StoredSlot::Absent, content) => {
                self.client.create(key, &encode(content, None)).await.map(|_| SlotOutcome::Created)
            }
            (StoredSlot::Entry(entry), SlotContent::Absent) => self.delete(key, Some(&entry.revision)).await,
            (StoredSlot::Entry(entry), content) => {
                let value = encode(content, Some(&entry.value));
                self.client.update(key, &value, &entry.revision).await.map(|_| SlotOutcome::Updated)
            }
            (StoredSlot::Unreadable, SlotContent::Absent) => self.delete(key, None).await,
            (StoredSlot::Unreadable, content) => {
                self.client.apply(key, &encode(content, None), None).await.map(|_| SlotOutcome::Updated)
            }
        };
        match written {
            Err(error) if error.is_lost_race() => Ok(SlotOutcome::Conflict),
            written => written,
        }
    }

    async fn delete(&self, key: &StoreKey, revision: Option<&Revision>) -> StoreResult<SlotOutcome> {
        match self.client.delete(key, revision).await {
            // The deleted value cannot be decoded.
            Ok(_) | Err(StoreError::Parse { .. }) => Ok(SlotOutcome::Deleted),
            Err(error) => Err(error),
        }
    }
}

impl StoredSlot {
    pub fn observation(&self) -> SlotObservation {
        match self {
            StoredSlot::Absent => SlotObservation::Absent,
            StoredSlot::Entry(entry) => SlotObservation::Revision(entry.revision.to_string()),
            StoredSlot::Unreadable => SlotObservation::Unreadable,
        }
    }
}

fn encode(content: &SlotContent, stored: Option<&StoreValue>) -> StoreValue {
    match (content, stored) {
        (SlotContent::Resource(desired), Some(StoreValue::Resource(stored))) => {
            stored_form::encode_update(stored, desired)
        }
        (SlotContent::Resource(desired), _) => {
            let created = format!("{:.0}", jiff::Timestamp::now());
            stored_form::encode_new(desired, &Uuid::new_v4().to_string(), &created)
        }
        (SlotContent::Subnet(subnet), _) => StoreValue::DhcpSubnet(subnet.clone()),
        (SlotContent::Absent, _) => StoreValue::Raw(Vec::new()),
    }
}
