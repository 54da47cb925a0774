//! The protocol between hub and client: frames of a length (four bytes, big endian) and a protobuf message.
//!
//! ```text
//! client                                   hub
//!   Hello{versions, node, position, marks}  ->
//!                                           <- Welcome{version, epoch}  or Refused{reason}
//!   the position is in the hub's log:       <- Resume, Changes, Changes, ...
//!   the client has no entries:              <- Begin, Bucket, Bucket, ..., End, Changes, ...
//!   else:                                   <- Compare
//!   Digests                                 ->
//!                                           <- Begin, the buckets that differ, End, Changes, ...
//!   Pong                                    -> <- Ping
//! ```
//!
//! The hub also sends `Compare` later, to a client that is so slow that the log no longer holds its next change.
//! `Leave` asks the client to connect to another hub.

mod message;
mod payload;
mod record;

pub use message::{
    BeginMessage, BucketMessage, ChangesMessage, ClientMessage, DigestsMessage, EndMessage, HelloMessage,
    HubMessage, HubPosition, HubStoreStatus, RefusedMessage, WelcomeMessage,
};
pub use payload::{PayloadError, RecordPayload};
pub use record::{
    FeedRecord, RecordAction, build_key_prefix, find_class, find_collection, find_range_class, from_record,
    to_record,
};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use sha2::{Digest as _, Sha256};

/// First field of the first frame; the hub rejects connections that send anything else.
pub const PROTOCOL_MAGIC: u64 = 0x746f_7274_6965_6875;
/// Protocol versions supported by this code. A new field that receivers may ignore does not need a new version.
pub const OLDEST_PROTOCOL_VERSION: u32 = 1;
pub const NEWEST_PROTOCOL_VERSION: u32 = 1;

/// Number of buckets over which keys are spread by their hash. Hub and client compare their state bucket by bucket.
pub const BUCKET_COUNT: usize = 1024;
/// Maximum frame size of a client: digests take 8 KiB, marks less. Every connection may hold a partial frame of this
/// size.
pub const MAX_CLIENT_FRAME_BYTES: usize = 16 << 10;
/// Maximum frame size of a hub, also after decompression.
pub const MAX_HUB_FRAME_BYTES: usize = 16 << 20;
/// Maximum size of an entry sent to clients. The datastores accept far less.
pub const MAX_RECORD_BYTES: usize = 8 << 20;
const LENGTH_PREFIX_BYTES: usize = 4;

/// Returns the newest version that both sides support.
pub fn choose_version(oldest: u32, newest: u32) -> Option<u32> {
    let version = NEWEST_PROTOCOL_VERSION.min(newest);
    (version >= OLDEST_PROTOCOL_VERSION.max(oldest)).then_some(version)
}

/// Violation of the protocol by the peer.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    #[error("a frame of {length} bytes exceeds the limit of {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("a frame is not a message of this protocol: {0}")]
    Message(#[from] prost::DecodeError),
    #[error("a message without content or of an unknown type")]
    Empty,
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error("an unfinished {what} of more than {limit} bytes")]
    Oversized { what: &'static str, limit: usize },
    #[error("{0}")]
    Unexpected(&'static str),
}

/// Encodes a message with its length prefix, ready to be written to any number of clients.
pub fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(LENGTH_PREFIX_BYTES + length);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Encoding into a growable buffer cannot fail.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

/// Removes one frame from the front of the buffer, if it is complete.
pub fn unframe(buffer: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, ProtocolError> {
    let Some(head) = buffer.first_chunk::<LENGTH_PREFIX_BYTES>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
    if length > limit {
        return Err(ProtocolError::TooLong { length, limit });
    }
    if buffer.len() < LENGTH_PREFIX_BYTES + length {
        return Ok(None);
    }
    Ok(Some(buffer.split_to(LENGTH_PREFIX_BYTES + length).split_off(LENGTH_PREFIX_BYTES).freeze()))
}

/// Returns the bucket of a key. Part of the protocol: both sides must compute the same.
pub fn choose_bucket(key: &str) -> usize {
    let hash = Sha256::digest(key.as_bytes());
    usize::from(u16::from_be_bytes([hash[0], hash[1]])) % BUCKET_COUNT
}

/// Sum of the digests of a set of entries, independent of the order in which they were added and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestSum(pub u64);

impl DigestSum {
    pub fn add(&mut self, digest: u64) {
        self.0 = self.0.wrapping_add(digest);
    }

    pub fn remove(&mut self, digest: u64) {
        self.0 = self.0.wrapping_sub(digest);
    }
}

#[cfg(test)]
mod tests;
