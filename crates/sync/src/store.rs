//! The feed from the store: one watch per key range, merged into one channel. Also reports outages and whether the
//! watches make progress.

use crate::Feed;
use crate::outage::OutageReport;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tortie_model::{FeedEvent, KeyRange, Revision};
use tortie_store::{
    StoreClient, StoreEntry, StoreError, StoreEvent, StoreResult, StoreWatch, WatchConnection,
};

/// Capacity of the channel of a feed. When it is full, the watches wait for the consumer.
const FEED_CAPACITY: usize = 1024;
/// Interval between checks of the watch connections. A watch that reconnects within this interval does not count as
/// an outage.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a sign of life after which a watch counts as stuck. A working watch gives one more often, even while
/// the store is unavailable.
const STUCK_WATCH_TIMEOUT: Duration = Duration::from_secs(300);

/// Time without a sign of life of any watch after which the store is probed. Watches of a busy store give one more often.
const MAX_STORE_SILENCE: Duration = Duration::from_secs(3);
/// The same for an API server, which all clients of the cluster share.
const MAX_API_SERVER_SILENCE: Duration = Duration::from_secs(10);
/// Delay before the next probe after one that failed.
const PROBE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Number of consecutive probes without a response after which the store counts as lost. One may fail on a busy machine.
const MAX_FAILED_PROBES: u64 = 2;

/// A message of a feed with progress reports.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly every one is an event")]
pub enum FeedMessage {
    Event(FeedEvent),
    /// All events of the range up to this revision have been sent.
    Reached {
        range: KeyRange,
        revision: Revision,
    },
}

/// Follows the ranges until the feed is dropped. If one of the watches ends, the whole feed ends: otherwise the
/// consumer could not distinguish the missing events from a quiet range. Calls `alive` every second as long as no
/// watch is stuck.
///
/// While all watches are silent, probes the store, so that one that hangs is reported as lost within seconds.
pub fn follow(client: &StoreClient, ranges: Vec<KeyRange>, alive: impl Fn() + Send + 'static) -> Feed {
    merge(start_watches(client, ranges), Some(client), FeedMessage::into_event, alive)
}

/// Like [`follow`] without probes, for additional feeds of a process.
pub fn follow_unprobed(client: &StoreClient, ranges: Vec<KeyRange>) -> Feed {
    merge(start_watches(client, ranges), None, FeedMessage::into_event, || {})
}

fn start_watches(client: &StoreClient, ranges: Vec<KeyRange>) -> Vec<(KeyRange, StoreWatch)> {
    ranges.into_iter().map(|range| (range.clone(), client.watch(range, None))).collect()
}

impl FeedMessage {
    fn into_event(self) -> Option<FeedEvent> {
        match self {
            FeedMessage::Event(event) => Some(event),
            FeedMessage::Reached { .. } => None,
        }
    }
}

/// Like [`follow`] for consumers that only forward entries: also reports for each range the revision up to which all
/// events have been sent, and does not decode values that the store holds in encoded form (`StoreValue::Raw`).
pub fn follow_with_progress(
    client: &StoreClient,
    ranges: Vec<KeyRange>,
    alive: impl Fn() + Send + 'static,
) -> mpsc::Receiver<FeedMessage> {
    let watches = ranges.into_iter().map(|range| (range.clone(), client.watch_undecoded(range))).collect();
    merge(watches, Some(client), Some, alive)
}

