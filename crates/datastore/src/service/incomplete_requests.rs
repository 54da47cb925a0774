//! Limits the memory of requests that have been started but not completed.
//!
//! gRPC collects a message until it is complete and answers after its stream has ended. A client may announce a large
//! message on every stream it can open and never complete one. A legitimate request is complete within milliseconds
//! of its first byte. When the limit is exceeded, the request that has waited longest is rejected, if it has waited
//! longer than a busy machine takes; otherwise the largest one, because most requests are small.

use super::MAX_MESSAGE_BYTES;
use crate::rejection::RequestRejection;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;

/// Memory limit of all incomplete requests together.
const MAX_INCOMPLETE_BYTES: usize = 32 << 20;
/// Memory of a request in addition to its message.
const REQUEST_OVERHEAD_BYTES: usize = 4 << 10;
/// Timeout of a request, from the first time the server waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a legitimate request may take on a busy machine.
const EVICTION_GRACE_PERIOD: Duration = Duration::from_secs(3);
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Methods whose requests last as long as the client wants; only their current message must be completed.
const STREAMING_METHODS: [&str; 2] = ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];

/// The incomplete requests of all connections.
#[derive(Default)]
pub struct RequestIntake {
    waiting: Mutex<IncompleteRequests>,
}

#[derive(Default)]
struct IncompleteRequests {
    bytes: usize,
    next: u64,
    /// Ordered by age.
    requests: BTreeMap<u64, IncompleteRequest>,
    /// Ordered by size; of several with the same size the oldest is last.
    sizes: BTreeSet<(usize, Reverse<u64>)>,
    /// Rejected requests whose bodies have not been polled since.
    given_up: HashMap<u64, RequestRejection>,
}

struct IncompleteRequest {
    bytes: usize,
    since: Instant,
    waker: Waker,
}

impl RequestIntake {
    /// Wraps a request so that it is subject to the limits.
    pub fn receive(self: &Arc<RequestIntake>, request: http::Request<Body>) -> http::Request<Body> {
        let streams = STREAMING_METHODS.contains(&request.uri().path());
        let intake = self.clone();
        request.map(|body| {
            Body::new(LimitedBody { body, streams, message: MessageBoundary::default(), place: None, intake })
        })
    }

    /// Rejects requests that exceed the timeout; runs forever.
    pub async fn sweep(self: Arc<RequestIntake>) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            let mut waiting = self.lock();
            while let Some(oldest_place) = waiting.oldest(REQUEST_TIMEOUT) {
                waiting.give_up(oldest_place, RequestRejection::TIMED_OUT);
            }
        }
    }

    /// Registers a request that waits for more data of its client; it keeps its place from the first time. Returns an
    /// error if the request was rejected.
    fn wait(&self, place: Option<u64>, bytes: usize, waker: &Waker) -> Result<u64, RequestRejection> {
        let mut waiting = self.lock();
        if let Some(place) = place
            && let Some(known) = waiting.requests.get_mut(&place)
            && known.bytes == bytes
        {
            known.waker.clone_from(waker);
            return Ok(place);
        }
        let place = place.unwrap_or(waiting.next);
        if let Some(refusal) = waiting.given_up.remove(&place) {
            return Err(refusal);
        }
        let since = waiting.remove(place).map_or_else(Instant::now, |waited| waited.since);
        waiting.next = waiting.next.max(place + 1);
        waiting.bytes += bytes;
        waiting.requests.insert(place, IncompleteRequest { bytes, since, waker: waker.clone() });
        waiting.sizes.insert((bytes, Reverse(place)));
        while waiting.bytes > MAX_INCOMPLETE_BYTES
            && let Some(place) = waiting.oldest(EVICTION_GRACE_PERIOD).or_else(|| waiting.largest())
        {
            waiting.give_up(place, RequestRejection::GIVEN_UP);
        }
        waiting.given_up.remove(&place).map_or(Ok(place), Err)
    }

    fn lock(&self) -> MutexGuard<'_, IncompleteRequests> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IncompleteRequests {
    fn remove(&mut self, place: u64) -> Option<IncompleteRequest> {
        self.given_up.remove(&place);
        let removed = self.requests.remove(&place)?;
        self.bytes -= removed.bytes;
        self.sizes.remove(&(removed.bytes, Reverse(place)));
        Some(removed)
    }

    /// Returns the request that has waited longest, if it has waited at least this long.
    fn oldest(&self, waited: Duration) -> Option<u64> {
        let (place, oldest) = self.requests.first_key_value()?;
        (oldest.since.elapsed() >= waited).then_some(*place)
    }

    fn largest(&self) -> Option<u64> {
        self.sizes.last().map(|(_, Reverse(place))| *place)
    }

    fn give_up(&mut self, place: u64, why: RequestRejection) {
        if let Some(request) = self.remove(place) {
            self.given_up.insert(place, why);
            request.waker.wake();
        }
    }
}

/// The body of a request while it is received.
struct LimitedBody {
    body: Body,
    streams: bool,
    message: MessageBoundary,
    place: Option<u64>,
    intake: Arc<RequestIntake>,
}

impl LimitedBody {
    fn is_finished(&self) -> bool {
        self.streams && self.message.is_whole
    }

    fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            self.intake.lock().remove(place);
        }
    }
}

