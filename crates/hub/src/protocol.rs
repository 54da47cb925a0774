//! What hub and client say to each other: frames of a length (four bytes, big endian) and a protobuf message.
//!
//! ```text
//! client                                   hub
//!   Hello{versions, node, position, marks}  ->
//!                                           <- Welcome{version, epoch}  or Refused{reason}
//!   the position is in the hub's log:       <- Resume, Changes, Changes, ...
//!   the client knows nothing:               <- Begin, Bucket, Bucket, ..., End, Changes, ...
//!   else:                                   <- Compare
//!   Digests                                 ->
//!                                           <- Begin, the buckets that differ, End, Changes, ...
//!   Pong                                    -> <- Ping
//! ```
//!
//! `Compare` may come later too: to a client that is so slow that the log no longer has what it needs next. `Leave` asks the
//! client to go to another hub.

mod message;
mod payload;
mod record;

pub use message::{
    Begin, Bucket, Changes, Digests, End, FromClient, FromHub, Hello, Position, Refused, Status, Welcome,
    from_client, from_hub,
};
pub use payload::{Payload, PayloadError};
pub use record::{
    Record, What, class_of, class_of_range, collection_of, from_record, key_of_kind, to_record,
};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use sha2::{Digest as _, Sha256};

/// The first field of the first frame: who says something else is no client of a hub.
pub const MAGIC: u64 = 0x746f_7274_6965_6875;
/// Versions that this code speaks. A field that is new and may be ignored needs no new version.
pub const OLDEST: u32 = 1;
pub const NEWEST: u32 = 1;

/// Keys are spread over this many buckets by their hash: the unit in which hub and client compare what they know.
pub const BUCKETS: usize = 1024;
/// The largest frame a client may send: digests are 8 KiB, marks less. Every client may have one that is half sent.
pub const MOST_FROM_CLIENT: usize = 16 << 10;
/// The largest frame of a hub, and the largest content of one after decompression.
pub const MOST_FROM_HUB: usize = 16 << 20;
/// The largest entry that is passed on. The stores themselves take far less.
pub const MOST_OF_RECORD: usize = 8 << 20;
const LENGTH: usize = 4;

/// The version to speak with somebody who speaks these.
pub fn common_version(oldest: u32, newest: u32) -> Option<u32> {
    let version = NEWEST.min(newest);
    (version >= OLDEST.max(oldest)).then_some(version)
}

/// What is not said as this protocol says it.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    #[error("a frame of {length} bytes; at most {most} are taken")]
    TooLong { length: usize, most: usize },
    #[error("a frame is not one of this protocol: {0}")]
    Message(#[from] prost::DecodeError),
    #[error("a message without content, or one of a kind that is not known")]
    Empty,
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error("an unfinished {what} of more than {limit} bytes")]
    Oversized { what: &'static str, limit: usize },
    #[error("{0}")]
    Unexpected(&'static str),
}

/// A message with its length before it, ready to be written to any number of clients.
pub fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(LENGTH + length);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A buffer that grows takes every message.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

/// Takes one frame off the front, if it is there completely.
pub fn unframe(buffer: &mut BytesMut, most: usize) -> Result<Option<Bytes>, ProtocolError> {
    let Some(head) = buffer.first_chunk::<LENGTH>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
    if length > most {
        return Err(ProtocolError::TooLong { length, most });
    }
    if buffer.len() < LENGTH + length {
        return Ok(None);
    }
    Ok(Some(buffer.split_to(LENGTH + length).split_off(LENGTH).freeze()))
}

/// The bucket of a key. Part of the protocol: both sides must agree on it.
pub fn bucket_of(key: &str) -> usize {
    let hash = Sha256::digest(key.as_bytes());
    usize::from(u16::from_be_bytes([hash[0], hash[1]])) % BUCKETS
}

/// A sum of the digests of some entries: equal for the same entries in whatever order they came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(pub u64);

impl Sum {
    pub fn add(&mut self, digest: u64) {
        self.0 = self.0.wrapping_add(digest);
    }

    pub fn remove(&mut self, digest: u64) {
        self.0 = self.0.wrapping_sub(digest);
    }
}

#[cfg(test)]
mod tests;