fn merge<T: Send + 'static>(
    watches: Vec<(KeyRange, StoreWatch)>,
    probed: Option<&StoreClient>,
    pick: fn(FeedMessage) -> Option<T>,
    alive: impl Fn() + Send + 'static,
) -> mpsc::Receiver<T> {
    let (sender, feed) = mpsc::channel(FEED_CAPACITY);
    let missing = Arc::new(AtomicUsize::new(watches.len()));
    let mut connections = Vec::new();
    let mut signs = Vec::new();
    let mut tasks = JoinSet::new();
    for (range, watch) in watches {
        connections.push(watch.connection());
        signs.push(watch.signs_of_life());
        tasks.spawn(pass_on(range, watch, missing.clone(), sender.clone(), pick));
    }
    if let Some(client) = probed {
        let (report, connection) = watch::channel(WatchConnection::default());
        connections.push(connection);
        let client = client.clone();
        let is_api_server = client.capabilities().is_api_server;
        let silence = if is_api_server { MAX_API_SERVER_SILENCE } else { MAX_STORE_SILENCE };
        tasks.spawn(probe_silent_store(async move || client.probe().await, silence, signs.clone(), report));
    }
    tasks.spawn(report_outages(connections, sender.clone(), pick));
    tasks.spawn(report_life(signs, alive));
    tokio::spawn(async move {
        let ended = tasks.join_next().await;
        if !sender.is_closed() {
            tracing::error!(?ended, "a watch of the datastore has ended, and with it the feed");
        }
    });
    feed
}

/// Forwards the events of one watch. `missing` counts the watches whose snapshot is incomplete. The watch that
/// decrements it to zero sends `InSync`: at that time the snapshots of all other watches are already in the channel.
async fn pass_on<T>(
    range: KeyRange,
    mut watch: StoreWatch,
    missing: Arc<AtomicUsize>,
    sender: mpsc::Sender<T>,
    pick: fn(FeedMessage) -> Option<T>,
) {
    while let Some(event) = watch.next().await {
        let heard = match event {
            StoreEvent::Put(StoreEntry { key, value, revision }) => {
                FeedMessage::Event(FeedEvent::Put { key, value, revision })
            }
            StoreEvent::Delete { key, revision } => FeedMessage::Event(FeedEvent::Delete { key, revision }),
            StoreEvent::Unreadable { key, revision, error } => {
                let (text, reason) = match error {
                    StoreError::Parse { value, reason, .. } => (value, reason),
                    other => (String::new(), other.to_string()),
                };
                FeedMessage::Event(FeedEvent::Unreadable { key, revision, text, reason })
            }
            StoreEvent::InSync(_) if missing.fetch_sub(1, Ordering::AcqRel) == 1 => {
                FeedMessage::Event(FeedEvent::InSync)
            }
            StoreEvent::Reached(revision) => FeedMessage::Reached { range: range.clone(), revision },
            // A watch that starts at the present is never reset.
            StoreEvent::InSync(_) | StoreEvent::Reset => continue,
        };
        if let Some(word) = pick(heard)
            && sender.send(word).await.is_err()
        {
            return;
        }
    }
}

/// Calls `alive` every second as long as each of these counters changes at least every 300 seconds.
pub async fn report_life(signs: Vec<Arc<AtomicU64>>, alive: impl Fn()) {
    let mut look = tokio::time::interval(CONNECTION_CHECK_INTERVAL);
    let mut last: Vec<(u64, Instant)> = signs.iter().map(|_| (0, Instant::now())).collect();
    loop {
        let now = look.tick().await;
        for ((count, since), sign) in last.iter_mut().zip(&signs) {
            let current = sign.load(Ordering::Relaxed);
            if std::mem::replace(count, current) != current {
                *since = now;
            }
        }
        if last.iter().all(|(_, since)| now.duration_since(*since) < STUCK_WATCH_TIMEOUT) {
            alive();
        }
    }
}

