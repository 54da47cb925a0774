//! Finds the watches that a change concerns and adds it to their streams, without ever blocking on one of them.
//!
//! Watches of one key or one prefix, which are nearly all of them, are found by a lookup of the key, however many
//! there are; other ranges are compared one by one. A watch whose stream has no room is removed and catches up from
//! disk.

use super::filter::WatchFilter;
use super::frame::WatchFrame;
use super::queue::QueuedBytes;
use super::stream::{LaggingWatch, StreamOutbox};
use crate::change::{KeyChange, RevisionCommit};
use crate::snapshot::LatestSnapshot;
use crate::validate::MAX_REQUEST_BYTES;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifies a live watch in the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LiveWatchId(u64);

pub struct WatchHub {
    latest: Arc<LatestSnapshot>,
    waiting: Arc<QueuedBytes>,
    watches: Mutex<LiveWatches>,
}

struct LiveWatches {
    /// Every change up to this revision has been added to the streams.
    published: i64,
    next_id: u64,
    live: HashMap<LiveWatchId, LiveWatch>,
    keys: HashMap<Bytes, BTreeSet<LiveWatchId>>,
    /// By prefix length, so that a key needs one lookup for each length in use.
    prefixes: BTreeMap<usize, HashMap<Bytes, BTreeSet<LiveWatchId>>>,
    others: BTreeSet<LiveWatchId>,
}

struct LiveWatch {
    interest: WatchFilter,
    outbox: Arc<StreamOutbox>,
    /// The first revision that it has not received.
    next: i64,
    /// Events of the publication in progress.
    pending: Vec<Arc<KeyChange>>,
    /// Whether the events lack their previous values.
    incomplete: bool,
    /// Whether an event was sent since the last progress notification.
    busy: bool,
    /// The revision of the last progress notification.
    progress: i64,
}

impl WatchHub {
    pub fn new(latest: Arc<LatestSnapshot>) -> WatchHub {
        let published = latest.get().state.revision;
        WatchHub {
            latest,
            waiting: Arc::default(),
            watches: Mutex::new(LiveWatches {
                published,
                next_id: 0,
                live: HashMap::new(),
                keys: HashMap::new(),
                prefixes: BTreeMap::new(),
                others: BTreeSet::new(),
            }),
        }
    }

    pub fn latest(&self) -> &Arc<LatestSnapshot> {
        &self.latest
    }

    /// Returns the counter of bytes that are queued on all streams.
    pub fn waiting(&self) -> &Arc<QueuedBytes> {
        &self.waiting
    }

    /// Makes a watch live from revision `next` on (by default from the next one), after calling `announce` with the
    /// newest revision while nothing can be published. Returns `None` if changes between `next` and now must be read
    /// from disk.
    pub fn join(
        &self,
        interest: &WatchFilter,
        outbox: &Arc<StreamOutbox>,
        next: Option<i64>,
        announce: impl FnOnce(i64),
    ) -> Option<LiveWatchId> {
        let mut watches = self.lock();
        // Acknowledged writes are in the newest snapshot, but may not have been published yet.
        let revision = self.latest.get().state.revision;
        announce(revision);
        let next = next.unwrap_or(revision + 1);
        if next <= watches.published {
            return None;
        }
        Some(watches.insert(LiveWatch {
            interest: interest.clone(),
            outbox: outbox.clone(),
            next,
            pending: Vec::new(),
            incomplete: false,
            busy: false,
            progress: 0,
        }))
    }

    /// Removes a watch; afterwards nothing more is added to its stream.
    pub fn leave(&self, watch: LiveWatchId) {
        self.lock().remove(watch);
    }

    /// Adds durable changes, in order, to the streams of their watchers.
    pub fn publish(&self, commits: &[RevisionCommit]) {
        let Some(revision) = commits.last().map(|commit| commit.revision) else { return };
        let mut watches = self.lock();
        watches.published = revision;
        if watches.live.is_empty() {
            return;
        }
        let mut touched = Vec::new();
        for commit in commits {
            for change in &commit.changes {
                watches.add_change(commit, change, &mut touched);
            }
        }
        for watch in touched {
            watches.deliver(watch, revision);
        }
    }

    /// Calls `send` with the revision up to which everything has been sent, while nothing can be published.
    pub fn while_published(&self, send: impl FnOnce(i64)) {
        let watches = self.lock();
        send(watches.published);
    }

