//! The collector without its network: the ring behind a lock, the clock, and the counters.

use crate::metrics::CollectorMetrics;
use crate::proto::{Filter, Flow, FlowListResult, FlowResult, ListMetadata};
use crate::resend::{NodeConnection, ResendFilter};
use crate::ring::{
    BucketNumber, BucketSnapshot, FlowQuery, FlowRejection, FlowRing, MAX_RESULT_BYTES, QueryError,
    RingOptions,
};
use prost::Message;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tortie_http::liveness::ComponentHeartbeat;

/// Number of flows that are summed while the ring is locked.
const LIST_CHUNK_FLOWS: usize = 512;
/// Flows that are remembered to recognise those that are sent again; about 30 bytes each.
const MAX_REMEMBERED_FLOWS: usize = 1 << 20;
/// The time of one of so many updates is measured.
const INDEX_TIME_SAMPLING: u64 = 64;
/// Interval between log lines about flows that are not recorded.
const REJECTION_LOG_SECONDS: i64 = 60;

#[derive(Debug)]
pub struct FlowCollector {
    ring: RwLock<FlowRing>,
    resends: Mutex<ResendFilter>,
    metrics: CollectorMetrics,
    /// The end of the complete buckets.
    complete: watch::Sender<BucketNumber>,
    connections: AtomicU32,
    updates: AtomicU64,
    last_rejection_log: Mutex<i64>,
}

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(
        "{total} flows match, which is more than one response can contain; request pages with page_size, or filter"
    )]
    TooLarge { total: usize },
}

