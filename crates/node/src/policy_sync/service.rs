//! The gRPC service on the socket of one workload.

use super::credentials::WorkloadCredentials;
use super::hub::{SubscriberId, SubscriberSignal, SyncHub};
use super::stream_budget::StreamBudget;
use super::subscriber::OutgoingMessage;
use futures::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tortie_http::{AuthorityRewriter, LimitedConnection};
use tortie_policysync::proto::policy_sync_server::{PolicySync, PolicySyncServer};
use tortie_policysync::proto::{DataplaneStats, ReportResult, SyncRequest, ToDataplane};

/// Maximum number of connections to one socket, and of concurrent requests of a connection.
const MAX_CONNECTIONS_PER_SOCKET: usize = 16;
const MAX_STREAMS_PER_CONNECTION: u32 = 8;
/// Maximum number of accepted connections that the server has not taken over yet.
const MAX_PENDING_CONNECTIONS: usize = 4;
/// Maximum number of streams of a workload that have not ended. One is active; a client that does not read delays the end
/// of an earlier one, and its connection keeps the message that it has not read.
const MAX_UNENDED_STREAMS: usize = 4;
/// Maximum size of a message of a client. Only reports have content.
const MAX_CLIENT_MESSAGE_BYTES: usize = 64 << 10;
const MAX_HEADER_BYTES: u32 = 8 << 10;
/// Maximum number of streams that a client may reset before the server has accepted them.
const MAX_PENDING_RESETS: usize = 16;
/// Time within which a client has to send its first byte.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a request; for `Sync`, until the stream begins.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of pings, and time for their answer, after which a client counts as vanished.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time for clients to close their connections after the server has stopped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The service for one workload.
#[derive(Clone, Debug)]
struct WorkloadService {
    hub: Arc<SyncHub>,
    credentials: WorkloadCredentials,
    stopped: watch::Receiver<bool>,
    // Both are shared by all connections to the socket.
    budget: Arc<Mutex<StreamBudget>>,
    unended: Arc<Semaphore>,
}

/// Serves the clients of a workload until it is stopped, then waits until they have gone. The caller closes the stream of
/// the workload afterwards.
pub async fn serve_workload(
    hub: Arc<SyncHub>,
    credentials: WorkloadCredentials,
    listener: UnixListener,
    stopped: watch::Receiver<bool>,
) {
    let workload = credentials.workload.workload.clone();
    let budget = Arc::new(Mutex::new(StreamBudget::new(Instant::now())));
    let unended = Arc::new(Semaphore::new(MAX_UNENDED_STREAMS));
    let service =
        WorkloadService { hub: hub.clone(), credentials, stopped: stopped.clone(), budget, unended };
    let service = PolicySyncServer::new(service).max_decoding_message_size(MAX_CLIENT_MESSAGE_BYTES);
    let (sender, incoming) = mpsc::channel(MAX_PENDING_CONNECTIONS);
    let serving = tonic::transport::Server::builder()
        .timeout(REQUEST_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), wait_until_stopped(stopped.clone()));
    let accepting = async {
        tokio::select! {
            () = accept(&listener, &hub, sender) => {}
            () = wait_until_stopped(stopped.clone()) => {}
        }
        // Connections that are still open after this time end when their clients go or do not answer pings.
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        () = accepting => {}
        result = serving => if let Err(error) = result {
            tracing::warn!(workload, %error, "the policy-sync server of the workload failed");
        },
    }
}

