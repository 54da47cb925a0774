//! Sends the flows of a node to a collector, ours or Goldmane: each bucket once it is complete. After a reconnect the flows of
//! the last minutes are sent again, as Felix does; the collector recognises them because they are the same as before.
//! Buckets that a collector missed while it was away follow, as long as they are in the node's ring.

use crate::client::{CollectorTarget, ConnectError};
use crate::collector::{FlowCollector, now_seconds};
use crate::proto::{Filter, Flow, FlowUpdate};
use crate::ring::BucketNumber;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// Delay after the end of a bucket until it is sent: flows are recorded within it.
const BUCKET_DELAY_SECONDS: i64 = 2;
/// Time for which sent flows are sent again on a new connection, as in Felix.
const RESEND_SECONDS: i64 = 300;
/// Maximum number of flows that are remembered to send them again. Older ones are not sent again.
const MAX_REMEMBERED_FLOWS: usize = 16_384;
/// Maximum number of flows without a receipt; further ones wait.
const MAX_UNCONFIRMED_FLOWS: u64 = 4096;
/// Capacity of the channel to the connection.
const SEND_QUEUE_FLOWS: usize = 256;
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Interval between checks for complete buckets.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// State of a pusher, for status pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushState {
    pub connected: bool,
    /// Flows that were sent, without those that were sent again, and receipts for all of them.
    pub sent: u64,
    pub sent_again: u64,
    pub receipts: u64,
    /// Buckets that left the ring before the collector was back.
    pub lost_buckets: u64,
    /// The reason why there is no connection.
    pub error: Option<String>,
}

/// Sends flows to a collector.
#[derive(Debug)]
pub struct FlowPusher {
    collector: Arc<FlowCollector>,
    target: CollectorTarget,
    state: Arc<Mutex<PushState>>,
    next: BucketNumber,
    /// Buckets that were sent, to send them again.
    remembered: VecDeque<SentBucket>,
    /// Flows that were sent on the present connection, and receipts for them.
    sent: u64,
    receipts: Arc<AtomicU64>,
}

/// A bucket that was sent.
#[derive(Debug)]
struct SentBucket {
    start: i64,
    flows: Vec<Flow>,
    /// Number of flows on the connection including this bucket; `None` if it was not sent completely.
    end: Option<u64>,
    /// An earlier connection returned receipts for all of it.
    is_delivered: bool,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the collector returned {:?}: {}", .0.code(), .0.message())]
    Status(Box<tonic::Status>),
    #[error("the collector ended the stream")]
    Ended,
}

impl FlowPusher {
    /// Creates a pusher that begins with the oldest bucket of the ring.
    pub fn new(collector: Arc<FlowCollector>, target: CollectorTarget) -> FlowPusher {
        let next = collector.read(|ring| ring.oldest());
        FlowPusher {
            collector,
            target,
            state: Arc::default(),
            next,
            remembered: VecDeque::new(),
            sent: 0,
            receipts: Arc::default(),
        }
    }

    /// Returns the state, which the pusher updates.
    pub fn state(&self) -> Arc<Mutex<PushState>> {
        self.state.clone()
    }

