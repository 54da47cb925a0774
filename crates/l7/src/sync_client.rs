//! Follows the policy-sync socket of the node: dials it, collects the policy of the workload until it is complete, and
//! then applies every change. A lost connection is dialled again, and a new replica replaces the old one when it is
//! complete; until then the old one stays in use.

use crate::metrics::L7Metrics;
use crate::replica::{Replica, ReplicaError, prepare_changes};
use crate::set_assembly::SetAssembly;
use crate::state::PolicyState;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};
use tortie_plan::PlanUpdate;
use tortie_policysync::proto::policy_sync_client::PolicySyncClient;
use tortie_policysync::proto::{SyncRequest, ToDataplane};
use tortie_policysync::{SyncEvent, decode_message};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which the node must accept the request.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a message after which a connection that is not in sync is dialled again.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without a message after which a large set is complete: its size is a multiple of what one message holds.
const SET_TIMEOUT: Duration = Duration::from_secs(5);
/// Go servers close connections with more than one ping per five minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(330);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Delay between two attempts: initial and maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum size of one message. Calico's are below 4 MiB, except for policies with very many rules.
const MAX_SYNC_MESSAGE_BYTES: usize = 16 << 20;
/// Number of failed attempts between two log lines, about a minute.
const ATTEMPTS_PER_LOG_LINE: u32 = 60;

#[derive(Debug, Error)]
enum SyncError {
    #[error("cannot connect: {}", root_cause(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("cannot connect: no answer within {} s", CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout,
    #[error("the node did not accept the request within {} s", OPEN_TIMEOUT.as_secs())]
    OpenTimeout,
    #[error("the node reports: {0}")]
    Rejected(#[from] Box<Status>),
    #[error("the node sent nothing for {} s, and the policy is not complete", SYNC_TIMEOUT.as_secs())]
    NotInSync,
    #[error("the node closed the connection")]
    Closed,
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

impl SyncError {
    /// Returns what to check.
    fn remedy(&self) -> &'static str {
        match self {
            SyncError::Connect(_) | SyncError::ConnectTimeout | SyncError::OpenTimeout => {
                "check that the node runs, that policySyncPathPrefix is set in its FelixConfiguration, and that the volume with the socket is mounted"
            }
            SyncError::NotInSync => "check that the node is in sync with the datastore",
            SyncError::Rejected(_) | SyncError::Closed => "see the log of the node",
            SyncError::Replica(ReplicaError::TooLarge { .. }) => "raise --max-policy-bytes",
        }
    }
}

#[derive(Debug)]
pub struct SyncClient {
    pub socket: PathBuf,
    pub state: Arc<PolicyState>,
    pub metrics: Arc<L7Metrics>,
    /// Memory limit of a replica.
    pub max_policy_bytes: usize,
}

impl SyncClient {
    /// Follows the node until the future is dropped.
    pub async fn run(self) -> Infallible {
        let mut delay = MIN_RETRY_DELAY;
        let mut failures = 0;
        loop {
            let before = self.metrics.syncs.get();
            let Err(error) = self.follow().await;
            self.state.mark_lost();
            self.metrics.sync_failures.inc();
            if let SyncError::Replica(ReplicaError::TooLarge { .. }) = error {
                self.metrics.oversized_syncs.inc();
            }
            if self.metrics.syncs.get() > before {
                delay = MIN_RETRY_DELAY;
                failures = 0;
            }
            self.log_failure(&error, failures);
            failures += 1;
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    fn log_failure(&self, error: &SyncError, failures: u32) {
        if failures.is_multiple_of(ATTEMPTS_PER_LOG_LINE) {
            let socket = self.socket.display();
            let in_use = self.state.is_in_sync();
            tracing::warn!(%socket, in_use, "no connection for policy: {error}; {}; trying again", error.remedy());
        }
    }

    /// Follows one connection until it fails.
    async fn follow(&self) -> Result<Infallible, SyncError> {
        let channel = timeout(CONNECT_TIMEOUT, connect(&self.socket)).await;
        let channel = channel.map_err(|_| SyncError::ConnectTimeout)??;
        let mut client = PolicySyncClient::new(channel).max_decoding_message_size(MAX_SYNC_MESSAGE_BYTES);
        let opened = timeout(OPEN_TIMEOUT, client.sync(SyncRequest {})).await;
        let mut messages = opened.map_err(|_| SyncError::OpenTimeout)?.map_err(Box::new)?.into_inner();
        let mut replica = SyncedReplica {
            state: &self.state,
            pending: Some(Replica::new(self.max_policy_bytes)),
            sets: SetAssembly::default(),
        };
        loop {
            let received = if replica.pending.is_some() {
                timeout(SYNC_TIMEOUT, messages.message()).await.map_err(|_| SyncError::NotInSync)?
            } else if replica.sets.is_waiting() {
                match timeout(SET_TIMEOUT, messages.message()).await {
                    Ok(received) => received,
                    Err(_) => {
                        let complete = replica.sets.finish();
                        replica.apply(complete)?;
                        continue;
                    }
                }
            } else {
                messages.message().await
            };
            let message = received.map_err(Box::new)?.ok_or(SyncError::Closed)?;
            self.receive(message, &mut replica)?;
            self.metrics.sync_messages.inc();
            // A long burst must not keep a worker from checks.
            tokio::task::yield_now().await;
        }
    }

    fn receive(&self, message: ToDataplane, replica: &mut SyncedReplica<'_>) -> Result<(), ReplicaError> {
        let decoded = match decode_message(message) {
            Ok(decoded) => decoded,
            Err(error) => {
                tracing::warn!(%error, "a message of the node names no object and is ignored");
                return Ok(());
            }
        };
        for problem in &decoded.problems {
            tracing::warn!("policy from the node: {problem}");
        }
        match decoded.event {
            SyncEvent::InSync => {
                let complete = replica.sets.finish();
                replica.apply(complete)?;
                self.activate(replica.pending.take());
            }
            SyncEvent::Updates(updates) => {
                let ready = replica.sets.add(updates);
                replica.apply(ready)?;
            }
            SyncEvent::Other => {}
        }
        Ok(())
    }

    fn activate(&self, complete: Option<Replica>) {
        let Some(replica) = complete else { return };
        let [policies, profiles, sets] = replica.counts();
        let workload = replica.endpoint_id().map_or("none", |id| id.workload.as_str());
        tracing::info!(workload, policies, profiles, sets, "the policy of the workload is in sync");
        self.state.activate(replica);
        self.metrics.syncs.inc();
    }
}

/// The replica that the messages of one connection change: the pending one or, after InSync, the one in use.
struct SyncedReplica<'c> {
    state: &'c PolicyState,
    pending: Option<Replica>,
    sets: SetAssembly,
}

impl SyncedReplica<'_> {
    fn apply(&mut self, updates: Vec<PlanUpdate>) -> Result<(), ReplicaError> {
        for change in prepare_changes(updates) {
            match &mut self.pending {
                Some(pending) => pending.apply(change)?,
                None => self.state.apply(change)?,
            }
        }
        Ok(())
    }
}

/// Returns the innermost source of an error. The text of a transport error does not contain it.
pub fn root_cause(error: &tonic::transport::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Connects to a gRPC server on a Unix socket.
pub async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = socket.to_owned();
    // The socket has no authority; this one is valid HTTP/2.
    Endpoint::from_static("http://localhost")
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
        .await
}
