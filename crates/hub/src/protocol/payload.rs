//! Records as they travel: many in one piece, compressed if that makes them smaller.

use super::{MOST_FROM_HUB, Record};
use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};

/// Of zstd: the fastest are good enough, since each piece is compressed once and sent often.
const LEVEL: i32 = 1;
/// Records of one piece. A hub sends 1 MiB of keys and values at most together, and a key is longer than 16 bytes.
pub const MAX_PAYLOAD_RECORDS: usize = (1 << 20) / 16;

#[derive(Clone, PartialEq, Message)]
pub struct Payload {
    #[prost(bytes = "bytes", tag = "1")]
    content: Bytes,
    /// The length of the content before it was compressed with zstd; 0 if it was not.
    #[prost(uint32, tag = "2")]
    raw_length: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Records {
    #[prost(message, repeated, tag = "1")]
    records: Vec<Record>,
}

#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("content of {length} bytes; at most {MOST_FROM_HUB} are taken")]
    TooLong { length: usize },
    #[error("content of {count} records; at most {MAX_PAYLOAD_RECORDS} are taken")]
    TooMany { count: usize },
    #[error("content that cannot be decompressed: {0}")]
    Compression(std::io::Error),
    #[error("content that is no list of records: {0}")]
    Records(#[from] DecodeError),
}

impl Payload {
    pub fn of(records: Vec<Record>) -> Payload {
        let raw = Records { records }.encode_to_vec();
        match (zstd::bulk::compress(&raw, LEVEL), u32::try_from(raw.len())) {
            (Ok(compressed), Ok(raw_length)) if compressed.len() < raw.len() => {
                Payload { content: compressed.into(), raw_length }
            }
            _ => Payload { content: raw.into(), raw_length: 0 },
        }
    }

    pub fn records(&self) -> Result<Vec<Record>, PayloadError> {
        let length = usize::try_from(self.raw_length).unwrap_or(usize::MAX).max(self.content.len());
        if length > MOST_FROM_HUB {
            return Err(PayloadError::TooLong { length });
        }
        let raw = match self.raw_length {
            0 => self.content.clone(),
            _ => zstd::bulk::decompress(&self.content, length).map_err(PayloadError::Compression)?.into(),
        };
        // Before they are decoded: a record of two bytes takes fifty times as much in memory.
        let count = count_fields(raw.clone())?;
        if count > MAX_PAYLOAD_RECORDS {
            return Err(PayloadError::TooMany { count });
        }
        Ok(Records::decode(raw)?.records)
    }

    pub fn raw_bytes(&self) -> usize {
        usize::try_from(self.raw_length).unwrap_or(usize::MAX).max(self.content.len())
    }
}

/// The fields of a message, whatever they are.
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
        let fits = Payload::of(vec![Record::default(); MAX_PAYLOAD_RECORDS]);
        assert_eq!(fits.records().unwrap().len(), MAX_PAYLOAD_RECORDS);
        let more = Payload::of(vec![Record::default(); MAX_PAYLOAD_RECORDS + 1]);
        let error = more.records().unwrap_err();
        assert!(
            matches!(error, PayloadError::TooMany { count } if count == MAX_PAYLOAD_RECORDS + 1),
            "{error}"
        );
    }
}
