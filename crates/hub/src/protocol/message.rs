//! The protobuf messages. Field numbers never change; fields that were not sent decode as zero or empty.

use super::{BUCKET_COUNT, DigestSum, ProtocolError, RecordPayload, frame};
use bytes::Bytes;
use prost::{Message, Oneof};
use std::collections::BTreeMap;

/// The last change of a hub that a client has received, within one epoch of that hub.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HubPosition {
    /// Random identifier of the hub process.
    #[prost(fixed64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct HelloMessage {
    #[prost(fixed64, tag = "1")]
    pub magic: u64,
    #[prost(uint32, tag = "2")]
    pub oldest: u32,
    #[prost(uint32, tag = "3")]
    pub newest: u32,
    /// For the hub's log only.
    #[prost(string, tag = "4")]
    pub node: String,
    #[prost(message, optional, tag = "5")]
    pub position: Option<HubPosition>,
    /// The client has no entries, so there is nothing to compare.
    #[prost(bool, tag = "6")]
    pub empty: bool,
    /// For each class of entries, the latest revision that the client has seen. A hub that has not received it would
    /// send the client an older state.
    #[prost(btree_map = "string, uint64", tag = "7")]
    pub marks: BTreeMap<String, u64>,
    /// Classes that the hub must watch to be usable by this client.
    #[prost(string, repeated, tag = "8")]
    pub wanted: Vec<String>,
}

/// Digest sums of all buckets of a client.
#[derive(Clone, PartialEq, Message)]
pub struct DigestsMessage {
    #[prost(fixed64, repeated, tag = "1")]
    pub sums: Vec<u64>,
}

impl DigestsMessage {
    pub fn sums(&self) -> Result<Vec<DigestSum>, ProtocolError> {
        match self.sums.len() {
            BUCKET_COUNT => Ok(self.sums.iter().copied().map(DigestSum).collect()),
            _ => Err(ProtocolError::Unexpected("digests of another number of buckets")),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct ClientEnvelope {
    #[prost(oneof = "ClientMessage", tags = "1, 2, 3")]
    what: Option<ClientMessage>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum ClientMessage {
    #[prost(message, tag = "1")]
    Hello(HelloMessage),
    #[prost(message, tag = "2")]
    Digests(DigestsMessage),
    #[prost(message, tag = "3")]
    Pong(()),
}

impl ClientMessage {
    pub fn frame(self) -> Bytes {
        frame(&ClientEnvelope { what: Some(self) })
    }

    pub fn decode(bytes: Bytes) -> Result<ClientMessage, ProtocolError> {
        ClientEnvelope::decode(bytes)?.what.ok_or(ProtocolError::Empty)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WelcomeMessage {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(fixed64, tag = "2")]
    pub epoch: u64,
    /// The hub still lacks revisions that the client has seen and sends its state anyway: the store was restored from
    /// a backup.
    #[prost(bool, tag = "3")]
    pub behind: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RefusedMessage {
    /// Human-readable text.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// Connection state between the hub and the store.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HubStoreStatus {
    /// Error while the store is unreachable.
    #[prost(string, optional, tag = "1")]
    pub trouble: Option<String>,
    /// Failed attempts of the last outage.
    #[prost(uint64, tag = "2")]
    pub failed_attempts: u64,
}

/// Announces buckets. With them, the client has everything up to this sequence number.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BeginMessage {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, optional, tag = "2")]
    pub status: Option<HubStoreStatus>,
}

/// The content of a bucket, or a part of it.
#[derive(Clone, PartialEq, Message)]
pub struct BucketMessage {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// Sequence number of the last change in the bucket: changes up to it that are sent later are already included.
    #[prost(uint64, tag = "2")]
    pub changed: u64,
    /// Another part of the same bucket follows.
    #[prost(bool, tag = "3")]
    pub more: bool,
    #[prost(message, required, tag = "4")]
    pub records: RecordPayload,
}

/// All announced buckets have been sent.
#[derive(Clone, PartialEq, Message)]
pub struct EndMessage {
    /// Marks of the hub.
    #[prost(btree_map = "string, uint64", tag = "1")]
    pub marks: BTreeMap<String, u64>,
}

/// Changes between the previous sequence number and this one.
#[derive(Clone, PartialEq, Message)]
pub struct ChangesMessage {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, required, tag = "2")]
    pub records: RecordPayload,
    /// Present if the status changed.
    #[prost(message, optional, tag = "3")]
    pub status: Option<HubStoreStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct HubEnvelope {
    #[prost(oneof = "HubMessage", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    what: Option<HubMessage>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum HubMessage {
    #[prost(message, tag = "1")]
    Welcome(WelcomeMessage),
    #[prost(message, tag = "2")]
    Refused(RefusedMessage),
    /// The hub continues with the changes after the client's position. Carries the current status.
    #[prost(message, tag = "3")]
    Resume(HubStoreStatus),
    #[prost(message, tag = "4")]
    Compare(()),
    #[prost(message, tag = "5")]
    Begin(BeginMessage),
    #[prost(message, tag = "6")]
    Bucket(BucketMessage),
    #[prost(message, tag = "7")]
    End(EndMessage),
    #[prost(message, tag = "8")]
    Changes(ChangesMessage),
    #[prost(message, tag = "9")]
    Ping(()),
    /// The hub is shutting down or has too many clients: the client connects to another.
    #[prost(message, tag = "10")]
    Leave(()),
}

impl HubMessage {
    pub fn frame(self) -> Bytes {
        frame(&HubEnvelope { what: Some(self) })
    }

    pub fn decode(bytes: Bytes) -> Result<HubMessage, ProtocolError> {
        HubEnvelope::decode(bytes)?.what.ok_or(ProtocolError::Empty)
    }
}
