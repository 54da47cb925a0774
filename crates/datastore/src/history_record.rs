//! The layout of key versions in the main table.
//!
//! `history` maps a revision to the version that it created, in the order in which watchers replay it: every write is
//! an append. Each entry refers to the previous version of the key, so that older versions are found from the newest
//! one.

use super::storage_fault::StorageFault;
use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{decode_varint, encode_varint};

use tortie_etcd_proto::mvccpb::KeyValue;

/// The revision of one change, as in etcd: the revision of its transaction and its position in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitRevision {
    pub main: i64,
    pub sub: u32,
}

impl CommitRevision {
    /// Returns the key for the history table.
    pub fn key(self) -> (u64, u32) {
        (self.main.max(0) as u64, self.sub)
    }

    pub fn from_key((main, sub): (u64, u32)) -> CommitRevision {
        CommitRevision { main: i64::try_from(main).unwrap_or(i64::MAX), sub }
    }
}

/// One version of a key. The value borrows from its database page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyVersion<'a> {
    pub at: CommitRevision,
    pub deleted: bool,
    pub created: i64,
    pub version: i64,
    pub lease: i64,
    pub value: &'a [u8],
}

impl KeyVersion<'_> {
    pub fn key_value(&self, key: Bytes) -> KeyValue {
        KeyValue {
            key,
            create_revision: self.created,
            mod_revision: self.at.main,
            version: self.version,
            value: Bytes::copy_from_slice(self.value),
            lease: self.lease,
        }
    }
}

/// A version in the history with its key and the position of the previous version (zero if it is the first).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry<'a> {
    pub key: &'a [u8],
    pub previous: CommitRevision,
    pub version: KeyVersion<'a>,
}

const PUT_TAG: u8 = 1;
const TOMBSTONE_TAG: u8 = 2;

pub fn encode_history(entry: &HistoryEntry, out: &mut Vec<u8>) {
    out.clear();
    out.put_u8(if entry.version.deleted { TOMBSTONE_TAG } else { PUT_TAG });
    encode_varint(entry.previous.main as u64, out);
    encode_varint(entry.previous.sub.into(), out);
    encode_varint(entry.key.len() as u64, out);
    out.put_slice(entry.key);
    encode_state(&entry.version, out);
    out.put_slice(entry.version.value);
}

pub fn decode_history(at: CommitRevision, mut bytes: &[u8]) -> Result<HistoryEntry<'_>, StorageFault> {
    let deleted = kind(&mut bytes)?;
    let previous = revision(&mut bytes)?;
    let length = usize::try_from(number(&mut bytes)?).map_err(|_| StorageFault::Record)?;
    let (key, rest) = bytes.split_at_checked(length).ok_or(StorageFault::Record)?;
    Ok(HistoryEntry { key, previous, version: state(rest, deleted, at)? })
}

fn encode_state(version: &KeyVersion, out: &mut Vec<u8>) {
    encode_varint(version.created as u64, out);
    encode_varint(version.version as u64, out);
    encode_varint(version.lease as u64, out);
}

fn state(mut bytes: &[u8], deleted: bool, at: CommitRevision) -> Result<KeyVersion<'_>, StorageFault> {
    let created = number(&mut bytes)? as i64;
    let version = number(&mut bytes)? as i64;
    let lease = number(&mut bytes)? as i64;
    Ok(KeyVersion { at, deleted, created, version, lease, value: bytes })
}

fn kind(bytes: &mut &[u8]) -> Result<bool, StorageFault> {
    if !bytes.has_remaining() {
        return Err(StorageFault::Record);
    }
    match bytes.get_u8() {
        PUT_TAG => Ok(false),
        TOMBSTONE_TAG => Ok(true),
        _ => Err(StorageFault::Record),
    }
}

fn revision(bytes: &mut &[u8]) -> Result<CommitRevision, StorageFault> {
    let main = number(bytes)? as i64;
    let sub = u32::try_from(number(bytes)?).map_err(|_| StorageFault::Record)?;
    Ok(CommitRevision { main, sub })
}

fn number(bytes: &mut &[u8]) -> Result<u64, StorageFault> {
    decode_varint(bytes).map_err(|_| StorageFault::Record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn versions_survive_the_tables(main in 1i64.., sub: u32, created in 0i64.., version in 0i64.., lease: i64,
            deleted: bool, key: Vec<u8>, value: Vec<u8>, previous in 0i64.., previous_sub: u32)
        {
            let at = CommitRevision { main, sub };
            let v = KeyVersion { at, deleted, created, version, lease, value: &value };
            let mut out = Vec::new();
            let entry = HistoryEntry { key: &key, previous: CommitRevision { main: previous, sub: previous_sub }, version: v };
            encode_history(&entry, &mut out);
            prop_assert_eq!(decode_history(at, &out).unwrap(), entry);
        }

        #[test]
        fn garbage_is_refused_not_fatal(bytes: Vec<u8>) {
            let _ = decode_history(CommitRevision::default(), &bytes);
        }
    }
}
