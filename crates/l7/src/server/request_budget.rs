//! Limits the memory of all requests that have not been received completely, and the time for each. A complete request is
//! answered at once, so the time limit of its reply is that of receiving it.
//!
//! A client may open many streams, announce a large message on each and never complete it. A request that waits for its
//! client counts with the size that it announces. When all of them exceed the limit, those that have waited longest are
//! rejected: Envoy sends a request at once, so they are not from Envoy.

use super::reply_deadline::read_reply_deadline;
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use std::collections::{BTreeMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;

/// Memory limit of all incomplete requests.
pub const MAX_INCOMPLETE_BYTES: usize = 32 << 20;
/// Upper bound of `--max-request-bytes`.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Deadline of a request whose client states a longer time than can be represented.
const MAX_REPLY_DEADLINE: Duration = Duration::from_secs(3600);
/// Memory of a request in addition to its message: headers and the state of its stream.
const REQUEST_OVERHEAD_BYTES: usize = 8 << 10;
/// A flag and the length of the message.
const MESSAGE_HEADER_BYTES: usize = 5;

#[derive(Debug)]
pub struct RequestBudget {
    waiting: Mutex<WaitingRequests>,
    limit: usize,
    refused: Counter,
    /// Requests that were not complete before their deadline.
    expired: Counter,
}

#[derive(Debug, Default)]
struct WaitingRequests {
    bytes: usize,
    next: u64,
    /// Ordered by age.
    requests: BTreeMap<u64, WaitingRequest>,
    /// Rejected requests whose bodies have not been polled since.
    evicted: HashSet<u64>,
}

#[derive(Debug)]
struct WaitingRequest {
    bytes: usize,
    waker: Waker,
}

/// The request was rejected in favour of newer ones.
struct EvictedRequest;

impl RequestBudget {
    pub fn new(limit: usize, refused: Counter, expired: Counter) -> RequestBudget {
        RequestBudget { waiting: Mutex::default(), limit, refused, expired }
    }

    /// Wraps a request so that it counts against the budget while it is incomplete.
    pub fn admit(self: &Arc<RequestBudget>, request: http::Request<Body>) -> http::Request<Body> {
        let budget = self.clone();
        let deadline = read_reply_deadline(request.headers()).map(ReplyDeadline::new);
        request.map(|body| {
            Body::new(BudgetedBody {
                body,
                header: [0; MESSAGE_HEADER_BYTES],
                received: 0,
                place: None,
                deadline,
                budget,
            })
        })
    }

    /// Registers a request that waits for its client, with its present size. It keeps its place from the first time.
    fn wait(&self, place: Option<u64>, bytes: usize, waker: &Waker) -> Result<u64, EvictedRequest> {
        let mut waiting = self.lock();
        let place = match place {
            Some(place) => place,
            None => {
                waiting.next += 1;
                waiting.next
            }
        };
        if waiting.evicted.remove(&place) {
            return Err(EvictedRequest);
        }
        waiting.remove(place);
        waiting.bytes += bytes;
        waiting.requests.insert(place, WaitingRequest { bytes, waker: waker.clone() });
        while waiting.bytes > self.limit
            && let Some((oldest, request)) = waiting.requests.pop_first()
        {
            waiting.bytes -= request.bytes;
            self.refused.inc();
            if oldest == place {
                return Err(EvictedRequest);
            }
            waiting.evicted.insert(oldest);
            request.waker.wake();
        }
        Ok(place)
    }

    fn lock(&self) -> MutexGuard<'_, WaitingRequests> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingRequests {
    fn remove(&mut self, place: u64) {
        if let Some(removed) = self.requests.remove(&place) {
            self.bytes -= removed.bytes;
        }
    }
}

struct BudgetedBody {
    body: Body,
    /// The start of the message, as far as it has been received.
    header: [u8; MESSAGE_HEADER_BYTES],
    received: usize,
    /// Place among the waiting requests, once it had to wait.
    place: Option<u64>,
    /// When the request is answered although it is not complete.
    deadline: Option<ReplyDeadline>,
    budget: Arc<RequestBudget>,
}

struct ReplyDeadline {
    at: Instant,
    /// Created when the request has to wait for its client.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ReplyDeadline {
    fn new(limit: Duration) -> ReplyDeadline {
        // A limit that cannot be represented is as good as none: the server has its own.
        let now = Instant::now();
        ReplyDeadline { at: now.checked_add(limit).unwrap_or(now + MAX_REPLY_DEADLINE), timer: None }
    }

    fn has_passed(&mut self, context: &mut Context<'_>) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(self.at)));
        timer.as_mut().poll(context).is_ready()
    }
}

impl BudgetedBody {
    fn receive(&mut self, mut data: &[u8]) {
        let length = data.len();
        if let Some(rest) = self.header.get_mut(self.received..) {
            let known = rest.len().min(data.len());
            data.copy_to_slice(rest.get_mut(..known).unwrap_or_default());
        }
        self.received = self.received.saturating_add(length);
    }

    /// Returns the memory that the request needs: the size that it has sent or announced.
    fn size(&self) -> usize {
        if self.received < MESSAGE_HEADER_BYTES {
            return REQUEST_OVERHEAD_BYTES + self.received;
        }
        let [_, announced @ ..] = self.header;
        // A message that announces more than this is rejected by its size.
        let announced = (u32::from_be_bytes(announced) as usize).min(MAX_MESSAGE_BYTES);
        REQUEST_OVERHEAD_BYTES + self.received.max(announced)
    }

    fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            let mut waiting = self.budget.lock();
            waiting.remove(place);
            waiting.evicted.remove(&place);
        }
    }
}