    /// Sends a progress notification to every watch that requested them and has received no event since the last one,
    /// if the revision has advanced.
    pub fn send_progress_to_idle(&self, ids: &[LiveWatchId]) {
        let mut watches = self.lock();
        let revision = watches.published;
        for id in ids {
            if let Some(live) = watches.live.get_mut(id)
                && live.interest.progress
                && !std::mem::take(&mut live.busy)
                && std::mem::replace(&mut live.progress, revision) != revision
            {
                live.outbox.offer(WatchFrame {
                    revision,
                    watch_id: live.interest.id,
                    ..WatchFrame::default()
                });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LiveWatches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveWatches {
    fn insert(&mut self, live: LiveWatch) -> LiveWatchId {
        let watch = LiveWatchId(self.next_id);
        self.next_id += 1;
        self.group(&live.interest).insert(watch);
        self.live.insert(watch, live);
        watch
    }

    fn remove(&mut self, watch: LiveWatchId) -> Option<LiveWatch> {
        let live = self.live.remove(&watch)?;
        let group = self.group(&live.interest);
        group.remove(&watch);
        if group.is_empty() {
            self.drop_group(&live.interest);
        }
        Some(live)
    }

    fn group(&mut self, interest: &WatchFilter) -> &mut BTreeSet<LiveWatchId> {
        match (&interest.span, interest.span.prefix()) {
            (crate::key_span::KeySpan::Key(key), _) => self.keys.entry(key.clone()).or_default(),
            (_, Some(prefix)) => {
                self.prefixes.entry(prefix.len()).or_default().entry(prefix.clone()).or_default()
            }
            _ => &mut self.others,
        }
    }

    fn drop_group(&mut self, interest: &WatchFilter) {
        match (&interest.span, interest.span.prefix()) {
            (crate::key_span::KeySpan::Key(key), _) => drop(self.keys.remove(key)),
            (_, Some(prefix)) => {
                if let Some(of_length) = self.prefixes.get_mut(&prefix.len()) {
                    of_length.remove(prefix);
                    if of_length.is_empty() {
                        self.prefixes.remove(&prefix.len());
                    }
                }
            }
            _ => {}
        }
    }

    fn add_change(
        &mut self,
        commit: &RevisionCommit,
        change: &Arc<KeyChange>,
        touched: &mut Vec<LiveWatchId>,
    ) {
        let key = &change.kv.key;
        let by_key = self.keys.get(key).into_iter();
        let by_prefix =
            self.prefixes.range(..=key.len()).filter_map(|(len, prefixes)| prefixes.get(key.get(..*len)?));
        for watch in by_key.chain(by_prefix).flatten().chain(&self.others) {
            let Some(live) = self.live.get_mut(watch) else { continue };
            if commit.revision < live.next
                || !live.interest.span.contains(key)
                || !live.interest.wants(change)
            {
                continue;
            }
            if live.pending.is_empty() {
                touched.push(*watch);
            }
            live.incomplete |= live.interest.with_previous && !commit.is_whole;
            live.pending.push(change.clone());
        }
    }

    fn deliver(&mut self, watch: LiveWatchId, revision: i64) {
        let Some(live) = self.live.get_mut(&watch) else { return };
        let frame = WatchFrame {
            revision,
            watch_id: live.interest.id,
            events: std::mem::take(&mut live.pending),
            with_previous: live.interest.with_previous,
            ..WatchFrame::default()
        };
        let first = frame.events.first().map_or(revision, |change| change.kv.mod_revision);
        live.busy = true;
        // A fragmented response needs several slots in the stream; only catching up waits for them.
        let by_itself = live.incomplete || live.interest.fragment && is_large(&frame);
        let sent = !by_itself && live.outbox.offer(frame);
        if sent {
            live.next = revision + 1;
        } else if let Some(live) = self.remove(watch) {
            live.outbox.fell_behind(LaggingWatch { interest: live.interest, next: first });
        }
    }
}

/// Size above which a response is split for a client that requested fragments.
pub const MAX_FRAGMENT_BYTES: usize = MAX_REQUEST_BYTES;

fn is_large(frame: &WatchFrame) -> bool {
    frame.events.iter().map(|change| change.event(frame.with_previous).len()).sum::<usize>()
        > MAX_FRAGMENT_BYTES
}