/// Probes the store whenever no sign of life has changed for the duration of `silence`, and reports a store that does not
/// respond. Never returns.
async fn probe_silent_store(
    probe: impl AsyncFn() -> StoreResult<()>,
    silence: Duration,
    signs: Vec<Arc<AtomicU64>>,
    report: watch::Sender<WatchConnection>,
) {
    let count_signs = || signs.iter().map(|sign| sign.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
    let mut last = count_signs();
    let mut failed_probes = 0;
    loop {
        tokio::time::sleep(if failed_probes == 0 { silence } else { PROBE_RETRY_DELAY }).await;
        let current = count_signs();
        if std::mem::replace(&mut last, current) != current && failed_probes == 0 {
            continue;
        }
        match probe().await {
            Ok(()) => {
                failed_probes = 0;
                report.send_if_modified(|connection| connection.trouble.take().is_some());
            }
            Err(error) => {
                failed_probes += 1;
                if failed_probes >= MAX_FAILED_PROBES {
                    report.send_modify(|connection| {
                        connection.trouble = Some(error.to_string());
                        connection.failed_attempts += 1;
                    });
                }
            }
        }
    }
}

async fn report_outages<T>(
    connections: Vec<watch::Receiver<WatchConnection>>,
    sender: mpsc::Sender<T>,
    pick: fn(FeedMessage) -> Option<T>,
) {
    let mut look = tokio::time::interval(CONNECTION_CHECK_INTERVAL);
    let mut outage = OutageReport::default();
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = sender.closed() => return,
        }
        let now: Vec<WatchConnection> =
            connections.iter().map(|connection| connection.borrow().clone()).collect();
        if let Some(word) = outage.look(&now).map(FeedMessage::Event).and_then(pick)
            && sender.send(word).await.is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_stuck_is_not_alive() {
        let signs: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
        let beats = Arc::new(AtomicU64::new(0));
        let counted = beats.clone();
        let alive = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let _reporting = tokio::spawn(report_life(signs.clone(), alive));
        let beats_within = async |seconds: u64, watches: &[Arc<AtomicU64>]| {
            let before = beats.load(Ordering::Relaxed);
            for _ in 0..seconds {
                tokio::time::sleep(CONNECTION_CHECK_INTERVAL).await;
                for watch in watches {
                    watch.fetch_add(1, Ordering::Relaxed);
                }
            }
            beats.load(Ordering::Relaxed) - before
        };
        assert!(beats_within(600, &signs).await >= 599);
        let before_it_is_missed = beats_within(600, &signs[1..]).await;
        assert!((299..=302).contains(&before_it_is_missed), "{before_it_is_missed}");
        assert_eq!(beats_within(100, &signs[1..]).await, 0);
        assert!(beats_within(100, &signs).await >= 98, "it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_store_is_lost_within_seconds() {
        const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
        let signs: Vec<Arc<AtomicU64>> = (0..2).map(|_| Arc::default()).collect();
        let hangs = Arc::new(AtomicBool::new(false));
        let probes = Arc::new(AtomicU64::new(0));
        let (report, connection) = watch::channel(WatchConnection::default());
        let (server, counted) = (hangs.clone(), probes.clone());
        let probe = async move || {
            counted.fetch_add(1, Ordering::Relaxed);
            if server.load(Ordering::Relaxed) {
                tokio::time::sleep(PROBE_TIMEOUT).await;
                return Err(StoreError::Datastore("no answer".into()));
            }
            Ok(())
        };
        let _probing = tokio::spawn(probe_silent_store(probe, MAX_STORE_SILENCE, signs.clone(), report));
        let (sender, mut events) = mpsc::channel(8);
        let _reporting = tokio::spawn(report_outages(vec![connection], sender, FeedMessage::into_event));
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            signs[1].fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(probes.load(Ordering::Relaxed), 0, "a store that sends events is not probed");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!((9..=10).contains(&probes.load(Ordering::Relaxed)), "{probes:?}");
        hangs.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let lost = FeedEvent::ConnectionLost { reason: "no answer".to_owned() };
        assert_eq!(events.recv().await, Some(lost));
        assert!(began.elapsed() <= Duration::from_secs(14), "{:?}", began.elapsed());
        hangs.store(false, Ordering::Relaxed);
        assert!(matches!(events.recv().await, Some(FeedEvent::ConnectionBack { .. })));
        assert!(began.elapsed() <= Duration::from_secs(21), "{:?}", began.elapsed());
    }
}
