//! A queue of frames that are written without copying: they are shared with the ledger and with other clients.

use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::IoSlice;

#[derive(Debug)]
pub struct FrameQueue {
    frames: VecDeque<Bytes>,
    remaining: usize,
}

impl FrameQueue {
    pub fn new(frames: Vec<Bytes>) -> FrameQueue {
        let remaining = frames.iter().map(Bytes::len).sum();
        FrameQueue { frames: frames.into(), remaining }
    }
}

impl Buf for FrameQueue {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.frames.iter().find(|frame| !frame.is_empty()).map_or(&[], |frame| frame)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let frames = self.frames.iter().filter(|frame| !frame.is_empty());
        let mut count = 0;
        for (slice, frame) in slices.iter_mut().zip(frames) {
            *slice = IoSlice::new(frame);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining = self.remaining.saturating_sub(count);
        while let Some(front) = self.frames.front_mut() {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            // Release frames as soon as they are written.
            self.frames.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn frames_are_written_in_order_and_whole() {
        let frames: Vec<Bytes> =
            (0u8..100).map(|number| vec![number; usize::from(number) % 7].into()).collect();
        let expected = frames.concat();
        let (mut writer, mut reader) = tokio::io::duplex(5);
        let writing = tokio::spawn(async move {
            let mut queue = FrameQueue::new(frames);
            writer.write_all_buf(&mut queue).await.unwrap();
            assert_eq!(queue.frames.iter().map(Bytes::len).sum::<usize>(), 0);
        });
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        writing.await.unwrap();
        assert_eq!(received, expected);
    }
}