async fn wait_until_stopped(mut stopped: watch::Receiver<bool>) {
    // An error means that the server of all workloads has ended.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

type ConnectionSender = mpsc::Sender<Result<AuthorityRewriter<LimitedConnection>, std::io::Error>>;

async fn accept(listener: &UnixListener, hub: &SyncHub, connections: ConnectionSender) {
    let limit = Arc::new(Semaphore::new(MAX_CONNECTIONS_PER_SOCKET));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a policy-sync connection; trying again");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else {
            let closed = &hub.node().metrics.closed_connections;
            closed.get_or_create(&[("listener", "policy sync".into())]).inc();
            continue;
        };
        let connections = connections.clone();
        tokio::spawn(async move {
            if let Ok(Ok(())) = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.readable()).await {
                let connection = LimitedConnection::new(stream, permit);
                // Fails if the server has stopped.
                let _ = connections.send(Ok(AuthorityRewriter::new(connection))).await;
            }
        });
    }
}

type MessageStream = Pin<Box<dyn Stream<Item = Result<ToDataplane, Status>> + Send>>;

#[tonic::async_trait]
impl PolicySync for WorkloadService {
    type SyncStream = MessageStream;

    async fn sync(&self, _request: Request<SyncRequest>) -> Result<Response<MessageStream>, Status> {
        if !self.budget.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) {
            self.hub.node().metrics.policy_sync.refused_streams.inc();
            return Err(Status::resource_exhausted("the workload begins streams too often; try again later"));
        }
        let Ok(permit) = self.unended.clone().try_acquire_owned() else {
            self.hub.node().metrics.policy_sync.refused_streams.inc();
            return Err(Status::resource_exhausted("the workload does not read its earlier streams"));
        };
        let (id, signal) = self.hub.join(&self.credentials);
        let messages = MessageSource {
            hub: self.hub.clone(),
            id,
            signal,
            waiting: VecDeque::new(),
            sequence_number: 0,
            _permit: permit,
        };
        // Checked after joining: the stream of a workload is closed after its server has been stopped.
        if *self.stopped.borrow() {
            return Err(Status::unavailable("the credentials of the workload have been removed"));
        }
        // A stream ends with its first error.
        let stream = futures::stream::unfold(messages, |mut messages| async move {
            let message = messages.next().await;
            Some((message, messages))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    /// Counts the reports; policy does not depend on them.
    async fn report(&self, _request: Request<DataplaneStats>) -> Result<Response<ReportResult>, Status> {
        self.hub.node().metrics.policy_sync.reports.inc();
        Ok(Response::new(ReportResult { successful: true }))
    }
}

/// The messages of one stream. The subscriber leaves when this is dropped: when the client cancels the stream, closes
/// the connection or does not answer pings.
struct MessageSource {
    hub: Arc<SyncHub>,
    id: SubscriberId,
    signal: Arc<SubscriberSignal>,
    /// Messages that were taken from the hub, by reference. They are encoded one by one as the client reads.
    waiting: VecDeque<OutgoingMessage>,
    sequence_number: u64,
    _permit: OwnedSemaphorePermit,
}

impl MessageSource {
    /// Waits for the next message. Returns an error if the hub has closed the stream.
    async fn next(&mut self) -> Result<ToDataplane, Status> {
        loop {
            if self.signal.is_closed() {
                return Err(closed_status());
            }
            if let Some(message) = self.waiting.pop_front() {
                return Ok(self.encode(message));
            }
            match self.hub.take_messages(self.id) {
                Some(messages) if messages.is_empty() => self.signal.changed().await,
                Some(messages) => self.waiting = messages.into(),
                None => return Err(closed_status()),
            }
        }
    }

    fn encode(&mut self, message: OutgoingMessage) -> ToDataplane {
        self.signal.record_progress();
        self.hub.record_sent(self.id, &message);
        let (payload, rest) = message.encode();
        if let Some(rest) = rest {
            self.waiting.push_front(rest);
        }
        self.sequence_number += 1;
        ToDataplane { sequence_number: self.sequence_number, payload: Some(payload) }
    }
}

fn closed_status() -> Status {
    Status::aborted(
        "the node closed the stream: a newer one replaced it, its credentials were removed, or it was not read",
    )
}

impl Drop for MessageSource {
    fn drop(&mut self) {
        self.hub.leave(self.id);
    }
}
