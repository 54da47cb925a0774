//! A watch as sent to a client: a stream of events, produced as fast as the client reads.

use crate::cache::ResourceCache;
use crate::history::{CachedChange, HistoryPosition};
use crate::media::ResponseForm;
use crate::refusal::StatusError;
use crate::resources::{API_VERSION, ServedKind};
use crate::selectors::ObjectSelection;
use crate::stored::StoredObject;
use crate::table::{self, IncludeObject};
use bytes::{Bytes, BytesMut};
use futures::Stream;
use futures::future::OptionFuture;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of events encoded at once.
const MAX_EVENTS_PER_CHUNK: usize = 100;
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Range of the duration of a watch without a requested timeout, in seconds.
const WATCH_LIFETIME_SECONDS: std::ops::Range<u64> = 1_800..3_600;

/// The objects that a watch selects, and the form of its events.
#[derive(Debug)]
pub struct WatchParameters {
    pub served: ServedKind,
    pub namespace: String,
    pub selection: ObjectSelection,
    pub form: ResponseForm,
    pub include: IncludeObject,
    pub bookmarks: bool,
    pub timeout_seconds: Option<u64>,
}

/// Start of a watch.
#[derive(Debug)]
pub enum WatchStart {
    /// All existing objects, followed by a bookmark if requested.
    Everything { marked: bool },
    /// The changes after a revision.
    After(u64),
}

/// Events that end a watch early.
#[derive(Debug)]
pub struct WatchEndings {
    /// Becomes true when the server stops.
    pub shutdown: watch::Receiver<bool>,
    /// Notified when tiers change, which may change the visible objects.
    pub tiers: Option<watch::Receiver<u64>>,
}

struct ObjectWatcher {
    cache: Arc<ResourceCache>,
    parameters: WatchParameters,
    events: watch::Receiver<u64>,
    endings: WatchEndings,
    initial: std::vec::IntoIter<Arc<StoredObject>>,
    /// Revision of the bookmark after the initial objects.
    mark: Option<u64>,
    position: HistoryPosition,
    deadline: Instant,
    next_bookmark: Instant,
    /// Column definitions of a table; sent once.
    columns: Option<Value>,
    is_over: bool,
    /// Counts this watch as open until dropped.
    _open: Box<dyn Send>,
}

