//! Reads size-limited frames from a stream. Cancellation-safe: dropping a pending read loses no bytes.

use crate::protocol::{ProtocolError, unframe};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

#[derive(Debug, thiserror::Error)]
pub enum FrameReadError {
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the peer closed the connection")]
    Closed,
}

#[derive(Debug)]
pub struct FrameReader {
    buffer: BytesMut,
    /// Maximum size of a frame.
    max_frame_bytes: usize,
    /// Buffer capacity kept while no frame is pending.
    idle_capacity: usize,
}

impl FrameReader {
    /// Creates a reader that allocates memory for a frame only as its bytes arrive and releases it afterwards.
    pub fn new(max_frame_bytes: usize, idle_capacity: usize) -> FrameReader {
        FrameReader { buffer: BytesMut::new(), max_frame_bytes, idle_capacity }
    }

    /// Reads the next frame.
    pub async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<Bytes, FrameReadError> {
        loop {
            if let Some(frame) = unframe(&mut self.buffer, self.max_frame_bytes)? {
                return Ok(frame);
            }
            if self.buffer.is_empty() && self.buffer.capacity() > self.idle_capacity {
                self.buffer = BytesMut::new();
            }
            self.buffer.reserve(self.idle_capacity);
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(FrameReadError::Closed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn frames_are_reassembled_and_limited() {
        let (mut writer, mut stream) = tokio::io::duplex(64);
        let mut reader = FrameReader::new(8, 16);
        let sending = tokio::spawn(async move {
            for byte in b"\0\0\0\x03abc\0\0\0\0\0\0\0\x08abcdefgh\0\0\0\x09" {
                writer.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            writer
        });
        for expected in ["abc", "", "abcdefgh"] {
            // Cancels the read each time it has to wait.
            let frame = loop {
                tokio::select! {
                    biased;
                    frame = reader.next(&mut stream) => break frame.unwrap(),
                    () = tokio::task::yield_now() => {}
                }
            };
            assert_eq!(frame, expected);
        }
        let error = reader.next(&mut stream).await.unwrap_err();
        assert!(
            matches!(error, FrameReadError::Protocol(ProtocolError::TooLong { length: 9, limit: 8 })),
            "{error}"
        );
        drop(sending.await.unwrap());
        assert!(matches!(FrameReader::new(8, 16).next(&mut stream).await, Err(FrameReadError::Closed)));
    }
}
