//! Encodes a list of keys while it is read: each key is copied once, from its database page into the bytes that are
//! sent. A list that is collected as values and encoded afterwards would be in memory twice.

use super::buffer_pool::{self, PooledBuffer};
use super::directory::StoreIdentity;
use super::history_record::KeyVersion;
use super::limits::ResponseAllowance;
use super::watch::RAFT_TERM;
use bytes::{BufMut, Bytes};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, message};
use tortie_etcd_proto::etcdserverpb::ResponseHeader;

/// Field numbers of `RangeResponse`.
mod field {
    pub const HEADER: u32 = 1;
    pub const KVS: u32 = 2;
    pub const MORE: u32 = 3;
    pub const COUNT: u32 = 4;
}

/// Length of the gRPC prefix of a message: the compression flag and the message length.
const GRPC_PREFIX_BYTES: usize = 5;
/// Maximum size of the first chunk: most responses are small.
const MAX_FIRST_CHUNK_BYTES: usize = 32 * 1024;

/// A `RangeResponse` that is being encoded.
pub struct RangeEncoder {
    /// No chunk is empty.
    chunks: Vec<PooledBuffer>,
    length: usize,
}

/// A complete `RangeResponse` in gRPC wire format.
#[derive(Clone, Debug)]
pub struct EncodedRange {
    pub chunks: Vec<Bytes>,
}

impl RangeEncoder {
    pub fn new(identity: StoreIdentity, revision: i64) -> RangeEncoder {
        let mut first = PooledBuffer::with_capacity(1024);
        first.0.put_bytes(0, GRPC_PREFIX_BYTES);
        let header = ResponseHeader {
            cluster_id: identity.cluster,
            member_id: identity.member,
            revision,
            raft_term: RAFT_TERM,
        };
        message::encode(field::HEADER, &header, &mut first.0);
        RangeEncoder { length: first.0.len(), chunks: vec![first] }
    }

    /// Adds a key. If the allowance is exceeded, drops the bytes collected so far and only counts the size from then
    /// on.
    pub fn push(
        &mut self,
        key: &[u8],
        version: &KeyVersion,
        with_value: bool,
        allowance: &mut ResponseAllowance,
    ) {
        let value = if with_value { version.value } else { &[] };
        let body: usize = list_fields(key, version, value).iter().map(EncodedField::len).sum();
        let length = 1 + encoded_len_varint(body as u64) + body;
        if !allowance.take(length) {
            self.chunks.clear();
            return;
        }
        self.length += length;
        let out = self.room(length);
        encode_key(field::KVS, WireType::LengthDelimited, out);
        encode_varint(body as u64, out);
        for field in list_fields(key, version, value) {
            field.encode(out);
        }
    }

    /// Returns a chunk with room for this many more bytes.
    fn room(&mut self, length: usize) -> &mut Vec<u8> {
        let number = self.chunks.len();
        let is_full = self.chunks.last().is_none_or(|PooledBuffer(last)| match number {
            1 => last.len() + length > MAX_FIRST_CHUNK_BYTES,
            _ => last.capacity() - last.len() < length,
        });
        if is_full {
            let size = if number < buffer_pool::MAX_POOLED_BUFFERS {
                buffer_pool::POOLED_BUFFER_BYTES
            } else {
                buffer_pool::LARGE_BUFFER_BYTES
            };
            self.chunks.push(PooledBuffer::with_capacity(size.max(length)));
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last].0
    }

    pub fn finish(mut self, more: bool, count: i64) -> EncodedRange {
        let mut end = Vec::with_capacity(16);
        EncodedField::Number(field::MORE, more.into()).encode(&mut end);
        EncodedField::Number(field::COUNT, count as u64).encode(&mut end);
        self.length += end.len();
        self.room(end.len()).put_slice(&end);
        let length = (self.length - GRPC_PREFIX_BYTES) as u32;
        if let Some(prefix) = self.chunks.first_mut().and_then(|first| first.0.get_mut(1..GRPC_PREFIX_BYTES))
        {
            prefix.copy_from_slice(&length.to_be_bytes());
        }
        EncodedRange { chunks: self.chunks.into_iter().map(Bytes::from_owner).collect() }
    }
}

/// A field of a message; omitted if it is zero or empty.
enum EncodedField<'a> {
    Number(u32, u64),
    Bytes(u32, &'a [u8]),
}

/// Returns the fields of a `KeyValue`.
fn list_fields<'a>(key: &'a [u8], version: &KeyVersion, value: &'a [u8]) -> [EncodedField<'a>; 6] {
    [
        EncodedField::Bytes(1, key),
        EncodedField::Number(2, version.created as u64),
        EncodedField::Number(3, version.at.main as u64),
        EncodedField::Number(4, version.version as u64),
        EncodedField::Bytes(5, value),
        EncodedField::Number(6, version.lease as u64),
    ]
}

