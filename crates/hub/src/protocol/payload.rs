//! Records as they travel: many in one piece, compressed if that makes them smaller.

use super::{MOST_FROM_HUB, Record};
use bytes::Bytes;
use prost::Message;

/// Of zstd: the fastest are good enough, since each piece is compressed once and sent often.
const LEVEL: i32 = 1;

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
    #[error("content that cannot be decompressed: {0}")]
    Compression(std::io::Error),
    #[error("content that is no list of records: {0}")]
    Records(#[from] prost::DecodeError),
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
        Ok(Records::decode(raw)?.records)
    }

    pub fn raw_bytes(&self) -> usize {
        usize::try_from(self.raw_length).unwrap_or(usize::MAX).max(self.content.len())
    }
}
