//! Implementation of `WatchSource` for the Kubernetes API: one watch stream per collection of the range.

use super::KubernetesBackend;
use super::api::{KubernetesApi, ObjectDetail, WatchEventStream};
use super::collection::{ApiCollection, CollectionForm, ConvertedObject};
use super::entries::joined;
use super::failure::KubernetesFailure;
use super::{response, text_at};
use crate::watch::follower::{WatchItem, WatchUpdate};
use crate::watch::source::{RangeSnapshot, WatchReport, WatchSource};
use crate::{Revision, StoreEntry, StoreError, StoreResult};
use futures::StreamExt as _;
use futures::future::select_all;
use kube::core::WatchEvent;
use serde_json::Value as Json;
use std::time::Duration;
use tokio::time::Instant;
use tortie_model::{KeyRange, StoreKey, StoreValue};

/// Collection of the CustomResourceDefinitions.
const DEFINITIONS_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Placeholder for the resource version of a collection that the server does not have.
const UNSERVED_VERSION: &str = "-";
/// Number of consecutive lists without a previously served collection before it counts as removed: a starting server
/// may not know it yet.
const MAX_MISSING_LISTS: u32 = 5;
/// Minimum delay between checks for a kind that is not installed. Checks are frequent after a change of the definition
/// and then back off, since a cluster may never have the kind.
const MIN_KIND_CHECK_DELAY: Duration = Duration::from_secs(1);
const MAX_KIND_CHECK_DELAY: Duration = Duration::from_secs(600);
/// Minimum duration of a watch without events. If a watch ends sooner, the server did not serve it, and it is reopened
/// after a delay.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);
/// Initial value of the check counter, without and with a watch of the definition.
const CHECK_COUNT_WHEN_POLLING: u32 = 3;
const CHECK_COUNT_WHEN_WATCHING: u32 = 10;

pub(crate) struct KubernetesSource {
    kubernetes: KubernetesBackend,
    range: KeyRange,
    parts: Vec<WatchedCollection>,
}

/// A collection of the range.
struct WatchedCollection {
    collection: ApiCollection,
    /// Resource version up to which changes have been reported.
    version: String,
    /// Watch of the objects, or of the definition of their kind while the kind is not served.
    stream: Option<WatchEventStream>,
    /// Time at which the stream was opened; `None` once it has delivered an event.
    opened: Option<Instant>,
    /// Resource version of the last event of the definition.
    definition_version: String,
    /// The definition cannot be watched; not tried again before the next check for the kind.
    untold: bool,
    /// Number of consecutive lists in which the collection was missing although it was served before.
    missing: u32,
    look_again: Option<Instant>,
    /// Number of checks for the kind.
    looks: u32,
}

impl WatchedCollection {
    fn new(collection: ApiCollection) -> WatchedCollection {
        WatchedCollection {
            collection,
            version: String::new(),
            stream: None,
            opened: None,
            definition_version: String::new(),
            untold: false,
            missing: 0,
            look_again: None,
            looks: CHECK_COUNT_WHEN_POLLING,
        }
    }

    fn is_served(&self) -> bool {
        self.version != UNSERVED_VERSION
    }

    fn set_stream(&mut self, stream: WatchEventStream) {
        (self.stream, self.opened) = (Some(stream), Some(Instant::now()));
    }

    /// Closes the stream. Returns whether it ended too soon, without an event.
    fn close_stream(&mut self) -> bool {
        self.stream = None;
        self.opened.take().is_some_and(|opened| opened.elapsed() < MIN_WATCH_DURATION)
    }

    fn next_look(&mut self) -> Instant {
        let wait = MIN_KIND_CHECK_DELAY
            .saturating_mul(1 << self.looks.min(CHECK_COUNT_WHEN_WATCHING))
            .min(MAX_KIND_CHECK_DELAY);
        *self.look_again.get_or_insert_with(|| Instant::now() + wait)
    }

