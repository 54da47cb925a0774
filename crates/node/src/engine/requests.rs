//! Requests from CNI to the engine, which are answered when the kernel has the requested state, and reports of the
//! policy-sync server, which are not answered.

use super::event::{EngineEvent, HttpProxyChange, RequestRefusal, WaiterId};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot};
use tortie_compute::PlanCompute;
use tortie_model::{Revision, StoreKey, StoreValue};
use tortie_plan::{AddressIdentity, ServiceIdentity, WorkloadId};

/// Capacity of the request channel; further senders wait. CNI does not handle more requests than this at a time.
const REQUEST_QUEUE_CAPACITY: usize = 1024;

/// Capacity of the channel for lookups; only flow records send them, one at a time.
const LOOKUP_QUEUE_CAPACITY: usize = 4;

type AnswerSender = oneshot::Sender<Result<(), RequestRefusal>>;

#[derive(Debug)]
pub struct EngineRequest {
    kind: RequestKind,
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
pub struct EngineHandle {
    requests: mpsc::Sender<EngineRequest>,
    proxies: Arc<ProxyReports>,
    lookups: mpsc::Sender<LookupRequest>,
}

/// Asks which objects have addresses.
#[derive(Debug)]
pub(super) struct LookupRequest {
    objects: Vec<IpAddr>,
    services: Vec<IpAddr>,
    answer: oneshot::Sender<FoundObjects>,
}

/// The objects that have addresses; addresses without an object are not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundObjects {
    pub objects: Vec<(IpAddr, AddressIdentity)>,
    pub services: Vec<(IpAddr, ServiceIdentity)>,
}

impl LookupRequest {
    pub fn respond(self, compute: &PlanCompute) {
        let objects = self.objects.into_iter();
        let services = self.services.into_iter();
        let found = FoundObjects {
            objects: objects.filter_map(|address| Some((address, compute.identify(address)?))).collect(),
            services: services
                .filter_map(|address| Some((address, compute.find_service(address)?)))
                .collect(),
        };
        // The requester may have gone away.
        let _ = self.answer.send(found);
    }
}

/// The engine's end of an [`EngineHandle`].
#[derive(Debug)]
pub struct EngineInbox {
    pub(super) requests: mpsc::Receiver<EngineRequest>,
    pub(super) proxies: Arc<ProxyReports>,
    pub(super) lookups: mpsc::Receiver<LookupRequest>,
}

/// The latest report about the proxy of each workload that the engine has not handled yet. Its size is bounded by the
/// number of workloads.
#[derive(Debug, Default)]
pub(super) struct ProxyReports {
    waiting: Mutex<BTreeMap<WorkloadId, bool>>,
    changed: Notify,
}

impl ProxyReports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkloadId, bool>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for reports and returns all of them.
    pub async fn recv(&self) -> Vec<HttpProxyChange> {
        loop {
            let waiting = std::mem::take(&mut *self.lock());
            if !waiting.is_empty() {
                let changes = waiting.into_iter();
                return changes.map(|(workload, live)| HttpProxyChange { workload, live }).collect();
            }
            self.changed.notified().await;
        }
    }
}

impl EngineHandle {
    pub fn channel() -> (EngineHandle, EngineInbox) {
        let (sender, requests) = mpsc::channel(REQUEST_QUEUE_CAPACITY);
        let proxies = Arc::new(ProxyReports::default());
        let (lookup_sender, lookups) = mpsc::channel(LOOKUP_QUEUE_CAPACITY);
        let inbox = EngineInbox { requests, proxies: proxies.clone(), lookups };
        (EngineHandle { requests: sender, proxies, lookups: lookup_sender }, inbox)
    }

    /// Reports whether the proxy of a workload receives its policy and is in sync. Only then rules with HTTP conditions
    /// match connections of the workload. A proxy that was reported as live must be reported again when it is gone, also
    /// if its workload is. Never waits; of several reports about a workload, the engine may receive only the last.
    pub fn set_http_proxy(&self, workload: WorkloadId, live: bool) {
        self.proxies.lock().insert(workload, live);
        self.proxies.changed.notify_one();
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

    /// Returns the objects and the services that have addresses, or `None` if the engine has ended.
    pub async fn find_objects(&self, objects: Vec<IpAddr>, services: Vec<IpAddr>) -> Option<FoundObjects> {
        let (answer, answered) = oneshot::channel();
        self.lookups.send(LookupRequest { objects, services, answer }).await.ok()?;
        answered.await.ok()
    }

    /// Keeps an endpoint of the datastore in the plan until it is detached.
    pub async fn hold(&self, key: StoreKey) -> Result<(), EngineRequestError> {
        self.send(RequestKind::Hold { key }).await
    }

    async fn send(&self, kind: RequestKind) -> Result<(), EngineRequestError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(EngineRequest { kind, answer }).await.map_err(|_| EngineRequestError::Stopping)?;
        Ok(answered.await.map_err(|_| EngineRequestError::Stopping)??)
    }
}

impl EngineRequest {
    pub(super) fn into_event(self, waiter: WaiterId) -> (EngineEvent, AnswerSender) {
        let event = match self.kind {
            RequestKind::Attach { key, value, profile } => {
                EngineEvent::Attach { waiter, key, value, profile }
            }
            RequestKind::Detach { key, revision } => EngineEvent::Detach { waiter, key, revision },
            RequestKind::Hold { key } => EngineEvent::Hold { waiter, key },
        };
        (event, self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_last_proxy_report_is_received() {
        let (handle, inbox) = EngineHandle::channel();
        let workload = |name: &str| WorkloadId {
            orchestrator: "k8s".into(),
            workload: name.into(),
            endpoint: "eth0".into(),
        };
        for round in 0..1000 {
            handle.set_http_proxy(workload("shop/a"), round % 2 == 0);
            handle.set_http_proxy(workload("shop/b"), true);
        }
        let change = |name: &str, live| HttpProxyChange { workload: workload(name), live };
        assert_eq!(inbox.proxies.recv().await, [change("shop/a", false), change("shop/b", true)]);
        handle.set_http_proxy(workload("shop/b"), false);
        assert_eq!(inbox.proxies.recv().await, [change("shop/b", false)]);
    }
}
