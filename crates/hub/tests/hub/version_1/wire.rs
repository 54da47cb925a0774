//! Version 1 of the protocol as first released: messages, frames, buckets and sums. A copy, independent of changes in
//! the crate; it must never be changed.

use prost::{Message, Oneof};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const MAGIC: u64 = 0x746f_7274_6965_6875;
pub const BUCKETS: usize = 1024;

#[derive(Clone, Copy, PartialEq, Message)]
pub struct V1Position {
    #[prost(fixed64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Hello {
    #[prost(fixed64, tag = "1")]
    pub magic: u64,
    #[prost(uint32, tag = "2")]
    pub oldest: u32,
    #[prost(uint32, tag = "3")]
    pub newest: u32,
    #[prost(string, tag = "4")]
    pub node: String,
    #[prost(message, optional, tag = "5")]
    pub position: Option<V1Position>,
    #[prost(bool, tag = "6")]
    pub empty: bool,
    #[prost(btree_map = "string, uint64", tag = "7")]
    pub marks: BTreeMap<String, u64>,
    #[prost(string, repeated, tag = "8")]
    pub wanted: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Digests {
    #[prost(fixed64, repeated, tag = "1")]
    pub sums: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1FromClient {
    #[prost(oneof = "V1ClientMessage", tags = "1, 2, 3")]
    pub what: Option<V1ClientMessage>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum V1ClientMessage {
    #[prost(message, tag = "1")]
    Hello(V1Hello),
    #[prost(message, tag = "2")]
    Digests(V1Digests),
    #[prost(message, tag = "3")]
    Pong(()),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct V1Welcome {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(fixed64, tag = "2")]
    pub epoch: u64,
    #[prost(bool, tag = "3")]
    pub behind: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Refused {
    #[prost(string, tag = "1")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Status {
    #[prost(string, optional, tag = "1")]
    pub trouble: Option<String>,
    #[prost(uint64, tag = "2")]
    pub failed_attempts: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Begin {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, optional, tag = "2")]
    pub status: Option<V1Status>,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Bucket {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(uint64, tag = "2")]
    pub changed: u64,
    #[prost(bool, tag = "3")]
    pub more: bool,
    #[prost(message, required, tag = "4")]
    pub records: V1Payload,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1End {
    #[prost(btree_map = "string, uint64", tag = "1")]
    pub marks: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Changes {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, required, tag = "2")]
    pub records: V1Payload,
    #[prost(message, optional, tag = "3")]
    pub status: Option<V1Status>,
}

#[derive(Clone, PartialEq, Message)]
pub struct V1FromHub {
    #[prost(oneof = "V1HubMessage", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub what: Option<V1HubMessage>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum V1HubMessage {
    #[prost(message, tag = "1")]
    Welcome(V1Welcome),
    #[prost(message, tag = "2")]
    Refused(V1Refused),
    #[prost(message, tag = "3")]
    Resume(V1Status),
    #[prost(message, tag = "4")]
    Compare(()),
    #[prost(message, tag = "5")]
    Begin(V1Begin),
    #[prost(message, tag = "6")]
    Bucket(V1Bucket),
    #[prost(message, tag = "7")]
    End(V1End),
    #[prost(message, tag = "8")]
    Changes(V1Changes),
    #[prost(message, tag = "9")]
    Ping(()),
    #[prost(message, tag = "10")]
    Leave(()),
}

#[derive(Clone, PartialEq, Message)]
pub struct V1Payload {
    #[prost(bytes = "vec", tag = "1")]
    content: Vec<u8>,
    /// Length before zstd compression; 0 if it is not compressed.
    #[prost(uint32, tag = "2")]
    raw_length: u32,
}

#[derive(Clone, PartialEq, Message)]
struct V1Records {
    #[prost(message, repeated, tag = "1")]
    records: Vec<V1Record>,
}

pub const PUT: i32 = 0;
pub const DELETE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct V1Record {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(int32, tag = "2")]
    pub what: i32,
    #[prost(string, tag = "3")]
    pub revision: String,
    #[prost(bytes = "vec", tag = "4")]
    pub value: Vec<u8>,
    #[prost(string, tag = "5")]
    pub reason: String,
}

impl V1Payload {
    pub fn of(records: Vec<V1Record>) -> V1Payload {
        let raw = V1Records { records }.encode_to_vec();
        let compressed = zstd::bulk::compress(&raw, 1).unwrap();
        V1Payload { content: compressed, raw_length: raw.len() as u32 }
    }

    pub fn records(&self) -> Vec<V1Record> {
        let raw = match self.raw_length {
            0 => self.content.clone(),
            length => zstd::bulk::decompress(&self.content, length as usize).unwrap(),
        };
        V1Records::decode(&raw[..]).unwrap().records
    }
}

impl V1Record {
    pub fn digest(&self) -> u64 {
        let mut hash = Sha256::new();
        hash.update((self.key.len() as u64).to_be_bytes());
        hash.update(self.key.as_bytes());
        hash.update(self.revision.as_bytes());
        u64::from_be_bytes(hash.finalize()[..8].try_into().unwrap())
    }

    pub fn bucket(&self) -> usize {
        let hash = Sha256::digest(self.key.as_bytes());
        usize::from(u16::from_be_bytes([hash[0], hash[1]])) % BUCKETS
    }
}

/// Returns the bucket sums of these records.
pub fn sums<'a>(records: impl Iterator<Item = &'a V1Record>) -> Vec<u64> {
    let mut sums = vec![0_u64; BUCKETS];
    for record in records {
        let sum = &mut sums[record.bucket()];
        *sum = sum.wrapping_add(record.digest());
    }
    sums
}

pub async fn send(stream: &mut TcpStream, message: &impl Message) -> std::io::Result<()> {
    let message = message.encode_to_vec();
    stream.write_all(&[&(message.len() as u32).to_be_bytes()[..], &message].concat()).await
}

/// Receives a message; `None` if the peer closed the connection.
pub async fn receive<M: Message + Default>(stream: &mut TcpStream) -> Option<M> {
    let mut bytes = vec![0; stream.read_u32().await.ok()? as usize];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(M::decode(&bytes[..]).unwrap())
}