impl Drop for BudgetedBody {
    fn drop(&mut self) {
        self.leave();
    }
}

impl HttpBody for BudgetedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.receive(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => {
                self.leave();
                Poll::Ready(end)
            }
            Poll::Pending if self.deadline.as_mut().is_some_and(|deadline| deadline.has_passed(context)) => {
                self.leave();
                self.budget.expired.inc();
                let status = Status::deadline_exceeded("the request was not complete in time");
                Poll::Ready(Some(Err(status)))
            }
            Poll::Pending => match self.budget.wait(self.place, self.size(), context.waker()) {
                Ok(place) => {
                    self.place = Some(place);
                    Poll::Pending
                }
                Err(EvictedRequest) => {
                    self.place = None;
                    let status = Status::resource_exhausted("incomplete requests use too much memory");
                    Poll::Ready(Some(Err(status)))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tortie_testkit::StalledRequestBody;

    fn begin(budget: &Arc<RequestBudget>, length: u32) -> Body {
        let body = Body::new(StalledRequestBody::new(length, Bytes::from_static(b"x")));
        budget.admit(http::Request::new(body)).into_body()
    }

    /// Reads until the body waits. Returns whether it may.
    async fn may_wait(body: &mut Body) -> bool {
        loop {
            match poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context))).await {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Pending => return true,
                Poll::Ready(_) => return false,
            }
        }
    }

    fn used(budget: &RequestBudget) -> (usize, usize) {
        let waiting = budget.lock();
        (waiting.bytes, waiting.evicted.len())
    }

    #[tokio::test]
    async fn the_oldest_requests_are_evicted_first() {
        let budget = Arc::new(RequestBudget::new(1 << 20, Counter::default(), Counter::default()));
        let mut first = begin(&budget, 500 << 10);
        assert!(may_wait(&mut first).await);
        assert_eq!(used(&budget), (REQUEST_OVERHEAD_BYTES + (500 << 10), 0));
        let mut second = begin(&budget, 500 << 10);
        assert!(may_wait(&mut second).await && may_wait(&mut first).await);
        let mut third = begin(&budget, 100 << 10);
        assert!(may_wait(&mut third).await && may_wait(&mut second).await);
        assert!(!may_wait(&mut first).await, "the oldest");
        assert_eq!(budget.refused.get(), 1);
        let mut too_large = begin(&budget, 2 << 20);
        assert!(!may_wait(&mut too_large).await, "larger than the budget");
        drop((first, second, third, too_large));
        assert_eq!(used(&budget), (0, 0));
    }

    #[tokio::test]
    async fn complete_requests_do_not_count() {
        let budget = Arc::new(RequestBudget::new(1, Counter::default(), Counter::default()));
        let request = http::Request::new(Body::new(http_body_of(b"\0\0\0\0\x01x")));
        let mut body = budget.admit(request).into_body();
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), &b"\0\0\0\0\x01x"[..]);
        assert!(poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_none());
        assert_eq!((used(&budget), budget.refused.get()), ((0, 0), 0));
    }

    /// Returns a body that is received as a whole.
    fn http_body_of(
        bytes: &'static [u8],
    ) -> impl HttpBody<Data = Bytes, Error = std::convert::Infallible> + Send {
        String::from_utf8(bytes.to_vec()).unwrap()
    }
}
