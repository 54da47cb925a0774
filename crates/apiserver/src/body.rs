//! Reads request bodies within a timeout and a memory limit, before a request counts against the request limit, and
//! parses them as JSON or YAML.

use crate::refusal::StatusError;
use axum::body::{Body, BodyDataStream, HttpBody};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tortie_model::codec;

/// Maximum size of a body; etcd would not accept a larger object either.
pub const MAX_BODY_BYTES: usize = 3 << 20;
/// An oversized body is read up to this size and dropped, so that the client has sent it before the error response: a
/// client that is still sending when the connection closes may never see the response.
const MAX_DRAINED_BYTES: usize = 16 << 20;
/// Time within which a body must arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of bytes of bodies held at a time, in total and per sender.
const MAX_HELD_BYTES: usize = 32 << 20;
const MAX_HELD_BYTES_OF_SENDER: usize = 8 << 20;
/// The first bytes of a body are not counted, so that small requests are served while many large ones arrive.
const UNCOUNTED_BYTES: usize = 16 << 10;
/// Maximum number of bodies being read, in total and per sender. This bounds the uncounted bytes: one sender can open
/// 100 streams on each of its connections.
const MAX_UNFINISHED_BODIES: usize = 1_024;
const MAX_UNFINISHED_BODIES_OF_SENDER: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("a body has at most {MAX_BODY_BYTES} bytes")]
    TooLarge,
    #[error("the body did not arrive within {} s", BODY_TIMEOUT.as_secs())]
    TooSlow,
    #[error("too many request bodies are being received")]
    NoRoom,
    #[error("the body ended prematurely")]
    Broken,
}

/// Reads bodies. A sender is identified by its user, or by its address where users are unknown.
#[derive(Clone, Debug, Default)]
pub struct BodyReader(Arc<Mutex<HashMap<String, SenderLoad>>>);

/// Bodies of one sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SenderLoad {
    held_bytes: usize,
    unfinished_bodies: usize,
}

/// A body whose bytes count against the limits until it is dropped.
#[derive(Debug)]
pub struct HeldBody {
    pub bytes: Bytes,
    _share: HeldShare,
}

/// The part of the limits that one body uses.
#[derive(Debug)]
struct HeldShare {
    reader: BodyReader,
    sender: String,
    counted: usize,
}

/// Counts a body as unfinished until it is dropped.
#[derive(Debug)]
struct UnfinishedBody {
    reader: BodyReader,
    sender: String,
}

impl BodyReader {
    pub async fn read(&self, content: Body, sender: &str) -> Result<HeldBody, BodyError> {
        match tokio::time::timeout(BODY_TIMEOUT, self.collect(content, sender)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(BodyError::TooSlow),
        }
    }

    async fn collect(&self, content: Body, sender: &str) -> Result<HeldBody, BodyError> {
        // A request without a body does not count as unfinished.
        let _unfinished = if content.is_end_stream() { None } else { Some(self.begin_body(sender)?) };
        let mut share = HeldShare { reader: self.clone(), sender: sender.to_owned(), counted: 0 };
        let mut bytes = BytesMut::new();
        let mut chunks = content.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| BodyError::Broken)?;
            let size = bytes.len() + chunk.len();
            if size > MAX_BODY_BYTES {
                drop((bytes, share));
                drain(chunks, MAX_DRAINED_BYTES - size.min(MAX_DRAINED_BYTES)).await;
                return Err(BodyError::TooLarge);
            }
            share.grow_to(size.saturating_sub(UNCOUNTED_BYTES))?;
            bytes.extend_from_slice(&chunk);
        }
        Ok(HeldBody { bytes: bytes.freeze(), _share: share })
    }

    fn begin_body(&self, sender: &str) -> Result<UnfinishedBody, BodyError> {
        let mut senders = self.lock_senders();
        let total: usize = senders.values().map(|load| load.unfinished_bodies).sum();
        let own = senders.get(sender).map_or(0, |load| load.unfinished_bodies);
        if total >= MAX_UNFINISHED_BODIES || own >= MAX_UNFINISHED_BODIES_OF_SENDER {
            return Err(BodyError::NoRoom);
        }
        senders.entry(sender.to_owned()).or_default().unfinished_bodies += 1;
        Ok(UnfinishedBody { reader: self.clone(), sender: sender.to_owned() })
    }

    /// Reduces the load of a sender and removes its entry when it is empty.
    fn reduce_load(&self, sender: &str, reduce: impl FnOnce(&mut SenderLoad)) {
        let mut senders = self.lock_senders();
        if let Some(load) = senders.get_mut(sender) {
            reduce(load);
            if *load == SenderLoad::default() {
                senders.remove(sender);
            }
        }
    }

    fn lock_senders(&self) -> MutexGuard<'_, HashMap<String, SenderLoad>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads and drops the rest of the body, up to `left` bytes.
