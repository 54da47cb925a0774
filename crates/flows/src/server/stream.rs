//! A stream of one reader: the history from the requested time, then each bucket once it is complete. A slow reader loses
//! flows, which are counted, and delays no other reader.

use crate::collector::FlowCollector;
use crate::proto::{Filter, FlowResult};
use crate::ring::{BucketNumber, BucketSnapshot};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::Status;

/// Number of flows that wait for a reader.
pub const STREAM_QUEUE_FLOWS: usize = 256;
/// Number of flows that are read from the ring at a time.
const CHUNK_FLOWS: usize = 256;
/// Time for one flow; afterwards the rest of its bucket is skipped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

pub type StreamItem = Result<FlowResult, Status>;

pub struct FlowStream {
    pub collector: Arc<FlowCollector>,
    pub filter: Filter,
    /// The next bucket to send.
    pub next: BucketNumber,
    pub sender: Sender<StreamItem>,
    pub stop: watch::Receiver<bool>,
    /// Counts against the limit of streams.
    pub _permit: OwnedSemaphorePermit,
}

/// Counts a stream as open until it is dropped.
struct StreamGuard(Arc<FlowCollector>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.metrics().streams.dec();
    }
}

impl FlowStream {
    /// Sends flows until the reader or the server ends the stream.
    pub async fn run(mut self) {
        self.collector.metrics().streams.inc();
        let _guard = StreamGuard(self.collector.clone());
        let mut complete = self.collector.subscribe();
        let mut stop = self.stop.clone();
        let sender = self.sender.clone();
        let started = Instant::now();
        let mut is_backfilled = false;
        loop {
            let end = *complete.borrow_and_update();
            let sending = self.send_until(end);
            tokio::select! {
                is_open = sending => if !is_open { return },
                () = sender.closed() => return,
                _ = stop.wait_for(|stop| *stop) => break,
            }
            if !std::mem::replace(&mut is_backfilled, true) {
                self.collector.metrics().backfill_time.observe(started.elapsed().as_secs_f64() * 1000.0);
            }
            tokio::select! {
                changed = complete.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        // If the queue is full, the connection ends without this status.
        let _ = sender.try_send(Err(Status::unavailable("the collector stops")));
    }

    /// Sends the buckets before `end`. Returns whether the reader is still there.
    async fn send_until(&mut self, end: BucketNumber) -> bool {
        while self.next < end {
            let Some(snapshot) = self.collector.snapshot_bucket(self.next) else {
                let oldest = self.collector.read(|ring| ring.oldest());
                // The bucket left the ring before this reader was fast enough.
                self.collector.metrics().skipped_buckets.inc_by(u64::from(oldest.saturating_sub(self.next)));
                self.next = oldest.max(self.next + 1);
                continue;
            };
            if !self.send_bucket(&snapshot).await {
                return false;
            }
            self.next += 1;
        }
        true
    }

    async fn send_bucket(&self, snapshot: &BucketSnapshot) -> bool {
        let total = snapshot.flows.len();
        for begin in (0..total).step_by(CHUNK_FLOWS) {
            let end = (begin + CHUNK_FLOWS).min(total);
            let flows = self.collector.read_snapshot(snapshot, begin..end, &self.filter);
            let mut left = flows.len();
            for flow in flows {
                match self.sender.send_timeout(Ok(flow), WRITE_TIMEOUT).await {
                    Ok(()) => left -= 1,
                    Err(SendTimeoutError::Closed(_)) => return false,
                    Err(SendTimeoutError::Timeout(_)) => {
                        self.collector.metrics().skipped_flows.inc_by((left + total - end) as u64);
                        return true;
                    }
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::now_seconds;
    use crate::proto::{Flow, FlowKey};
    use crate::ring::RingOptions;
    use tokio::sync::{Semaphore, mpsc};

    const FLOWS: usize = 1000;

    fn start_stream(collector: &Arc<FlowCollector>, next: BucketNumber) -> mpsc::Receiver<StreamItem> {
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE_FLOWS);
        let (_stop, stop) = watch::channel(false);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let stream = FlowStream {
            collector: collector.clone(),
            filter: Filter::default(),
            next,
            sender,
            stop,
            _permit: permit,
        };
        tokio::spawn(async move {
            let _stop = _stop;
            stream.run().await;
        });
        receiver
    }

    /// Returns a collector with flows in one complete bucket, and this bucket.
    fn collector_with_flows() -> (Arc<FlowCollector>, BucketNumber) {
        let options = RingOptions { window: 15, max_bytes: 64 << 20 };
        let collector = Arc::new(FlowCollector::new(options));
        let start_time = now_seconds() - 300;
        let from = collector.open_connection([127, 0, 0, 1].into());
        for number in 0..FLOWS {
            let key = FlowKey { source_name: format!("web-{number}"), ..FlowKey::default() };
            collector.receive(from, Some(&Flow { key: Some(key), start_time, ..Flow::default() }));
        }
        let bucket = collector.read(|ring| ring.first_bucket_from(start_time - 14));
        (collector, bucket)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_loses_counted_flows() {
        let (collector, bucket) = collector_with_flows();
        let mut slow = start_stream(&collector, bucket);
        let mut fast = start_stream(&collector, bucket);
        for _ in 0..FLOWS {
            fast.recv().await.unwrap().unwrap();
        }
        assert_eq!(collector.metrics().skipped_flows.get(), 0);
        tokio::time::sleep(2 * WRITE_TIMEOUT).await;
        assert_eq!(collector.metrics().skipped_flows.get() as usize, FLOWS - STREAM_QUEUE_FLOWS);
        for _ in 0..STREAM_QUEUE_FLOWS {
            slow.recv().await.unwrap().unwrap();
        }
        assert!(slow.try_recv().is_err());
        drop((slow, fast));
        tokio::time::sleep(WRITE_TIMEOUT).await;
        assert_eq!(collector.metrics().streams.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn buckets_that_left_the_ring_are_counted() {
        let (collector, bucket) = collector_with_flows();
        let oldest = collector.read(|ring| ring.oldest());
        let mut reader = start_stream(&collector, oldest - 5);
        reader.recv().await.unwrap().unwrap();
        assert_eq!(collector.metrics().skipped_buckets.get(), 5);
        assert!(bucket > oldest);
    }
}