impl EncodedField<'_> {
    fn len(&self) -> usize {
        match self {
            EncodedField::Number(_, 0) | EncodedField::Bytes(_, []) => 0,
            EncodedField::Number(_, value) => 1 + encoded_len_varint(*value),
            EncodedField::Bytes(_, bytes) => 1 + encoded_len_varint(bytes.len() as u64) + bytes.len(),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            EncodedField::Number(_, 0) | EncodedField::Bytes(_, []) => {}
            EncodedField::Number(tag, value) => {
                encode_key(*tag, WireType::Varint, out);
                encode_varint(*value, out);
            }
            EncodedField::Bytes(tag, bytes) => {
                encode_key(*tag, WireType::LengthDelimited, out);
                encode_varint(bytes.len() as u64, out);
                out.put_slice(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{StoreCore, WriteRequest};
    use crate::snapshot::StoreSnapshot;
    use proptest::prelude::*;
    use prost::Message;
    use std::sync::Arc;
    use tortie_etcd_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse};

    fn decode(encoded: &EncodedRange) -> RangeResponse {
        let bytes = encoded.chunks.concat();
        let (prefix, message) = bytes.split_at(GRPC_PREFIX_BYTES);
        assert_eq!(prefix[0], 0, "not compressed");
        assert_eq!(prefix[1..], (message.len() as u32).to_be_bytes());
        RangeResponse::decode(message).unwrap()
    }

    fn put(key: String, size: usize) -> WriteRequest {
        WriteRequest::Put(PutRequest {
            key: key.into(),
            value: vec![b'v'; size].into(),
            ..Default::default()
        })
    }

    fn delete(key: String) -> WriteRequest {
        WriteRequest::Delete(DeleteRangeRequest { key: key.into(), ..Default::default() })
    }

    fn snapshot(groups: &[Vec<WriteRequest>]) -> Arc<StoreSnapshot> {
        let mut core = StoreCore::in_memory().unwrap();
        for group in groups {
            core.apply(group).unwrap();
        }
        core.latest().get()
    }

    fn rejection<T>(outcome: Result<T, crate::RequestError>) -> Result<T, crate::RequestRejection> {
        outcome.map_err(|error| match error {
            crate::RequestError::Rejected(rejection) => rejection,
            crate::RequestError::Storage(fault) => panic!("{fault}"),
        })
    }

    /// Returns the response that is built from values and encoded by the library.
    fn expected(
        snapshot: &StoreSnapshot,
        request: &RangeRequest,
    ) -> Result<RangeResponse, crate::RequestRejection> {
        let mut response = rejection(snapshot.range(request, &mut ResponseAllowance::new(usize::MAX)))?;
        let header = response.header.as_mut().unwrap();
        header.cluster_id = snapshot.identity.cluster;
        header.member_id = snapshot.identity.member;
        header.raft_term = RAFT_TERM;
        Ok(response)
    }

    #[test]
    fn a_list_of_many_chunks_is_whole() {
        for (keys, size) in [(1, 300_000), (3, 262_100), (40, 100_000), (3_000, 600)] {
            let puts = (0..keys).map(|number| put(format!("k{number:05}"), size + number)).collect();
            let snapshot = snapshot(&[puts]);
            let request = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
            let mut allowance = ResponseAllowance::new(usize::MAX);
            let encoded = snapshot.encoded_range(&request, &mut allowance).unwrap();
            assert_eq!(decode(&encoded), expected(&snapshot, &request).unwrap());
            assert!(encoded.chunks.iter().all(|chunk| !chunk.is_empty()));
            // The counted size is the actual size.
            let length: usize = encoded.chunks.iter().map(Bytes::len).sum();
            assert!((allowance.used()..allowance.used() + 100).contains(&length), "{length} {allowance:?}");
            // With one byte less the request is rejected, and the required size is reported.
            let mut short = ResponseAllowance::new(allowance.used() - 1);
            let rejected = rejection(snapshot.encoded_range(&request, &mut short));
            assert_eq!(rejected.map(drop), Err(crate::RequestRejection::ANSWER_TOO_LARGE));
            assert_eq!(short.used(), allowance.used());
        }
    }

    proptest! {
        #[test]
        fn the_encoding_equals_that_of_the_library(
            groups in prop::collection::vec(prop::collection::vec((0u8..12, 0usize..300, any::<bool>()), 1..6), 1..6),
            (from, to, limit) in (0u8..12, 0u8..14, -1i64..6),
            (revision, keys_only, count_only) in (-1i64..9, any::<bool>(), any::<bool>()),
            bounds in (0i64..8, 0i64..8, 0i64..8, 0i64..8),
        ) {
            let key = |number: u8| format!("k{number:02}");
            let groups: Vec<Vec<WriteRequest>> = groups
                .into_iter()
                .map(|group| {
                    let writes = group.into_iter().map(|(number, size, deleted)| {
                        if deleted && size % 3 == 0 { delete(key(number)) } else { put(key(number), size) }
                    });
                    writes.collect()
                })
                .collect();
            let snapshot = snapshot(&groups);
            let range_end = if to == 13 { vec![0] } else { key(to).into_bytes() };
            let mut request = RangeRequest {
                key: key(from).into(),
                range_end: range_end.into(),
                limit,
                revision,
                keys_only,
                count_only,
                ..Default::default()
            };
            for filtered in [false, true] {
                if filtered {
                    let (min_mod, max_mod, min_create, max_create) = bounds;
                    request.min_mod_revision = min_mod;
                    request.max_mod_revision = max_mod;
                    request.min_create_revision = min_create;
                    request.max_create_revision = max_create;
                }
                let encoded = rejection(snapshot.encoded_range(&request, &mut ResponseAllowance::new(usize::MAX)));
                prop_assert_eq!(encoded.map(|encoded| decode(&encoded)), expected(&snapshot, &request));
            }
        }
    }
}