    fn update(&self, change: impl FnOnce(&mut PushState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sends until it is cancelled.
    pub async fn run(mut self) {
        let mut delay = FIRST_RETRY_DELAY;
        let mut logged = None;
        loop {
            let error = match self.serve_connection().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            self.note_deliveries();
            let reason = error.to_string();
            let mut was_connected = false;
            self.update(|state| {
                was_connected = std::mem::take(&mut state.connected);
                state.error = Some(reason.clone());
            });
            if was_connected {
                delay = FIRST_RETRY_DELAY;
                logged = None;
            }
            if logged.as_ref() != Some(&reason) {
                tracing::warn!(
                    collector = self.target.server,
                    reason,
                    "cannot send flows to the collector; trying again"
                );
                logged = Some(reason);
            }
            tokio::time::sleep(delay).await;
            delay = (2 * delay).min(MAX_RETRY_DELAY);
        }
    }

    /// Notes which buckets the collector has confirmed on the connection that has ended.
    fn note_deliveries(&mut self) {
        let receipts = self.receipts.swap(0, Ordering::Relaxed);
        self.sent = 0;
        for bucket in &mut self.remembered {
            bucket.is_delivered |= bucket.end.take().is_some_and(|end| end <= receipts);
        }
    }

    /// Sends flows on one connection until it ends.
    async fn serve_connection(&mut self) -> Result<std::convert::Infallible, PushError> {
        let mut client = self.target.connect_sender().await?;
        let (sender, updates) = mpsc::channel(SEND_QUEUE_FLOWS);
        let server = self.target.server.clone();
        let window = Arc::new(Semaphore::new(MAX_UNCONFIRMED_FLOWS as usize));
        let (state, confirmed, receipts_here) = (self.state.clone(), window.clone(), self.receipts.clone());
        // Flows are sent before the response begins: servers written in Go, such as Goldmane, send its headers with the
        // first receipt.
        let reading = async move {
            let mut receipts = match client.connect(ReceiverStream::new(updates)).await {
                Ok(response) => response.into_inner(),
                Err(status) => return PushError::Status(Box::new(status)),
            };
            state.lock().unwrap_or_else(PoisonError::into_inner).connected = true;
            tracing::info!(collector = server, "sending flows to the collector");
            loop {
                match receipts.message().await {
                    Ok(Some(_)) => {
                        confirmed.add_permits(1);
                        receipts_here.fetch_add(1, Ordering::Relaxed);
                        state.lock().unwrap_or_else(PoisonError::into_inner).receipts += 1;
                    }
                    Ok(None) => return PushError::Ended,
                    Err(status) => return PushError::Status(Box::new(status)),
                }
            }
        };
        self.update(|state| state.error = None);
        tokio::select! {
            biased;
            // First, because it knows why the connection has ended.
            error = reading => Err(error),
            never = self.send_all(&sender, &window) => never,
        }
    }

    /// Sends the remembered flows, then each bucket when it is complete.
    async fn send_all(
        &mut self,
        sender: &mpsc::Sender<FlowUpdate>,
        window: &Semaphore,
    ) -> Result<std::convert::Infallible, PushError> {
        self.forget(now_seconds());
        for position in 0..self.remembered.len() {
            self.send_bucket(position, sender, window).await?;
        }
        loop {
            let now = now_seconds();
            let end = self.collector.read(|ring| ring.bucket_at(now - BUCKET_DELAY_SECONDS));
            while self.next < end {
                let flows = self.read_bucket();
                // Remember the bucket first: after a reconnect it is sent from its beginning.
                let start = self.collector.read(|ring| ring.start_of(self.next));
                self.next += 1;
                self.remembered.push_back(SentBucket { start, flows, end: None, is_delivered: false });
                let newest = self.remembered.len() - 1;
                self.send_bucket(newest, sender, window).await?;
                self.note_receipts();
                self.forget(now);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn send_bucket(
        &mut self,
        position: usize,
        sender: &mpsc::Sender<FlowUpdate>,
        window: &Semaphore,
    ) -> Result<(), PushError> {
        let bucket = &mut self.remembered[position];
        let is_new = !bucket.is_delivered && bucket.end.is_none();
        for flow in &bucket.flows {
            send_flow(flow, sender, window).await?;
            self.sent += 1;
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            *(if is_new { &mut state.sent } else { &mut state.sent_again }) += 1;
        }
        bucket.end = Some(self.sent);
        Ok(())
    }

    /// Notes which buckets the collector has confirmed so far.
    fn note_receipts(&mut self) {
        let receipts = self.receipts.load(Ordering::Relaxed);
        for bucket in &mut self.remembered {
            bucket.is_delivered |= bucket.end.is_some_and(|end| end <= receipts);
        }
    }

    /// Returns the flows of the next bucket. Buckets that are gone are skipped.
    fn read_bucket(&mut self) -> Vec<Flow> {
        let oldest = self.collector.read(|ring| ring.oldest());
        if self.next < oldest {
            let lost = u64::from(oldest - self.next);
            self.update(|state| state.lost_buckets += lost);
            tracing::warn!(lost, "flows left the ring before the collector was back");
            self.next = oldest;
        }
        let Some(snapshot) = self.collector.snapshot_bucket(self.next) else { return Vec::new() };
        let all = 0..snapshot.flows.len();
        let results = self.collector.read_snapshot(&snapshot, all, &Filter::default());
        results.into_iter().filter_map(|result| result.flow).collect()
    }

    /// Forgets confirmed buckets that are too old to be sent again, or too many. Flows without a receipt are few.
    fn forget(&mut self, now: i64) {
        let mut flows: usize = self.remembered.iter().map(|bucket| bucket.flows.len()).sum();
        self.remembered.retain(|bucket| {
            let is_kept =
                !bucket.is_delivered || bucket.start >= now - RESEND_SECONDS && flows <= MAX_REMEMBERED_FLOWS;
            if !is_kept {
                flows -= bucket.flows.len();
            }
            is_kept
        });
    }
}

/// Waits until the collector has confirmed enough flows, and sends one.
async fn send_flow(
    flow: &Flow,
    sender: &mpsc::Sender<FlowUpdate>,
    window: &Semaphore,
) -> Result<(), PushError> {
    let permit = window.acquire().await.map_err(|_| PushError::Ended)?;
    permit.forget();
    sender.send(FlowUpdate { flow: Some(flow.clone()) }).await.map_err(|_| PushError::Ended)
}