pub fn start_watch(
    cache: Arc<ResourceCache>,
    parameters: WatchParameters,
    start: WatchStart,
    endings: WatchEndings,
    open: Box<dyn Send>,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static, StatusError> {
    let events = cache.subscribe_events();
    let (initial, mark, position) = match start {
        WatchStart::Everything { marked } => {
            let (mut objects, revision, position) = cache.snapshot();
            objects.retain(|object| is_wanted(&parameters, object));
            (objects, marked.then_some(revision), position)
        }
        WatchStart::After(revision) => {
            let position = cache.position_after(revision).map_err(|_| {
                StatusError::expired(format!("too old resource version: {revision} ({})", cache.floor()))
            })?;
            (Vec::new(), None, position)
        }
    };
    let seconds = parameters.timeout_seconds.filter(|seconds| *seconds > 0);
    let seconds =
        seconds.unwrap_or_else(|| rand::random_range(WATCH_LIFETIME_SECONDS)).min(WATCH_LIFETIME_SECONDS.end);
    let columns =
        (parameters.form == ResponseForm::Table).then(|| table::build_column_definitions(parameters.served));
    let now = Instant::now();
    let watcher = ObjectWatcher {
        cache,
        parameters,
        events,
        endings,
        initial: initial.into_iter(),
        mark,
        position,
        deadline: now + Duration::from_secs(seconds),
        next_bookmark: now + BOOKMARK_INTERVAL,
        columns,
        is_over: false,
        _open: open,
    };
    Ok(futures::stream::unfold(watcher, |mut watcher| async move {
        watcher.next().await.map(|bytes| (Ok(bytes), watcher))
    }))
}

fn is_wanted(parameters: &WatchParameters, object: &StoredObject) -> bool {
    (parameters.namespace.is_empty() || object.namespace == parameters.namespace)
        && parameters.selection.selects(&object.subject())
}

/// Returns the event that a change causes for a watcher that sees only some of the objects.
fn find_visible_event(
    parameters: &WatchParameters,
    change: &CachedChange,
) -> Option<(&'static str, Arc<StoredObject>)> {
    let before = change.before.as_ref().is_some_and(|before| is_wanted(parameters, before));
    let after = !change.is_deletion && is_wanted(parameters, &change.after);
    match (before, after) {
        (false, true) => Some(("ADDED", change.after.clone())),
        (true, true) => Some(("MODIFIED", change.after.clone())),
        // The watcher may not be allowed to see the object as it is now, in another tier.
        (true, false) => Some(("DELETED", change.departed()?)),
        (false, false) => None,
    }
}

impl ObjectWatcher {
    /// Returns the next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over {
                return None;
            }
            let mut bytes = BytesMut::new();
            let initial: Vec<Arc<StoredObject>> = self.initial.by_ref().take(MAX_EVENTS_PER_CHUNK).collect();
            for object in &initial {
                self.encode("ADDED", object, &mut bytes);
            }
            if !bytes.is_empty() {
                return Some(bytes.freeze());
            }
            if let Some(revision) = self.mark.take() {
                return Some(self.bookmark(revision, true));
            }
            // Mark as seen before reading, so that no change in between goes unnoticed.
            self.events.mark_unchanged();
            let Ok((changes, position)) = self.cache.changes_from(self.position, MAX_EVENTS_PER_CHUNK) else {
                self.is_over = true;
                return Some(build_error_event(&StatusError::expired(
                    "the watch is too far behind; list again",
                )));
            };
            self.position = position;
            for change in &changes {
                if let Some((kind, object)) = find_visible_event(&self.parameters, change) {
                    self.encode(kind, &object, &mut bytes);
                }
            }
            if !bytes.is_empty() {
                return Some(bytes.freeze());
            }
            if changes.len() == MAX_EVENTS_PER_CHUNK {
                continue;
            }
            tokio::select! {
                changed = self.events.changed() => self.is_over = changed.is_err(),
                () = tokio::time::sleep_until(self.next_bookmark), if self.parameters.bookmarks => {
                    self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                    return Some(self.bookmark(self.cache.reached_revision(), false));
                }
                () = tokio::time::sleep_until(self.deadline) => {
                    self.is_over = true;
                    if self.parameters.bookmarks {
                        return Some(self.bookmark(self.cache.reached_revision(), false));
                    }
                }
                () = wait_for_end(&mut self.endings) => self.is_over = true,
            }
        }
    }

    fn encode(&mut self, kind: &str, object: &StoredObject, bytes: &mut BytesMut) {
        bytes.extend_from_slice(b"{\"type\":\"");
        bytes.extend_from_slice(kind.as_bytes());
        bytes.extend_from_slice(b"\",\"object\":");
        match self.parameters.form {
            ResponseForm::Table => {
                let now = jiff::Timestamp::now().as_second();
                let row =
                    table::build_row(self.parameters.served, &object.value(), self.parameters.include, now);
                let columns = self.columns.take().unwrap_or(Value::Null);
                let metadata = json!({"resourceVersion": object.revision.to_string()});
                let table = table::build_table(columns, vec![row], metadata);
                bytes.extend_from_slice(table.to_string().as_bytes());
            }
            ResponseForm::Metadata => {
                bytes
                    .extend_from_slice(table::build_partial_metadata(&object.value()).to_string().as_bytes());
            }
            ResponseForm::Whole | ResponseForm::Aggregated => bytes.extend_from_slice(&object.json),
        }
        bytes.extend_from_slice(b"}\n");
    }

    /// Returns a bookmark: all changes up to this revision have been sent.
    fn bookmark(&mut self, revision: u64, ends_initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.parameters.form {
            ResponseForm::Table => {
                table::build_table(self.columns.take().unwrap_or(Value::Null), Vec::new(), metadata)
            }
            ResponseForm::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            ResponseForm::Whole | ResponseForm::Aggregated => {
                json!({"kind": self.parameters.served.kind.name(), "apiVersion": API_VERSION, "metadata": metadata})
            }
        };
        Bytes::from(format!("{}\n", json!({"type": "BOOKMARK", "object": object})))
    }
}

/// Waits until the watch has to end early.
async fn wait_for_end(endings: &mut WatchEndings) {
    let WatchEndings { shutdown, tiers } = endings;
    tokio::select! {
        _ = shutdown.wait_for(|stopping| *stopping) => {}
        Some(_) = OptionFuture::from(tiers.as_mut().map(watch::Receiver::changed)) => {}
    }
}

/// Returns the error event of a watch that cannot start or continue.
pub fn build_error_event(refusal: &StatusError) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": "ERROR", "object": refusal.to_status()})))
}
