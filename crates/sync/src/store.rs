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
use tortie_store::{StoreClient, StoreEntry, StoreError, StoreEvent, StoreWatch, WatchConnection};

/// Capacity of the channel of a feed. When it is full, the watches wait for the consumer.
const FEED_CAPACITY: usize = 1024;
/// Interval between checks of the watch connections. A watch that reconnects within this interval does not count as
/// an outage.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a sign of life after which a watch counts as stuck. A working watch gives one more often, even while
/// the store is unavailable.
const STUCK_WATCH_TIMEOUT: Duration = Duration::from_secs(300);

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
pub fn follow(client: &StoreClient, ranges: Vec<KeyRange>, alive: impl Fn() + Send + 'static) -> Feed {
    let watches = ranges.into_iter().map(|range| (range.clone(), client.watch(range, None))).collect();
    merge(watches, FeedMessage::into_event, alive)
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
    merge(watches, Some, alive)
}

fn merge<T: Send + 'static>(
    watches: Vec<(KeyRange, StoreWatch)>,
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
}