    /// Sets the check counter, which determines the delay to the next check.
    fn set_looks(&mut self, looks: u32) {
        (self.looks, self.look_again) = (looks, None);
    }

    /// Watches the definition of a kind that is not served, by name and only its metadata. If the server rejects the
    /// watch, the kind is polled instead.
    async fn follow_definition(&mut self, api: &KubernetesApi) {
        let Some(name) = self.collection.definition().filter(|_| !self.untold) else { return };
        match api.watch_named(DEFINITIONS_PATH, &name, ObjectDetail::Metadata, &self.definition_version).await
        {
            Ok(stream) => {
                self.set_stream(stream);
                self.set_looks(CHECK_COUNT_WHEN_WATCHING);
            }
            Err(failure) => {
                let reason = failure.into_collection_error(DEFINITIONS_PATH);
                tracing::debug!(name, %reason, "cannot watch the definition of this kind; polling for it");
                (self.untold, self.definition_version) = (true, String::new());
            }
        }
    }

    /// Handles an event of the watch of the definition.
    fn hear_definition(&mut self, event: Option<std::result::Result<WatchEvent<Json>, KubernetesFailure>>) {
        match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                self.definition_version = text_at(&object, "/metadata/resourceVersion").to_owned();
                // The server needs a moment to serve a new definition.
                self.set_looks(0);
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                self.definition_version = text_at(&object, "/metadata/resourceVersion").to_owned();
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                self.definition_version = bookmark.metadata.resource_version;
            }
            // The resource version expired or the connection failed: check for the kind first, then watch the
            // definition again.
            Some(Ok(WatchEvent::Error(_)) | Err(_)) => {
                (self.stream, self.untold, self.definition_version) = (None, true, String::new());
                self.set_looks(CHECK_COUNT_WHEN_POLLING);
            }
            // The server ends every watch after a while.
            None if !self.close_stream() => {}
            None => {
                self.untold = true;
                self.set_looks(CHECK_COUNT_WHEN_POLLING);
            }
        }
    }
}

impl KubernetesSource {
    pub fn new(kubernetes: KubernetesBackend, range: KeyRange) -> KubernetesSource {
        let parts = kubernetes.reader.collections(&range).into_iter().map(WatchedCollection::new).collect();
        KubernetesSource { kubernetes, range, parts }
    }

    fn revision(&self) -> Revision {
        let versions: Vec<String> = self.parts.iter().map(|part| part.version.clone()).collect();
        joined(&versions)
    }

    /// Converts the change of an object; `None` if it is not in the range.
    fn update(
        &self,
        form: CollectionForm,
        object: Json,
        deleted: bool,
    ) -> Option<WatchUpdate<StoreResult<StoreValue>>> {
        let ConvertedObject { key, revision, value, .. } = self.kubernetes.reader.read(form, object)?;
        if !self.range.contains(&key) {
            return None;
        }
        Some(match value.filter(|_| !deleted) {
            Some(value) => WatchUpdate::Put(WatchItem { key, revision, value }),
            None => WatchUpdate::Delete { key, revision },
        })
    }

