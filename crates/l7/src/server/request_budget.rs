//! Limits the memory of all requests that have not been received completely.
//!
//! A client may open many streams, announce a large message on each and never complete it. Every request counts with
//! the size that it announces; one that exceeds the limit of all requests together is rejected.

use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;

/// Memory limit of all incomplete requests.
pub const MAX_INCOMPLETE_BYTES: usize = 32 << 20;
/// Memory of a request in addition to its message: headers and the state of its stream.
const REQUEST_OVERHEAD_BYTES: usize = 8 << 10;
/// Upper bound of `--max-request-bytes`.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// A flag and the length of the message.
const MESSAGE_HEADER_BYTES: usize = 5;

#[derive(Debug)]
pub struct RequestBudget {
    used: AtomicUsize,
    limit: usize,
    refused: Counter,
}

impl RequestBudget {
    pub fn new(limit: usize, refused: Counter) -> RequestBudget {
        RequestBudget { used: AtomicUsize::new(0), limit, refused }
    }

    /// Wraps a request so that its body counts against the budget.
    pub fn admit(self: &Arc<RequestBudget>, request: http::Request<Body>) -> http::Request<Body> {
        let share = BudgetShare { budget: self.clone(), bytes: 0 };
        request.map(|body| {
            Body::new(BudgetedBody { body, header: [0; MESSAGE_HEADER_BYTES], received: 0, share })
        })
    }

    #[cfg(test)]
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Part of the budget, released when it is dropped.
struct BudgetShare {
    budget: Arc<RequestBudget>,
    bytes: usize,
}

impl BudgetShare {
    /// Raises the share to this size. Returns false if the budget does not have as much.
    fn raise(&mut self, bytes: usize) -> bool {
        let additional = bytes.saturating_sub(self.bytes);
        if additional == 0 {
            return true;
        }
        let before = self.budget.used.fetch_add(additional, Ordering::Relaxed);
        self.bytes += additional;
        before + additional <= self.budget.limit
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct BudgetedBody {
    body: Body,
    /// The start of the message, as far as it has been received.
    header: [u8; MESSAGE_HEADER_BYTES],
    received: usize,
    share: BudgetShare,
}

impl BudgetedBody {
    /// Returns the memory that the request needs: what it has sent, or what it announces.
    fn receive(&mut self, mut data: &[u8]) -> usize {
        let length = data.len();
        if let Some(rest) = self.header.get_mut(self.received..) {
            let known = rest.len().min(data.len());
            data.copy_to_slice(rest.get_mut(..known).unwrap_or_default());
        }
        self.received = self.received.saturating_add(length);
        let [_, announced @ ..] = self.header;
        if self.received < MESSAGE_HEADER_BYTES {
            return REQUEST_OVERHEAD_BYTES + self.received;
        }
        // A message that announces more than this is rejected by its size.
        let announced = (u32::from_be_bytes(announced) as usize).min(MAX_MESSAGE_BYTES);
        REQUEST_OVERHEAD_BYTES + self.received.max(announced)
    }
}

impl HttpBody for BudgetedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.share.bytes == 0 && !self.share.raise(REQUEST_OVERHEAD_BYTES) {
            return Poll::Ready(Some(Err(self.refuse())));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let bytes = self.receive(data);
            if !self.share.raise(bytes) {
                return Poll::Ready(Some(Err(self.refuse())));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl BudgetedBody {
    fn refuse(&self) -> Status {
        self.share.budget.refused.inc();
        Status::resource_exhausted("incomplete requests use too much memory")
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

    /// Reads until the body waits. Returns whether it was admitted.
    async fn is_admitted(body: &mut Body) -> bool {
        loop {
            match poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context))).await {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Pending => return true,
                Poll::Ready(_) => return false,
            }
        }
    }

    #[tokio::test]
    async fn announced_messages_count_until_dropped() {
        let budget = Arc::new(RequestBudget::new(1 << 20, Counter::default()));
        let mut first = begin(&budget, 500 << 10);
        assert!(is_admitted(&mut first).await);
        assert_eq!(budget.used(), REQUEST_OVERHEAD_BYTES + (500 << 10));
        let mut second = begin(&budget, 500 << 10);
        assert!(is_admitted(&mut second).await);
        let mut third = begin(&budget, 100 << 10);
        assert!(!is_admitted(&mut third).await);
        assert_eq!(budget.refused.get(), 1);
        drop((first, third));
        let mut fourth = begin(&budget, 100 << 10);
        assert!(is_admitted(&mut fourth).await);
        drop((second, fourth));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn many_small_requests_count_too() {
        let budget = Arc::new(RequestBudget::new(1 << 20, Counter::default()));
        let mut requests = Vec::new();
        for _ in 0..200 {
            let mut request = begin(&budget, 1);
            let admitted = is_admitted(&mut request).await;
            requests.push((request, admitted));
        }
        assert_eq!(requests.iter().filter(|(_, admitted)| *admitted).count(), 127);
    }
}
