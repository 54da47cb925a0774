//! The messages. Numbers of fields are for ever; what was never sent is zero or empty.

use super::{BUCKETS, Payload, ProtocolError, Sum, frame};
use bytes::Bytes;
use prost::{Message, Oneof};
use std::collections::BTreeMap;

/// Up to where a client has heard a hub, in one life of that hub.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Position {
    /// Of the hub's life: random.
    #[prost(fixed64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(fixed64, tag = "1")]
    pub magic: u64,
    #[prost(uint32, tag = "2")]
    pub oldest: u32,
    #[prost(uint32, tag = "3")]
    pub newest: u32,
    /// For people who look at the hub's log.
    #[prost(string, tag = "4")]
    pub node: String,
    #[prost(message, optional, tag = "5")]
    pub position: Option<Position>,
    /// The client knows no entry: there is nothing to compare.
    #[prost(bool, tag = "6")]
    pub empty: bool,
    /// For each class of entries the latest revision that the client has heard of. A hub that has not heard of it yet
    /// would tell the client the past.
    #[prost(btree_map = "string, uint64", tag = "7")]
    pub marks: BTreeMap<String, u64>,
    /// Classes without which the hub is of no use to this client.
    #[prost(string, repeated, tag = "8")]
    pub wanted: Vec<String>,
}

/// The sums of all buckets of a client.
#[derive(Clone, PartialEq, Message)]
pub struct Digests {
    #[prost(fixed64, repeated, tag = "1")]
    pub sums: Vec<u64>,
}

impl Digests {
    pub fn sums(&self) -> Result<Vec<Sum>, ProtocolError> {
        match self.sums.len() {
            BUCKETS => Ok(self.sums.iter().copied().map(Sum).collect()),
            _ => Err(ProtocolError::Unexpected("digests of another number of buckets")),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct FromClient {
    #[prost(oneof = "from_client::What", tags = "1, 2, 3")]
    pub what: Option<from_client::What>,
}

pub mod from_client {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum What {
        #[prost(message, tag = "1")]
        Hello(Hello),
        #[prost(message, tag = "2")]
        Digests(Digests),
        #[prost(message, tag = "3")]
        Pong(()),
    }

    impl What {
        pub fn frame(self) -> Bytes {
            frame(&FromClient { what: Some(self) })
        }
    }
}

impl FromClient {
    pub fn read(bytes: Bytes) -> Result<from_client::What, ProtocolError> {
        FromClient::decode(bytes)?.what.ok_or(ProtocolError::Empty)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Welcome {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(fixed64, tag = "2")]
    pub epoch: u64,
    /// The hub has still not heard of what the client has, and has to be believed: the store was put back.
    #[prost(bool, tag = "3")]
    pub behind: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Refused {
    /// For people.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// How the hub reaches the store.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    /// Why it does not, if it does not.
    #[prost(string, optional, tag = "1")]
    pub trouble: Option<String>,
    /// Of the last outage.
    #[prost(uint64, tag = "2")]
    pub failed_attempts: u64,
}

/// Buckets follow; with them the client knows everything up to this position.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Begin {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, optional, tag = "2")]
    pub status: Option<Status>,
}

/// The content of a bucket, or a part of it.
#[derive(Clone, PartialEq, Message)]
pub struct Bucket {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// Of the last change in it: earlier changes that come later are in it already.
    #[prost(uint64, tag = "2")]
    pub changed: u64,
    /// Another part of the same bucket follows.
    #[prost(bool, tag = "3")]
    pub more: bool,
    #[prost(message, required, tag = "4")]
    pub records: Payload,
}

/// The buckets are complete.
#[derive(Clone, PartialEq, Message)]
pub struct End {
    /// The hub's own.
    #[prost(btree_map = "string, uint64", tag = "1")]
    pub marks: BTreeMap<String, u64>,
}

/// What happened since the sequence number before this one.
#[derive(Clone, PartialEq, Message)]
pub struct Changes {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, required, tag = "2")]
    pub records: Payload,
    /// If it has changed.
    #[prost(message, optional, tag = "3")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FromHub {
    #[prost(oneof = "from_hub::What", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub what: Option<from_hub::What>,
}

pub mod from_hub {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum What {
        #[prost(message, tag = "1")]
        Welcome(Welcome),
        #[prost(message, tag = "2")]
        Refused(Refused),
        /// The changes after the client's position follow. With the status as it is now.
        #[prost(message, tag = "3")]
        Resume(Status),
        #[prost(message, tag = "4")]
        Compare(()),
        #[prost(message, tag = "5")]
        Begin(Begin),
        #[prost(message, tag = "6")]
        Bucket(Bucket),
        #[prost(message, tag = "7")]
        End(End),
        #[prost(message, tag = "8")]
        Changes(Changes),
        #[prost(message, tag = "9")]
        Ping(()),
        /// The hub ends, or has too many clients: another one is the better choice.
        #[prost(message, tag = "10")]
        Leave(()),
    }

    impl What {
        pub fn frame(self) -> Bytes {
            frame(&FromHub { what: Some(self) })
        }
    }
}

impl FromHub {
    pub fn read(bytes: Bytes) -> Result<from_hub::What, ProtocolError> {
        FromHub::decode(bytes)?.what.ok_or(ProtocolError::Empty)
    }
}
