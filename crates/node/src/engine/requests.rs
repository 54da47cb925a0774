//! Requests from CNI to the engine. Each is answered when the kernel has the requested state.

use super::event::{EngineEvent, RequestRefusal, WaiterId};
use tokio::sync::{mpsc, oneshot};
use tortie_model::{Revision, StoreKey, StoreValue};

/// Capacity of the request channel; further senders wait. CNI does not handle more requests than this at a time.
const REQUEST_QUEUE_CAPACITY: usize = 1024;

type AnswerSender = oneshot::Sender<Result<(), RequestRefusal>>;

#[derive(Debug)]
pub struct EngineRequest {
    wanted: RequestKind,
    answer: AnswerSender,
}

#[derive(Debug)]
enum RequestKind {
    Attach { key: StoreKey, value: Box<StoreValue>, profile: Option<String> },
    Detach { key: StoreKey, revision: Option<Revision> },
    Hold { key: StoreKey },
}

/// The reason why a request had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineRequestError {
    #[error("the node's daemon is stopping")]
    Stopping,
    #[error(transparent)]
    Refused(#[from] RequestRefusal),
}

#[derive(Clone, Debug)]
pub struct EngineHandle(mpsc::Sender<EngineRequest>);

impl EngineHandle {
    pub fn channel() -> (EngineHandle, mpsc::Receiver<EngineRequest>) {
        let (sender, receiver) = mpsc::channel(REQUEST_QUEUE_CAPACITY);
        (EngineHandle(sender), receiver)
    }

    /// Returns when the kernel has the endpoint, and its profile if one is given: the profile was written just before
    /// the endpoint, and the feed may not have delivered it yet.
    pub async fn attach(
        &self,
        key: StoreKey,
        value: StoreValue,
        profile: Option<String>,
    ) -> Result<(), EngineRequestError> {
        self.send(RequestKind::Attach { key, value: Box::new(value), profile }).await
    }

    /// Returns when nothing of the endpoint is left in the kernel.
    pub async fn detach(&self, key: StoreKey, revision: Option<Revision>) -> Result<(), EngineRequestError> {
        self.send(RequestKind::Detach { key, revision }).await
    }

    /// Keeps an endpoint of the datastore in the plan until it is detached.
    pub async fn hold(&self, key: StoreKey) -> Result<(), EngineRequestError> {
        self.send(RequestKind::Hold { key }).await
    }

    async fn send(&self, wanted: RequestKind) -> Result<(), EngineRequestError> {
        let (answer, answered) = oneshot::channel();
        self.0.send(EngineRequest { wanted, answer }).await.map_err(|_| EngineRequestError::Stopping)?;
        Ok(answered.await.map_err(|_| EngineRequestError::Stopping)??)
    }
}

impl EngineRequest {
    pub(super) fn into_event(self, waiter: WaiterId) -> (EngineEvent, AnswerSender) {
        let event = match self.wanted {
            RequestKind::Attach { key, value, profile } => {
                EngineEvent::Attach { waiter, key, value, profile }
            }
            RequestKind::Detach { key, revision } => EngineEvent::Detach { waiter, key, revision },
            RequestKind::Hold { key } => EngineEvent::Hold { waiter, key },
        };
        (event, self.answer)
    }
}