impl Drop for LimitedBody {
    fn drop(&mut self) {
        self.leave();
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.message.take(data);
                }
                if self.is_finished() {
                    self.leave();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => {
                self.leave();
                Poll::Ready(end)
            }
            Poll::Pending if self.is_finished() => Poll::Pending,
            Poll::Pending => {
                let bytes = REQUEST_OVERHEAD_BYTES + self.message.length.min(MAX_MESSAGE_BYTES);
                let place = self.place.take();
                match self.intake.wait(place, bytes, context.waker()) {
                    Ok(place) => {
                        self.place = Some(place);
                        Poll::Pending
                    }
                    Err(refusal) => Poll::Ready(Some(Err(refusal.into()))),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Tracks the boundaries in a sequence of messages, each of which is preceded by a flag and its length.
#[derive(Default)]
struct MessageBoundary {
    header: Vec<u8>,
    /// The announced length.
    length: usize,
    /// Number of bytes still to come.
    left: usize,
    /// Whether a message is complete and the next has not started.
    is_whole: bool,
}

impl MessageBoundary {
    const HEADER_BYTES: usize = 5;

    fn take(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left == 0 {
                self.is_whole = false;
                let (header, rest) = data.split_at(data.len().min(Self::HEADER_BYTES - self.header.len()));
                self.header.extend(header);
                data = rest;
                if let [_, length @ ..] = &*self.header
                    && let Ok(length) = <[u8; 4]>::try_from(length)
                {
                    self.length = u32::from_be_bytes(length) as usize;
                    self.left = self.length;
                    self.header.clear();
                    self.is_whole = self.left == 0;
                }
            } else {
                let taken = data.len().min(self.left);
                data = &data[taken..];
                self.left -= taken;
                self.is_whole = self.left == 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tortie_testkit::StalledRequestBody;

    #[test]
    fn messages_end_where_they_say() {
        let bytes = [&[0, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 2], b"d"].concat();
        let ends = [8, 13];
        for piece in 1..bytes.len() {
            let mut message = MessageBoundary::default();
            let mut seen = 0;
            for part in bytes.chunks(piece) {
                message.take(part);
                seen += part.len();
                assert_eq!(message.is_whole, ends.contains(&seen), "{seen} bytes in pieces of {piece}");
            }
            assert_eq!((message.length, message.left), (2, 1));
        }
    }

    fn begin(intake: &Arc<RequestIntake>, path: &str, length: usize) -> Body {
        let body = Body::new(StalledRequestBody::new(length as u32, Bytes::new()));
        intake.receive(http::Request::builder().uri(path).body(body).unwrap()).into_body()
    }

    /// Reads the header and lets the request wait. Returns the error if it is rejected.
    async fn refusal(body: &mut Body) -> Option<String> {
        loop {
            let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context))).await;
            match polled {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Pending => return None,
                Poll::Ready(Some(Err(status))) => return Some(status.message().to_owned()),
                Poll::Ready(None) => return Some("it has ended".to_owned()),
            }
        }
    }

    async fn may_wait(body: &mut Body) -> bool {
        refusal(body).await.is_none()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_request_is_evicted_first() {
        let intake = Arc::new(RequestIntake::default());
        tokio::spawn(intake.clone().sweep());
        let put = "/etcdserverpb.KV/Put";
        let fit = MAX_INCOMPLETE_BYTES / (MAX_MESSAGE_BYTES + REQUEST_OVERHEAD_BYTES);
        let mut requests: Vec<Body> = (0..fit).map(|_| begin(&intake, put, MAX_MESSAGE_BYTES)).collect();
        for request in &mut requests {
            assert!(may_wait(request).await);
        }
        let mut last = begin(&intake, put, MAX_MESSAGE_BYTES);
        assert!(may_wait(&mut last).await);
        assert_eq!(refusal(&mut requests[0]).await.unwrap(), RequestRejection::GIVEN_UP.text, "the oldest");
        assert!(may_wait(&mut requests[1]).await);
        // A request that ends makes room for another.
        drop(requests.remove(1));
        let mut another = begin(&intake, put, MAX_MESSAGE_BYTES);
        assert!(may_wait(&mut another).await && may_wait(&mut requests[1]).await);
        // A stream between two messages may wait indefinitely.
        let mut stream = begin(&intake, STREAMING_METHODS[1], 0);
        assert!(may_wait(&mut stream).await);
        tokio::time::sleep(REQUEST_TIMEOUT + SWEEP_INTERVAL).await;
        assert_eq!(refusal(&mut last).await.unwrap(), RequestRejection::TIMED_OUT.text);
        assert_eq!(refusal(&mut another).await.unwrap(), RequestRejection::TIMED_OUT.text);
        assert!(may_wait(&mut stream).await);
        // Some of these have been rejected but not polled since.
        drop((requests, last, another));
        let waiting = intake.lock();
        assert_eq!((waiting.bytes, waiting.given_up.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_request_is_evicted_only_when_old() {
        let intake = Arc::new(RequestIntake::default());
        let put = "/etcdserverpb.KV/Put";
        let fit = MAX_INCOMPLETE_BYTES / (MAX_MESSAGE_BYTES + REQUEST_OVERHEAD_BYTES);
        let mut small = begin(&intake, put, 10);
        assert!(may_wait(&mut small).await);
        let mut large = Vec::new();
        for number in 0..3 * fit {
            large.push(begin(&intake, put, MAX_MESSAGE_BYTES));
            assert!(may_wait(&mut large[number]).await && may_wait(&mut small).await, "{number}");
        }
        assert_eq!(refusal(&mut large[0]).await.unwrap(), RequestRejection::GIVEN_UP.text);
        tokio::time::sleep(EVICTION_GRACE_PERIOD).await;
        let mut another = begin(&intake, put, MAX_MESSAGE_BYTES);
        assert!(may_wait(&mut another).await);
        assert_eq!(refusal(&mut small).await.unwrap(), RequestRejection::GIVEN_UP.text);
        drop((small, large, another));
        let waiting = intake.lock();
        assert_eq!((waiting.bytes, waiting.sizes.len(), waiting.given_up.len()), (0, 0, 0));
    }
}