async fn drain(mut chunks: BodyDataStream, mut left: usize) {
    while let Some(Ok(chunk)) = chunks.next().await {
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

impl HeldShare {
    fn grow_to(&mut self, counted: usize) -> Result<(), BodyError> {
        let more = counted.saturating_sub(self.counted);
        if more == 0 {
            return Ok(());
        }
        let mut senders = self.reader.lock_senders();
        let total: usize = senders.values().map(|load| load.held_bytes).sum();
        let own = senders.get(&self.sender).map_or(0, |load| load.held_bytes);
        if total + more > MAX_HELD_BYTES || own + more > MAX_HELD_BYTES_OF_SENDER {
            return Err(BodyError::NoRoom);
        }
        senders.entry(self.sender.clone()).or_default().held_bytes += more;
        self.counted = counted;
        Ok(())
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        if self.counted == 0 {
            return;
        }
        let counted = self.counted;
        self.reader.reduce_load(&self.sender, |load| load.held_bytes -= counted.min(load.held_bytes));
    }
}

impl Drop for UnfinishedBody {
    fn drop(&mut self) {
        self.reader.reduce_load(&self.sender, |load| {
            load.unfinished_bodies = load.unfinished_bodies.saturating_sub(1);
        });
    }
}

/// Parses a body that must contain exactly one object.
pub fn parse_document(body: &[u8]) -> Result<Value, StatusError> {
    let mut documents = codec::documents(body).map_err(|error| refuse_unreadable(&error.to_string()))?;
    match (documents.pop(), documents.pop()) {
        (Some(document @ Value::Object(_)), None) => Ok(document),
        (Some(_), None) => Err(refuse_unreadable("it is not an object")),
        (None, _) => Err(refuse_unreadable("it is empty")),
        (Some(_), Some(_)) => Err(refuse_unreadable("it has more than one document")),
    }
}

fn refuse_unreadable(reason: &str) -> StatusError {
    StatusError::bad_request(format!("the body of the request cannot be read: {reason}"))
}

/// Returns the media type of a `Content-Type` without its parameters.
pub fn parse_media_type(header: &str) -> &str {
    header.split(';').next().unwrap_or_default().trim()
}

/// Parses the object in the body of a write, which must be JSON or YAML.
pub fn parse_body(content_type: &str, body: &[u8]) -> Result<Value, StatusError> {
    match parse_media_type(content_type) {
        "" | "application/json" | "application/yaml" | "application/x-yaml" => parse_document(body),
        _ => Err(StatusError::unsupported_media_type("application/json, application/yaml")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    fn body_of(size: usize) -> Body {
        Body::from(vec![b'x'; size])
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_limited_in_size_and_time() {
        let reader = BodyReader::default();
        assert_eq!(reader.read(body_of(MAX_BODY_BYTES), "jane").await.unwrap().bytes.len(), MAX_BODY_BYTES);
        assert_eq!(reader.read(body_of(MAX_BODY_BYTES + 1), "jane").await.unwrap_err(), BodyError::TooLarge);
        let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 20])));
        assert_eq!(reader.read(Body::from_stream(endless), "jane").await.unwrap_err(), BodyError::TooLarge);
        let stuck = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        assert_eq!(reader.read(Body::from_stream(stuck), "jane").await.unwrap_err(), BodyError::TooSlow);
        assert!(reader.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn held_bytes_are_bounded_in_total_and_per_sender() {
        let reader = BodyReader::default();
        let mut held = Vec::new();
        for sender in ["a", "b", "c", "d"] {
            for _ in 0..2 {
                held.push(reader.read(body_of(MAX_BODY_BYTES), sender).await.unwrap());
            }
            assert_eq!(
                reader.read(body_of(MAX_BODY_BYTES), sender).await.unwrap_err(),
                BodyError::NoRoom,
                "{sender}"
            );
        }
        let full = loop {
            match reader.read(body_of(MAX_BODY_BYTES), &held.len().to_string()).await {
                Ok(body) => held.push(body),
                Err(error) => break error,
            }
        };
        assert_eq!(full, BodyError::NoRoom);
        let bytes: usize = held.iter().map(|body| body.bytes.len()).sum();
        assert!(bytes <= MAX_HELD_BYTES + held.len() * UNCOUNTED_BYTES);
        // Small requests are read regardless of the number of held bytes.
        held.push(reader.read(body_of(UNCOUNTED_BYTES), "a").await.unwrap());
        drop(held);
        assert!(reader.0.lock().unwrap().is_empty());
    }

    /// Starts to read a body that never ends; `None` if it was rejected.
    async fn start_reading(reader: BodyReader, sender: String) -> Option<impl Future<Output = ()>> {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![0; UNCOUNTED_BYTES]))]);
        let content = Body::from_stream(first.chain(futures::stream::pending()));
        let mut reading = Box::pin(async move { reader.collect(content, &sender).await });
        match futures::poll!(&mut reading) {
            Poll::Ready(outcome) => {
                assert_eq!(outcome.unwrap_err(), BodyError::NoRoom);
                None
            }
            Poll::Pending => Some(async move { drop(reading.await) }),
        }
    }

    #[tokio::test]
    async fn unfinished_small_bodies_are_bounded() {
        let reader = BodyReader::default();
        let mut unfinished = Vec::new();
        for sender in 0..=MAX_UNFINISHED_BODIES / MAX_UNFINISHED_BODIES_OF_SENDER {
            let sender = sender.to_string();
            while let Some(reading) = start_reading(reader.clone(), sender.clone()).await {
                unfinished.push(reading);
                let own = reader.lock_senders()[&sender].unfinished_bodies;
                assert!(own <= MAX_UNFINISHED_BODIES_OF_SENDER && unfinished.len() <= MAX_UNFINISHED_BODIES);
            }
        }
        assert_eq!(unfinished.len(), MAX_UNFINISHED_BODIES);
        assert_eq!(reader.read(body_of(1), "new").await.unwrap_err(), BodyError::NoRoom);
        assert!(reader.read(Body::empty(), "new").await.is_ok(), "a request without a body is not limited");
        unfinished.pop();
        // Bodies that have arrived do not count as unfinished.
        let arrived =
            [reader.read(body_of(1), "new").await.unwrap(), reader.read(body_of(1), "new").await.unwrap()];
        drop((unfinished, arrived));
        assert!(reader.lock_senders().is_empty());
    }

    #[test]
    fn a_body_is_one_object() {
        for good in ["{\"kind\": \"Tier\"}", "kind: Tier\n", "---\nkind: Tier\n"] {
            assert_eq!(parse_document(good.as_bytes()).unwrap()["kind"], "Tier", "{good}");
        }
        for bad in ["", "5", "kind: A\n---\nkind: B\n", "{\"a\":1,\"a\":2}", "{"] {
            assert_eq!(parse_document(bad.as_bytes()).unwrap_err().code(), 400, "{bad}");
        }
        assert_eq!(parse_body("text/plain; charset=utf-8", b"{}").unwrap_err().code(), 415);
    }
}
