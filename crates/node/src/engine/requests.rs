//! Requests from CNI to the engine. Each is answered when the kernel has the requested state.

use super::event::{Event, Refusal, WaiterId};
use tokio::sync::{mpsc, oneshot};
use tortie_model::{Key, Revision, Value};

/// Capacity of the request channel; further senders wait. CNI does not handle more requests than this at a time.
const QUEUE: usize = 1024;

type Answer = oneshot::Sender<Result<(), Refusal>>;

#[derive(Debug)]
pub struct Request {
    wanted: Wanted,
    answer: Answer,
}

#[derive(Debug)]
enum Wanted {
    Attach { key: Key, value: Box<Value>, profile: Option<String> },
    Detach { key: Key, revision: Option<Revision> },
    Hold { key: Key },
}

/// The reason why a request had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("the node's daemon is stopping")]
    Stopping,
    #[error(transparent)]
    Refused(#[from] Refusal),
}

#[derive(Clone, Debug)]
pub struct Requests(mpsc::Sender<Request>);

impl Requests {
    pub fn channel() -> (Requests, mpsc::Receiver<Request>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Requests(sender), receiver)
    }

    /// Returns when the kernel has the endpoint, and its profile if one is given: the profile was written just before
    /// the endpoint, and the feed may not have delivered it yet.
    pub async fn attach(&self, key: Key, value: Value, profile: Option<String>) -> Result<(), RequestError> {
        self.send(Wanted::Attach { key, value: Box::new(value), profile }).await
    }

    /// Returns when nothing of the endpoint is left in the kernel.
    pub async fn detach(&self, key: Key, revision: Option<Revision>) -> Result<(), RequestError> {
        self.send(Wanted::Detach { key, revision }).await
    }

    /// Keeps an endpoint of the datastore in the plan until it is detached.
    pub async fn hold(&self, key: Key) -> Result<(), RequestError> {
        self.send(Wanted::Hold { key }).await
    }

    async fn send(&self, wanted: Wanted) -> Result<(), RequestError> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Request { wanted, answer }).await.map_err(|_| RequestError::Stopping)?;
        Ok(answered.await.map_err(|_| RequestError::Stopping)??)
    }
}

impl Request {
    pub(super) fn into_event(self, waiter: WaiterId) -> (Event, Answer) {
        let event = match self.wanted {
            Wanted::Attach { key, value, profile } => Event::Attach { waiter, key, value, profile },
            Wanted::Detach { key, revision } => Event::Detach { waiter, key, revision },
            Wanted::Hold { key } => Event::Hold { waiter, key },
        };
        (event, self.answer)
    }
}
