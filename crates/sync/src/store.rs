//! The feed from the store: one watch for each range, merged.

use crate::Feed;
use crate::outage::Outage;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tortie_model::{FeedEvent, KeyRange};
use tortie_store::{Client, Connection, Entry, Error, Event, Watch};

/// Events that wait for a consumer which is busy; when they are this many, the watches wait.
const QUEUE: usize = 1024;
/// How often the connections of the watches are looked at. A watch that reconnects in between is no outage.
const LOOK: Duration = Duration::from_secs(1);

/// Follows the ranges until the feed is dropped. A feed of which a part has ended ends: what it does not say any more would
/// look like silence.
pub fn follow(client: &Client, ranges: Vec<KeyRange>) -> Feed {
    let (sender, feed) = mpsc::channel(QUEUE);
    let missing = Arc::new(AtomicUsize::new(ranges.len()));
    let (mut connections, mut tasks) = (Vec::with_capacity(ranges.len()), JoinSet::new());
    for range in ranges {
        let watch = client.watch(range, None);
        connections.push(watch.connection());
        tasks.spawn(pass_on(watch, missing.clone(), sender.clone()));
    }
    tasks.spawn(report_outages(connections, sender.clone()));
    tokio::spawn(async move {
        let ended = tasks.join_next().await;
        if !sender.is_closed() {
            tracing::error!(?ended, "a watch of the datastore has ended, and with it the feed");
        }
    });
    feed
}

/// `missing` counts the watches whose snapshot is not complete: the last one completes the feed's. All that the
/// others had in theirs is in the channel by then.
async fn pass_on(mut watch: Watch, missing: Arc<AtomicUsize>, sender: mpsc::Sender<FeedEvent>) {
    while let Some(event) = watch.next().await {
        let event = match event {
            Event::Put(Entry { key, value, revision }) => FeedEvent::Put { key, value, revision },
            Event::Delete { key, revision } => FeedEvent::Delete { key, revision },
            Event::Unreadable { key, error: Error::Parse { value, reason, .. } } => {
                FeedEvent::Unreadable { key, text: value, reason }
            }
            Event::Unreadable { key, error } => {
                FeedEvent::Unreadable { key, text: String::new(), reason: error.to_string() }
            }
            Event::InSync(_) if missing.fetch_sub(1, Ordering::AcqRel) == 1 => FeedEvent::InSync,
            // Ours are watches from the present: they are never reset.
            Event::InSync(_) | Event::Reset => continue,
        };
        if sender.send(event).await.is_err() {
            return;
        }
    }
}

async fn report_outages(connections: Vec<watch::Receiver<Connection>>, sender: mpsc::Sender<FeedEvent>) {
    let mut look = tokio::time::interval(LOOK);
    let mut outage = Outage::default();
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = sender.closed() => return,
        }
        let now: Vec<Connection> = connections.iter().map(|connection| connection.borrow().clone()).collect();
        if let Some(event) = outage.look(&now)
            && sender.send(event).await.is_err()
        {
            return;
        }
    }
}