    fn heard(
        &mut self,
        index: usize,
        event: WatchEvent<Json>,
    ) -> StoreResult<WatchReport<StoreResult<StoreValue>>> {
        let Some(part) = self.parts.get_mut(index) else {
            return Ok(WatchReport::Updates { updates: Vec::new(), revision: self.revision() });
        };
        part.opened = None;
        let ApiCollection { form, path, .. } = &part.collection;
        let (object, deleted) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) if bookmark.metadata.resource_version.is_empty() => {
                let failure = response::missing_field(path, "metadata.resourceVersion");
                return self.refused(index, failure);
            }
            WatchEvent::Bookmark(bookmark) => {
                self.moved(index, bookmark.metadata.resource_version);
                return Ok(WatchReport::Updates { updates: Vec::new(), revision: self.revision() });
            }
            WatchEvent::Error(status) => return self.refused(index, KubernetesFailure::of_status(&status)),
        };
        let form = *form;
        if let Err(failure) =
            response::check_event(path, form.kind_name(self.kubernetes.reader.group), &object)
        {
            return self.refused(index, failure);
        }
        let version = object.pointer("/metadata/resourceVersion").and_then(Json::as_str).map(str::to_owned);
        let updates = self.update(form, object, deleted).into_iter().collect();
        if let Some(version) = version {
            self.moved(index, version);
        }
        Ok(WatchReport::Updates { updates, revision: self.revision() })
    }

    fn moved(&mut self, index: usize, version: String) {
        if let Some(part) = self.parts.get_mut(index) {
            part.version = version;
        }
    }

    /// Converts the failure of a watch: an expired or unserved watch has to start over with a list, all else is an
    /// error.
    fn refused(
        &self,
        index: usize,
        failure: KubernetesFailure,
    ) -> StoreResult<WatchReport<StoreResult<StoreValue>>> {
        match failure {
            KubernetesFailure::Expired(reason) | KubernetesFailure::NotServed(reason) => {
                Ok(WatchReport::Stale(reason))
            }
            other => {
                let path = self.parts.get(index).map(|part| part.collection.path.as_str());
                Err(other.into_collection_error(path.unwrap_or_default()))
            }
        }
    }

    /// Opens the streams that are closed.
    async fn open_streams(&mut self) -> std::result::Result<(), (usize, KubernetesFailure)> {
        let api = &self.kubernetes.api;
        for (index, part) in self.parts.iter_mut().enumerate() {
            if part.stream.is_some() {
                continue;
            }
            if !part.is_served() {
                part.follow_definition(api).await;
            } else {
                let ApiCollection { form, path, labels } = &part.collection;
                let opened = api.watch(path, labels.as_deref(), form.detail(), &part.version).await;
                let stream = opened.map_err(|failure| (index, failure))?;
                part.set_stream(stream);
            }
        }
        Ok(())
    }

    /// Waits until the next check for a kind that was not served. Returns whether it is served now.
    async fn look_again(&mut self, due: Instant) -> StoreResult<bool> {
        tokio::time::sleep_until(due).await;
        for part in self.parts.iter_mut().filter(|part| !part.is_served()) {
            if part.look_again.take_if(|due| *due <= Instant::now()).is_none() {
                continue;
            }
            part.looks += 1;
            part.untold = false;
            match self.kubernetes.page(&part.collection, &part.collection.query(1, None)).await {
                Ok(_) => return Ok(true),
                Err(KubernetesFailure::NotServed(_)) => {}
                Err(failure) => return Err(failure.into_collection_error(&part.collection.path)),
            }
        }
        Ok(false)
    }
}

impl WatchSource for KubernetesSource {
    type Value = StoreResult<StoreValue>;

    async fn list(&mut self) -> StoreResult<RangeSnapshot<Self::Value>> {
        let mut items = Vec::new();
        for part in &mut self.parts {
            let was_served = part.is_served() && !part.version.is_empty();
            match self.kubernetes.all(&part.collection).await? {
                Some((found, version)) => {
                    (part.version, part.missing, part.untold) = (version, 0, false);
                    part.set_looks(CHECK_COUNT_WHEN_POLLING);
                    let inside = found.into_iter().filter(|found| self.range.contains(&found.key));
                    items.extend(inside.filter_map(|found| {
                        Some(WatchItem { key: found.key, revision: found.revision, value: found.value? })
                    }));
                }
                None if was_served && part.missing < MAX_MISSING_LISTS => {
                    part.missing += 1;
                    let path = &part.collection.path;
                    return Err(StoreError::Datastore(format!(
                        "{path} is not served any more; looking again"
                    )));
                }
                // The kind is not installed, so it has no objects.
                None => {
                    part.version = UNSERVED_VERSION.to_owned();
                    part.missing = 0;
                }
            }
        }
        Ok(RangeSnapshot { items, revision: self.revision() })
    }

