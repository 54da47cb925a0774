//! The bounded send queue of one watch stream. A client that does not read is stopped at the limit and reads the rest
//! from the history later.

use super::frame::WatchFrame;
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::{Notify, mpsc};

/// Maximum number of frames and bytes that are queued on one stream.
const MAX_QUEUED_FRAMES: usize = 256;
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Number of bytes that every stream may queue, independent of the other streams.
const GUARANTEED_BYTES: usize = 64 * 1024;
/// Maximum number of bytes beyond that on all streams together.
const MAX_TOTAL_QUEUED_BYTES: usize = 64 << 20;

/// Number of bytes queued on all streams of a server.
#[derive(Debug, Default)]
pub struct QueuedBytes(AtomicUsize);

/// The client has disconnected.
pub struct ClientDisconnected;

pub struct WatchFrameSender {
    frames: mpsc::Sender<WatchFrame>,
    level: Arc<QueueLevel>,
}

pub struct WatchFrameReceiver {
    frames: mpsc::Receiver<WatchFrame>,
    level: Arc<QueueLevel>,
}

struct QueueLevel {
    bytes: AtomicUsize,
    in_all: Arc<QueuedBytes>,
    drained: Notify,
}

pub fn queue(in_all: Arc<QueuedBytes>) -> (WatchFrameSender, WatchFrameReceiver) {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_FRAMES);
    let level = Arc::new(QueueLevel { bytes: AtomicUsize::new(0), in_all, drained: Notify::new() });
    (
        WatchFrameSender { frames: sender, level: level.clone() },
        WatchFrameReceiver { frames: receiver, level },
    )
}

impl QueueLevel {
    fn add(&self, size: usize) {
        self.bytes.fetch_add(size, Ordering::Relaxed);
        self.in_all.0.fetch_add(size, Ordering::Relaxed);
    }

    fn remove(&self, size: usize) {
        self.in_all.0.fetch_sub(size, Ordering::Relaxed);
        if self.bytes.fetch_sub(size, Ordering::Relaxed) - size <= GUARANTEED_BYTES {
            self.drained.notify_one();
        }
    }

    fn has_room(&self, size: usize) -> bool {
        let own = self.bytes.load(Ordering::Relaxed) + size;
        let all = self.in_all.0.load(Ordering::Relaxed) + size;
        own <= GUARANTEED_BYTES || (own <= MAX_QUEUED_BYTES && all <= MAX_TOTAL_QUEUED_BYTES)
    }
}

impl WatchFrameSender {
    /// Sends the frame if there is room. Returns whether it was sent.
    pub fn offer(&self, frame: WatchFrame) -> bool {
        let size = frame.size();
        if !self.level.has_room(size) {
            return false;
        }
        self.level.add(size);
        let sent = self.frames.try_send(frame).is_ok();
        if !sent {
            self.level.remove(size);
        }
        sent
    }

    /// Waits for a free slot and reserves it.
    pub async fn reserve(&self) -> Result<FramePermit<'_>, ClientDisconnected> {
        let slot = self.frames.reserve().await.map_err(|_| ClientDisconnected)?;
        Ok(FramePermit { slot, level: &self.level })
    }

    /// Waits until the queue is almost empty: only then is it worth reading more.
    pub async fn drained(&self) -> Result<(), ClientDisconnected> {
        while self.level.bytes.load(Ordering::Relaxed) > GUARANTEED_BYTES {
            tokio::select! {
                () = self.level.drained.notified() => {}
                () = self.frames.closed() => return Err(ClientDisconnected),
            }
        }
        Ok(())
    }
}

/// A reserved slot in the queue.
pub struct FramePermit<'a> {
    slot: mpsc::Permit<'a, WatchFrame>,
    level: &'a QueueLevel,
}

impl FramePermit<'_> {
    pub fn send(self, frame: WatchFrame) {
        self.level.add(frame.size());
        self.slot.send(frame);
    }
}

impl Stream for WatchFrameReceiver {
    type Item = WatchFrame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchFrame>> {
        let receiver = self.get_mut();
        let polled = receiver.frames.poll_recv(context);
        if let Poll::Ready(Some(frame)) = &polled {
            receiver.level.remove(frame.size());
        }
        polled
    }
}

impl Drop for WatchFrameReceiver {
    fn drop(&mut self) {
        self.frames.close();
        while let Ok(frame) = self.frames.try_recv() {
            self.level.remove(frame.size());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::KeyChange;
    use futures::StreamExt;
    use tortie_etcd_proto::mvccpb::KeyValue;

    fn frame(size: usize) -> WatchFrame {
        let kv = KeyValue { key: "k".into(), value: vec![1; size / 2].into(), ..Default::default() };
        WatchFrame { events: vec![Arc::new(KeyChange::put(kv, None))], ..WatchFrame::default() }
    }

    #[tokio::test]
    async fn a_full_stream_leaves_others_their_share() {
        let all = Arc::new(QueuedBytes::default());
        let mut streams: Vec<_> = (0..200).map(|_| queue(all.clone())).collect();
        // No stream is read: each fills up to its limit, until the total limit is reached.
        for (sender, _) in &streams {
            while sender.offer(frame(50_000)) {}
            assert!(sender.level.bytes.load(Ordering::Relaxed) <= MAX_QUEUED_BYTES);
        }
        assert!(all.0.load(Ordering::Relaxed) <= MAX_TOTAL_QUEUED_BYTES + 200 * GUARANTEED_BYTES);
        assert!(!streams[0].0.offer(frame(2 * MAX_QUEUED_BYTES)), "more than a stream may hold");
        // A stream that is read still gets its guaranteed share.
        let (sender, mut receiver) = queue(all.clone());
        for _ in 0..10 {
            assert!(sender.offer(frame(50_000)));
            assert!(receiver.next().await.is_some());
        }
        streams.clear();
        drop((sender, receiver));
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
