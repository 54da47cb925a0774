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
pub struct Position {
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
    #[prost(string, tag = "4")]
    pub node: String,
    #[prost(message, optional, tag = "5")]
    pub position: Option<Position>,
    #[prost(bool, tag = "6")]
    pub empty: bool,
    #[prost(btree_map = "string, uint64", tag = "7")]
    pub marks: BTreeMap<String, u64>,
    #[prost(string, repeated, tag = "8")]
    pub wanted: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Digests {
    #[prost(fixed64, repeated, tag = "1")]
    pub sums: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FromClient {
    #[prost(oneof = "Said", tags = "1, 2, 3")]
    pub what: Option<Said>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Said {
    #[prost(message, tag = "1")]
    Hello(Hello),
    #[prost(message, tag = "2")]
    Digests(Digests),
    #[prost(message, tag = "3")]
    Pong(()),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Welcome {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(fixed64, tag = "2")]
    pub epoch: u64,
    #[prost(bool, tag = "3")]
    pub behind: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Refused {
    #[prost(string, tag = "1")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(string, optional, tag = "1")]
    pub trouble: Option<String>,
    #[prost(uint64, tag = "2")]
    pub failed_attempts: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Begin {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, optional, tag = "2")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Bucket {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(uint64, tag = "2")]
    pub changed: u64,
    #[prost(bool, tag = "3")]
    pub more: bool,
    #[prost(message, required, tag = "4")]
    pub records: Payload,
}

#[derive(Clone, PartialEq, Message)]
pub struct End {
    #[prost(btree_map = "string, uint64", tag = "1")]
    pub marks: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Changes {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(message, required, tag = "2")]
    pub records: Payload,
    #[prost(message, optional, tag = "3")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FromHub {
    #[prost(oneof = "Heard", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub what: Option<Heard>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Heard {
    #[prost(message, tag = "1")]
    Welcome(Welcome),
    #[prost(message, tag = "2")]
    Refused(Refused),
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
    #[prost(message, tag = "10")]
    Leave(()),
}

#[derive(Clone, PartialEq, Message)]
pub struct Payload {
    #[prost(bytes = "vec", tag = "1")]
    content: Vec<u8>,
    /// Length before zstd compression; 0 if it is not compressed.
    #[prost(uint32, tag = "2")]
    raw_length: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Records {
    #[prost(message, repeated, tag = "1")]
    records: Vec<Record>,
}

pub const PUT: i32 = 0;
pub const DELETE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct Record {
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

impl Payload {
    pub fn of(records: Vec<Record>) -> Payload {
        let raw = Records { records }.encode_to_vec();
        let compressed = zstd::bulk::compress(&raw, 1).unwrap();
        Payload { content: compressed, raw_length: raw.len() as u32 }
    }

    pub fn records(&self) -> Vec<Record> {
        let raw = match self.raw_length {
            0 => self.content.clone(),
            length => zstd::bulk::decompress(&self.content, length as usize).unwrap(),
        };
        Records::decode(&raw[..]).unwrap().records
    }
}

impl Record {
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
pub fn sums<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<u64> {
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
