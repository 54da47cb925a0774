//! The HTTP body of a watch stream. Large events are not copied: all streams that carry one, and the connections
//! below them, share its bytes, so that clients that do not read cost little memory.

use super::frame::{EventSink, WatchFrame};
use crate::directory::StoreIdentity;
use crate::rejection::success;
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use http_body::{Body, Frame as HttpFrame};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::codegen::http::HeaderMap;

/// Approximate maximum size of frames that are sent together.
const CHUNK_BYTES: usize = 32 * 1024;
/// Minimum size of an event that is shared instead of copied.
const MIN_SHARED_BYTES: usize = 8 * 1024;

pub struct WatchBody<S> {
    frames: S,
    identity: StoreIdentity,
    assembly: ChunkAssembly,
    ended: bool,
}

impl<S> WatchBody<S> {
    pub fn new(frames: S, identity: StoreIdentity) -> WatchBody<S> {
        WatchBody { frames, identity, assembly: ChunkAssembly::default(), ended: false }
    }
}

impl<S: Stream<Item = WatchFrame> + Unpin> Body for WatchBody<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<HttpFrame<Bytes>, Status>>> {
        let body = self.get_mut();
        while body.assembly.chunks.is_empty() && !body.ended {
            match Pin::new(&mut body.frames).poll_next(context) {
                Poll::Ready(Some(frame)) => body.assembly.append(&frame, body.identity),
                Poll::Ready(None) => {
                    body.ended = true;
                    body.assembly.flush();
                }
                Poll::Pending if body.assembly.buffer.is_empty() => return Poll::Pending,
                Poll::Pending => body.assembly.flush(),
            }
        }
        if let Some(chunk) = body.assembly.chunks.pop_front() {
            return Poll::Ready(Some(Ok(HttpFrame::data(chunk))));
        }
        Poll::Ready(body.assembly.trailers().map(|trailers| Ok(HttpFrame::trailers(trailers))))
    }
}

/// Chunks that are being assembled.
#[derive(Default)]
struct ChunkAssembly {
    buffer: BytesMut,
    chunks: VecDeque<Bytes>,
    closed: bool,
}

impl ChunkAssembly {
    fn append(&mut self, frame: &WatchFrame, identity: StoreIdentity) {
        let head = frame.head(identity);
        // The gRPC prefix: not compressed, and the length of the message.
        self.buffer.put_u8(0);
        self.buffer.put_u32(u32::try_from(head.len() + frame.events_len()).unwrap_or(u32::MAX));
        self.buffer.put_slice(&head);
        frame.encode_events(self);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.buffer).freeze());
        }
    }

    /// Returns the trailers of a successful stream, once, after all data.
    fn trailers(&mut self) -> Option<HeaderMap> {
        if std::mem::replace(&mut self.closed, true) {
            return None;
        }
        Some(success())
    }
}

impl EventSink for ChunkAssembly {
    fn copied(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() < MIN_SHARED_BYTES {
            self.buffer.put_slice(bytes);
        } else {
            self.flush();
            self.chunks.push_back(bytes.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::KeyChange;
    use prost::Message;
    use std::sync::Arc;
    use tortie_etcd_proto::etcdserverpb::WatchResponse;
    use tortie_etcd_proto::mvccpb::KeyValue;

    fn change(size: usize) -> Arc<KeyChange> {
        let kv = KeyValue { key: "k".into(), value: vec![1; size].into(), ..Default::default() };
        Arc::new(KeyChange::put(kv, None))
    }

    #[tokio::test]
    async fn messages_keep_their_order_and_share_large_events() {
        let frames: Vec<WatchFrame> = [vec![1, 20_000, 3], vec![], vec![10], vec![9_000, 9_000]]
            .into_iter()
            .map(|sizes| WatchFrame {
                events: sizes.into_iter().map(change).collect(),
                ..WatchFrame::default()
            })
            .collect();
        let large = frames[0].events[1].event(false).clone();
        let identity = StoreIdentity { cluster: 1, member: 2 };
        let mut body = WatchBody::new(futures::stream::iter(frames), identity);
        let (mut bytes, mut trailers, mut shared) = (Vec::new(), 0, 0);
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            match frame.unwrap().into_data() {
                Ok(data) => {
                    shared += usize::from(data.as_ptr() == large.as_ptr());
                    bytes.extend_from_slice(&data);
                }
                Err(_) => trailers += 1,
            }
        }
        assert_eq!((trailers, shared), (1, 1));
        let mut rest = bytes.as_slice();
        let mut seen = Vec::new();
        while let Some((prefix, more)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
            let response = WatchResponse::decode(&more[..length]).unwrap();
            let sizes = response.events.iter().map(|event| event.kv.as_ref().unwrap().value.len());
            seen.push(sizes.collect::<Vec<_>>());
            rest = &more[length..];
        }
        assert_eq!(seen, [vec![1, 20_000, 3], vec![], vec![10], vec![9_000, 9_000]]);
    }
}
