//! Sends a large response in pieces as the client reads it, and drops it if the client does not read.
//!
//! A response that is handed over as a whole would stay in the buffers of its connection as long as the client wants,
//! while it holds a share of the response budget for which other requests wait.

use crate::limits::BudgetShare;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::body::Body;

const RESPONSE_PIECE_BYTES: usize = 256 * 1024;
/// How long a response waits for a client that does not read.
const UNREAD_RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a body that sends `body` in pieces and releases its share of the response budget at the end.
pub fn pace_response(body: Body, share: BudgetShare) -> Body {
    let answer = Arc::new(Mutex::new(PacedResponse {
        state: Some(PacedState { body, rest: Bytes::new(), _share: share }),
        polls: 0,
    }));
    let watchdog = tokio::spawn(drop_when_unread(Arc::downgrade(&answer)));
    Body::new(PacedBody { answer, watchdog: watchdog.abort_handle() })
}

struct PacedBody {
    answer: Arc<Mutex<PacedResponse>>,
    /// Ends with the response: a client may request many responses within the timeout.
    watchdog: AbortHandle,
}

impl Drop for PacedBody {
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

struct PacedResponse {
    /// `None` after the response was dropped.
    state: Option<PacedState>,
    /// Number of times that the connection asked for a piece.
    polls: u64,
}

struct PacedState {
    body: Body,
    rest: Bytes,
    _share: BudgetShare,
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut answer = lock(&self.answer);
        answer.polls += 1;
        let Some(sending) = &mut answer.state else {
            return Poll::Ready(Some(Err(Status::deadline_exceeded(
                "etcdserver: the response was not read in time",
            ))));
        };
        if sending.rest.is_empty() {
            match ready!(Pin::new(&mut sending.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => sending.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = sending.rest.len().min(RESPONSE_PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(sending.rest.split_to(piece)))))
    }
}

async fn drop_when_unread(answer: Weak<Mutex<PacedResponse>>) {
    let mut before = 0;
    loop {
        tokio::time::sleep(UNREAD_RESPONSE_TIMEOUT).await;
        let Some(answer) = answer.upgrade() else { return };
        let mut answer = lock(&answer);
        if answer.polls == before {
            tracing::warn!(
                "a large response is dropped: the client has read nothing of it for {UNREAD_RESPONSE_TIMEOUT:?}"
            );
            answer.state = None;
            return;
        }
        before = answer.polls;
    }
}

fn lock(answer: &Mutex<PacedResponse>) -> MutexGuard<'_, PacedResponse> {
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ResponseBudget;
    use crate::range_encoder::EncodedRange;
    use crate::service::encoded_body::EncodedBody;
    use std::future::poll_fn;

    async fn paced_response(budget: &ResponseBudget, size: usize) -> Body {
        let share = budget.wait_for(size).await.unwrap();
        let message = EncodedRange { chunks: vec![vec![7; size].into()] };
        pace_response(Body::new(EncodedBody::new(message)), Arc::new(share))
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_frees_its_share_at_the_end() {
        let budget = ResponseBudget::default();
        let mut body = paced_response(&budget, 300_000).await;
        let mut sizes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            // The trailers are the last frame.
            sizes.extend(frame.unwrap().into_data().map(|data| data.len()));
            // The client reads slowly, but it reads.
            tokio::time::sleep(UNREAD_RESPONSE_TIMEOUT - Duration::from_secs(1)).await;
        }
        assert_eq!(sizes.iter().sum::<usize>(), 300_000);
        assert!(sizes.iter().all(|size| *size <= RESPONSE_PIECE_BYTES));
        drop(body);
        assert!(budget.wait_for(crate::limits::MAX_RESPONSE_BYTES).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_response_is_dropped() {
        let budget = ResponseBudget::default();
        let mut body = paced_response(&budget, crate::limits::MAX_RESPONSE_BYTES).await;
        // The whole budget is taken; it is released although the client is still connected.
        assert!(budget.wait_for(crate::limits::MAX_RESPONSE_BYTES).await.is_ok());
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert!(frame.unwrap().is_err());
    }
}