    /// Returns `None`: the API cannot list at old versions, so a resumed watch starts with a snapshot.
    async fn keys_at(&mut self, _revision: &Revision) -> StoreResult<Option<Vec<(StoreKey, Revision)>>> {
        Ok(None)
    }

    async fn open(&mut self, after: &Revision) -> StoreResult<()> {
        let after = after.to_string();
        let versions = after.splitn(self.parts.len().max(1), '/');
        for (part, version) in self.parts.iter_mut().zip(versions) {
            version.clone_into(&mut part.version);
            (part.stream, part.untold) = (None, false);
        }
        match self.open_streams().await {
            // The first call of `next` fails in the same way, and can report that the position is lost.
            Ok(()) | Err((_, KubernetesFailure::Expired(_) | KubernetesFailure::NotServed(_))) => Ok(()),
            Err((index, failure)) => self.refused(index, failure).map(|_| ()),
        }
    }

    async fn next(&mut self) -> StoreResult<WatchReport<Self::Value>> {
        // Bookmarks arrive about once a minute: a connection that is silent for longer is dead.
        let silence = self.kubernetes.api.limits.watch_silence * 3;
        loop {
            if let Err((index, failure)) = self.open_streams().await {
                return self.refused(index, failure);
            }
            let unserved = self.parts.iter_mut().filter(|part| !part.is_served());
            let due = unserved.map(WatchedCollection::next_look).min();
            let waiting: Vec<_> = self
                .parts
                .iter_mut()
                .enumerate()
                .filter_map(|(index, part)| Some((index, part.stream.as_mut()?)))
                .map(|(index, stream)| Box::pin(async move { (index, stream.next().await) }))
                .collect();
            if waiting.is_empty() {
                drop(waiting);
                match due.filter(|due| *due < Instant::now() + silence) {
                    Some(due) if self.look_again(due).await? => return Ok(WatchReport::Relist),
                    Some(_) => {}
                    // This backend does not store anything in the range.
                    None => tokio::time::sleep(silence).await,
                }
                return Ok(WatchReport::Updates { updates: Vec::new(), revision: self.revision() });
            }
            let heard = tokio::select! {
                heard = tokio::time::timeout(silence, select_all(waiting)) => {
                    Some(heard.map(|(event, _, _)| event))
                }
                () = sleep_until(due) => None,
            };
            let Some(heard) = heard else {
                if let Some(due) = due
                    && self.look_again(due).await?
                {
                    return Ok(WatchReport::Relist);
                }
                return Ok(WatchReport::Updates { updates: Vec::new(), revision: self.revision() });
            };
            let Ok((index, event)) = heard else {
                if self.parts.iter().all(|part| part.stream.is_none() || !part.is_served()) {
                    // All collections of the range are unserved, so silence is normal.
                    self.parts.iter_mut().for_each(|part| part.stream = None);
                    return Ok(WatchReport::Updates { updates: Vec::new(), revision: self.revision() });
                }
                return Err(StoreError::Datastore(format!(
                    "the watch of {} was silent for {} s: check that the API server is healthy",
                    self.range,
                    silence.as_secs()
                )));
            };
            if let Some(part) = self.parts.get_mut(index).filter(|part| !part.is_served()) {
                part.hear_definition(event);
                return Ok(WatchReport::Updates { updates: Vec::new(), revision: self.revision() });
            }
            match event {
                Some(Ok(event)) => return self.heard(index, event),
                Some(Err(failure)) => return self.refused(index, failure),
                // The server ends every watch after a while.
                None => {
                    if let Some(part) = self.parts.get_mut(index)
                        && part.close_stream()
                    {
                        let path = &part.collection.path;
                        return Err(StoreError::Datastore(format!(
                            "the watch of {path} ended as soon as it began"
                        )));
                    }
                }
            }
        }
    }

    fn read(&self, item: WatchItem<Self::Value>) -> StoreResult<StoreEntry> {
        item.value.map(|value| StoreEntry::new(item.key, value, item.revision))
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
