//! A list of records as sent on the wire, compressed if that makes it smaller.

use super::{FeedRecord, MAX_HUB_FRAME_BYTES};
use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, decode_key, message, skip_field};
use prost::{DecodeError, Message};

/// zstd compression level. The fastest is good enough: a payload is compressed once and sent to many clients.
const ZSTD_LEVEL: i32 = 1;
/// Maximum number of records in a payload. A hub puts at most 1 MiB of keys and values into one, and a key is longer
/// than 16 bytes.
pub const MAX_PAYLOAD_RECORDS: usize = (1 << 20) / 16;

#[derive(Clone, PartialEq, Message)]
pub struct RecordPayload {
    #[prost(bytes = "bytes", tag = "1")]
    content: Bytes,
    /// Length of the content before zstd compression; 0 if it is not compressed.
    #[prost(uint32, tag = "2")]
    raw_length: u32,
}

/// Field number of `RecordList::records`.
const RECORDS_TAG: u32 = 1;

#[derive(Clone, PartialEq, Message)]
struct RecordList {
    #[prost(message, repeated, tag = "1")]
    records: Vec<FeedRecord>,
}

#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("content of {length} bytes exceeds the limit of {MAX_HUB_FRAME_BYTES}")]
    TooLong { length: usize },
    #[error("content of {count} records exceeds the limit of {MAX_PAYLOAD_RECORDS}")]
    TooMany { count: usize },
    #[error("cannot decompress the content: {0}")]
    Compression(std::io::Error),
    #[error("the content is not a list of records: {0}")]
    Records(#[from] DecodeError),
}

impl RecordPayload {
    pub fn new<'a>(records: impl IntoIterator<Item = &'a FeedRecord>) -> RecordPayload {
        let mut raw = Vec::new();
        for record in records {
            message::encode(RECORDS_TAG, record, &mut raw);
        }
        match (zstd::bulk::compress(&raw, ZSTD_LEVEL), u32::try_from(raw.len())) {
            (Ok(compressed), Ok(raw_length)) if compressed.len() < raw.len() => {
                RecordPayload { content: compressed.into(), raw_length }
            }
            _ => RecordPayload { content: raw.into(), raw_length: 0 },
        }
    }

    pub fn records(&self) -> Result<Vec<FeedRecord>, PayloadError> {
        let length = self.raw_bytes();
        if length > MAX_HUB_FRAME_BYTES {
            return Err(PayloadError::TooLong { length });
        }
        let raw = match self.raw_length {
            0 => self.content.clone(),
            _ => zstd::bulk::decompress(&self.content, length).map_err(PayloadError::Compression)?.into(),
        };
        // Counted before decoding: a record of two bytes takes fifty times as much in memory.
        let count = count_fields(raw.clone())?;
        if count > MAX_PAYLOAD_RECORDS {
            return Err(PayloadError::TooMany { count });
        }
        Ok(RecordList::decode(raw)?.records)
    }

    /// Returns the size of the content before compression.
    pub fn raw_bytes(&self) -> usize {
        usize::try_from(self.raw_length).unwrap_or(usize::MAX).max(self.content.len())
    }
}

/// Counts the top-level fields of a protobuf message.
fn count_fields(mut message: Bytes) -> Result<usize, DecodeError> {
    let mut count = 0;
    while message.has_remaining() {
        let (tag, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, tag, &mut message, DecodeContext::default())?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_two_bytes_are_counted_first() {
        let fits = RecordPayload::new(&vec![FeedRecord::default(); MAX_PAYLOAD_RECORDS]);
        assert_eq!(fits.records().unwrap().len(), MAX_PAYLOAD_RECORDS);
        let more = RecordPayload::new(&vec![FeedRecord::default(); MAX_PAYLOAD_RECORDS + 1]);
        let error = more.records().unwrap_err();
        assert!(
            matches!(error, PayloadError::TooMany { count } if count == MAX_PAYLOAD_RECORDS + 1),
            "{error}"
        );
    }
}
