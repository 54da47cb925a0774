//! Splits the byte stream of a connection into messages, without copying messages that arrive whole.

use bytes::{Buf, Bytes, BytesMut};
use rustbgpd_wire::constants::HEADER_LEN;
use rustbgpd_wire::{DecodeError, peek_message_length};

#[derive(Debug, Default)]
pub struct MessageFramer {
    /// The beginning of a message that has not arrived completely.
    partial: BytesMut,
    chunk: Bytes,
}

impl MessageFramer {
    /// Adds bytes that were read. Copies the bytes of the previous chunk that [`MessageFramer::next`] has not consumed.
    pub fn push(&mut self, chunk: Bytes) {
        self.partial.extend_from_slice(&self.chunk);
        self.chunk = chunk;
    }

    /// Returns the number of bytes that have not been consumed.
    pub fn len(&self) -> usize {
        self.partial.len() + self.chunk.len()
    }

    /// Returns the next complete message, including its header.
    pub fn next(&mut self, limit: u16) -> Result<Option<Bytes>, DecodeError> {
        if self.partial.is_empty() {
            if let Some(length) = peek_message_length(&self.chunk, limit)?
                && self.chunk.len() >= usize::from(length)
            {
                return Ok(Some(self.chunk.split_to(usize::from(length))));
            }
            self.fill(self.chunk.len());
            return Ok(None);
        }
        self.fill(HEADER_LEN);
        let Some(length) = peek_message_length(&self.partial, limit)? else { return Ok(None) };
        self.fill(usize::from(length));
        if self.partial.len() < usize::from(length) {
            return Ok(None);
        }
        Ok(Some(self.partial.split_to(usize::from(length)).freeze()))
    }

    /// Moves bytes from the chunk until the partial message has `length` bytes.
    fn fill(&mut self, length: usize) {
        let missing = length.saturating_sub(self.partial.len()).min(self.chunk.len());
        self.partial.extend_from_slice(self.chunk.get(..missing).unwrap_or_default());
        self.chunk.advance(missing);
        if self.chunk.is_empty() {
            self.chunk = Bytes::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(body: &[u8]) -> Vec<u8> {
        let mut message = vec![0xff; 16];
        message.extend(((HEADER_LEN + body.len()) as u16).to_be_bytes());
        message.push(2);
        message.extend(body);
        message
    }

    proptest! {
        #[test]
        fn messages_come_out_whole_from_any_fragments(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20),
            cuts in proptest::collection::vec(1usize..300, 1..20),
        ) {
            let messages: Vec<Vec<u8>> = bodies.iter().map(|body| message(body)).collect();
            let mut stream = Bytes::from(messages.concat());
            let mut framer = MessageFramer::default();
            let mut got = Vec::new();
            let mut cuts = cuts.iter().cycle();
            while !stream.is_empty() {
                let cut = (*cuts.next().unwrap()).min(stream.len());
                framer.push(stream.split_to(cut));
                while let Some(message) = framer.next(4096).unwrap() {
                    got.push(message.to_vec());
                }
            }
            prop_assert_eq!(got, messages);
        }
    }

    #[test]
    fn an_invalid_header_is_an_early_error() {
        for (at, byte) in [(0, 0), (16, 0xff), (18, 99)] {
            let mut bad = message(b"");
            bad[at] = byte;
            let mut framer = MessageFramer::default();
            framer.push(Bytes::from(bad));
            assert!(framer.next(4096).is_err(), "byte {at}");
        }
    }
}