/// Returns the seconds since 1970.
pub fn now_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl FlowCollector {
    pub fn new(options: RingOptions) -> FlowCollector {
        let ring = FlowRing::new(options, now_seconds());
        FlowCollector {
            complete: watch::Sender::new(ring.complete_end()),
            ring: RwLock::new(ring),
            resends: Mutex::new(ResendFilter::new(MAX_REMEMBERED_FLOWS)),
            metrics: CollectorMetrics::new(),
            connections: AtomicU32::new(0),
            updates: AtomicU64::new(0),
            last_rejection_log: Mutex::new(0),
        }
    }

    pub fn metrics(&self) -> &CollectorMetrics {
        &self.metrics
    }

    /// Calls `read` with the ring.
    pub fn read<T>(&self, read: impl FnOnce(&FlowRing) -> T) -> T {
        read(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut FlowRing) -> T) -> T {
        write(&mut self.ring.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn forgotten_resends(&self) -> u64 {
        self.resends.lock().unwrap_or_else(PoisonError::into_inner).forgotten()
    }

    /// Returns the identity of a new connection of a node.
    pub fn open_connection(&self, peer: IpAddr) -> NodeConnection {
        NodeConnection { peer, number: self.connections.fetch_add(1, Ordering::Relaxed) }
    }

    /// Records a flow. Flows that cannot be recorded are counted.
    pub fn receive(&self, from: NodeConnection, flow: Option<&Flow>) {
        self.metrics.received.inc();
        let now = now_seconds();
        let Some(flow) = flow else {
            self.count_rejection(from, &"the update has no flow", now);
            return;
        };
        if self.resends.lock().unwrap_or_else(PoisonError::into_inner).is_resent(from, flow, now) {
            self.metrics.resent.inc();
            return;
        }
        let is_measured = self.updates.fetch_add(1, Ordering::Relaxed).is_multiple_of(INDEX_TIME_SAMPLING);
        let started = is_measured.then(Instant::now);
        let recorded = self.write(|ring| ring.add(flow, now));
        if let Some(started) = started {
            self.metrics.index_time.observe(milliseconds(started.elapsed()));
        }
        match recorded {
            Ok(recorded) => {
                self.metrics.late.inc_by(u64::from(recorded.was_complete));
                self.metrics.folded.inc_by(recorded.folded_keys as u64);
            }
            Err(rejection) => self.count_rejection(from, &rejection, now),
        }
    }

    /// Records a flow of this node itself.
    pub fn record(&self, flow: &Flow) -> Result<(), FlowRejection> {
        self.metrics.received.inc();
        let recorded = self.write(|ring| ring.add(flow, now_seconds()));
        match recorded {
            Ok(recorded) => {
                self.metrics.folded.inc_by(recorded.folded_keys as u64);
                Ok(())
            }
            Err(rejection) => {
                self.metrics.dropped.inc();
                Err(rejection)
            }
        }
    }

    fn count_rejection(&self, from: NodeConnection, reason: &dyn std::fmt::Display, now: i64) {
        self.metrics.dropped.inc();
        let mut last = self.last_rejection_log.lock().unwrap_or_else(PoisonError::into_inner);
        if now - *last >= REJECTION_LOG_SECONDS {
            *last = now;
            tracing::warn!(peer = %from.peer, %reason, "a flow was not recorded; others are only counted for a minute");
        }
    }

    /// Lists the flows of a page.
    pub fn list(&self, query: &FlowQuery) -> Result<FlowListResult, ListError> {
        let now = now_seconds();
        let page = self.read(|ring| ring.select_page(query, now));
        let mut flows: Vec<FlowResult> = Vec::with_capacity(page.flows.len());
        let mut bytes = 0;
        for chunk in page.flows.chunks(LIST_CHUNK_FLOWS) {
            let before = flows.len();
            self.read(|ring| {
                flows.extend(chunk.iter().filter_map(|flow| ring.aggregate(*flow, &page.buckets)))
            });
            bytes += flows[before..].iter().map(FlowResult::encoded_len).sum::<usize>();
            if bytes > MAX_RESULT_BYTES {
                self.metrics.oversized_lists.inc();
                return Err(ListError::TooLarge { total: page.total });
            }
        }
        let meta = describe_pages(query.page.total_pages(page.total), page.total);
        Ok(FlowListResult { meta: Some(meta), flows })
    }

    /// Returns a watch of the end of the complete buckets.
    pub fn subscribe(&self) -> watch::Receiver<BucketNumber> {
        self.complete.subscribe()
    }

    pub fn snapshot_bucket(&self, bucket: BucketNumber) -> Option<Arc<BucketSnapshot>> {
        self.write(|ring| ring.snapshot_bucket(bucket))
    }

    /// Returns the matching flows of a part of a snapshot.
    pub fn read_snapshot(
        &self,
        snapshot: &BucketSnapshot,
        part: Range<usize>,
        filter: &Filter,
    ) -> Vec<FlowResult> {
        let (flows, gone) = self.read(|ring| ring.read_snapshot(snapshot, part, filter));
        self.metrics.skipped_flows.inc_by(gone as u64);
        flows
    }

    /// Moves the ring on as time passes and announces complete buckets.
    pub async fn keep_time(&self, heartbeat: ComponentHeartbeat) {
        loop {
            heartbeat.beat();
            let started = Instant::now();
            let now = now_seconds();
            let (steps, end, start) = self.write(|ring| {
                let steps = ring.advance(now);
                (steps, ring.complete_end(), ring.start_of(ring.current()))
            });
            if steps > 0 {
                self.metrics.rollover_time.observe(milliseconds(started.elapsed()));
                self.metrics.rollover_delay.observe(1000.0 * now.saturating_sub(start) as f64);
                self.complete.send_replace(end);
            }
            tokio::time::sleep(until_next_second()).await;
        }
    }
}

/// Returns the metadata of a list.
pub fn describe_pages(pages: usize, total: usize) -> ListMetadata {
    let clamp = |count| i64::try_from(count).unwrap_or(i64::MAX);
    ListMetadata { total_pages: clamp(pages), total_results: clamp(total) }
}

fn milliseconds(elapsed: Duration) -> f64 {
    elapsed.as_secs_f64() * 1000.0
}

fn until_next_second() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(1001 - u64::from(since.subsec_millis()))
}
