//! Finds the watches that a change concerns and adds it to their streams, without ever blocking on one of them.
//!
//! Watches of one key or one prefix, which are nearly all of them, are found by a lookup of the key, however many
//! there are; other ranges are compared one by one. A watch whose stream has no room is removed and catches up from
//! disk.

use super::frame::Frame;
use super::interest::Interest;
use super::queue::Waiting;
use super::stream::{Lagging, Outbox};
use crate::change::{Change, Commit};
use crate::check::MAX_REQUEST_BYTES;
use crate::snapshot::Latest;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifies a live watch in the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(u64);

pub struct Hub {
    latest: Arc<Latest>,
    waiting: Arc<Waiting>,
    watches: Mutex<Watches>,
}

struct Watches {
    /// Every change up to this revision has been added to the streams.
    published: i64,
    next_id: u64,
    live: HashMap<WatchId, Live>,
    keys: HashMap<Bytes, BTreeSet<WatchId>>,
    /// By prefix length, so that a key needs one lookup for each length in use.
    prefixes: BTreeMap<usize, HashMap<Bytes, BTreeSet<WatchId>>>,
    others: BTreeSet<WatchId>,
}

struct Live {
    interest: Interest,
    outbox: Arc<Outbox>,
    /// The first revision that it has not received.
    next: i64,
    /// Events of the publication in progress.
    pending: Vec<Arc<Change>>,
    /// Whether the events lack their previous values.
    incomplete: bool,
    /// Whether an event was sent since the last progress notification.
    busy: bool,
    /// The revision of the last progress notification.
    progress: i64,
}

impl Hub {
    pub fn new(latest: Arc<Latest>) -> Hub {
        let published = latest.get().state.revision;
        Hub {
            latest,
            waiting: Arc::default(),
            watches: Mutex::new(Watches {
                published,
                next_id: 0,
                live: HashMap::new(),
                keys: HashMap::new(),
                prefixes: BTreeMap::new(),
                others: BTreeSet::new(),
            }),
        }
    }

    pub fn latest(&self) -> &Arc<Latest> {
        &self.latest
    }

    /// Returns the counter of bytes that are queued on all streams.
    pub fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    /// Makes a watch live from revision `next` on (by default from the next one), after calling `announce` with the
    /// newest revision while nothing can be published. Returns `None` if changes between `next` and now must be read
    /// from disk.
    pub fn join(
        &self,
        interest: &Interest,
        outbox: &Arc<Outbox>,
        next: Option<i64>,
        announce: impl FnOnce(i64),
    ) -> Option<WatchId> {
        let mut watches = self.lock();
        // Acknowledged writes are in the newest snapshot, but may not have been published yet.
        let revision = self.latest.get().state.revision;
        announce(revision);
        let next = next.unwrap_or(revision + 1);
        if next <= watches.published {
            return None;
        }
        Some(watches.insert(Live {
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
    pub fn leave(&self, watch: WatchId) {
        self.lock().remove(watch);
    }

    /// Adds durable changes, in order, to the streams of their watchers.
    pub fn publish(&self, commits: &[Commit]) {
        let Some(revision) = commits.last().map(|commit| commit.revision) else { return };
        let mut watches = self.lock();
        watches.published = revision;
        if watches.live.is_empty() {
            return;
        }
        let mut touched = Vec::new();
        for commit in commits {
            for change in &commit.changes {
                watches.note(commit, change, &mut touched);
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
    pub fn progress_of_idle(&self, ids: &[WatchId]) {
        let mut watches = self.lock();
        let revision = watches.published;
        for id in ids {
            if let Some(live) = watches.live.get_mut(id)
                && live.interest.progress
                && !std::mem::take(&mut live.busy)
                && std::mem::replace(&mut live.progress, revision) != revision
            {
                live.outbox.offer(Frame { revision, watch_id: live.interest.id, ..Frame::default() });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watches {
    fn insert(&mut self, live: Live) -> WatchId {
        let watch = WatchId(self.next_id);
        self.next_id += 1;
        self.group(&live.interest).insert(watch);
        self.live.insert(watch, live);
        watch
    }

    fn remove(&mut self, watch: WatchId) -> Option<Live> {
        let live = self.live.remove(&watch)?;
        let group = self.group(&live.interest);
        group.remove(&watch);
        if group.is_empty() {
            self.drop_group(&live.interest);
        }
        Some(live)
    }

    fn group(&mut self, interest: &Interest) -> &mut BTreeSet<WatchId> {
        match (&interest.span, interest.span.prefix()) {
            (crate::span::Span::Key(key), _) => self.keys.entry(key.clone()).or_default(),
            (_, Some(prefix)) => {
                self.prefixes.entry(prefix.len()).or_default().entry(prefix.clone()).or_default()
            }
            _ => &mut self.others,
        }
    }

    fn drop_group(&mut self, interest: &Interest) {
        match (&interest.span, interest.span.prefix()) {
            (crate::span::Span::Key(key), _) => drop(self.keys.remove(key)),
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

    fn note(&mut self, commit: &Commit, change: &Arc<Change>, touched: &mut Vec<WatchId>) {
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

    fn deliver(&mut self, watch: WatchId, revision: i64) {
        let Some(live) = self.live.get_mut(&watch) else { return };
        let frame = Frame {
            revision,
            watch_id: live.interest.id,
            events: std::mem::take(&mut live.pending),
            with_previous: live.interest.with_previous,
            ..Frame::default()
        };
        let first = frame.events.first().map_or(revision, |change| change.kv.mod_revision);
        live.busy = true;
        // A fragmented response needs several slots in the stream; only catching up waits for them.
        let by_itself = live.incomplete || live.interest.fragment && is_large(&frame);
        let sent = !by_itself && live.outbox.offer(frame);
        if sent {
            live.next = revision + 1;
        } else if let Some(live) = self.remove(watch) {
            live.outbox.fell_behind(Lagging { interest: live.interest, next: first });
        }
    }
}

/// Size above which a response is split for a client that requested fragments.
pub const FRAGMENT_BYTES: usize = MAX_REQUEST_BYTES;

fn is_large(frame: &Frame) -> bool {
    frame.events.iter().map(|change| change.event(frame.with_previous).len()).sum::<usize>() > FRAGMENT_BYTES
}
