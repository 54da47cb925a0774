//! The API's part in a watch: one stream for each collection of the range.

use super::Kubernetes;
use super::api::Events;
use super::collection::{Collection, Found};
use super::entries::joined;
use super::failure::Failure;
use crate::watch::follower::{Item, Update};
use crate::watch::source::{Heard, Snapshot, Source};
use crate::{Entry, Error, Result, Revision};
use futures::StreamExt as _;
use futures::future::select_all;
use kube::core::WatchEvent;
use serde_json::Value as Json;
use tortie_model::{Key, KeyRange, Value};

pub(crate) struct KubernetesSource {
    kubernetes: Kubernetes,
    range: KeyRange,
    collections: Vec<Collection>,
    /// Up to where each collection has been reported.
    versions: Vec<String>,
    streams: Vec<Option<Events>>,
}

impl KubernetesSource {
    pub fn new(kubernetes: Kubernetes, range: KeyRange) -> KubernetesSource {
        let collections = kubernetes.reader.collections(&range);
        let streams = collections.iter().map(|_| None).collect();
        KubernetesSource { kubernetes, range, collections, versions: Vec::new(), streams }
    }

    fn revision(&self) -> Revision {
        joined(&self.versions)
    }

    /// The change of one object; `None` if it is not in the range.
    fn update(&self, index: usize, object: Json, deleted: bool) -> Option<Update<Result<Value>>> {
        let form = self.collections.get(index)?.form;
        let Found { key, revision, value, .. } = self.kubernetes.reader.read(form, object)?;
        if !self.range.contains(&key) {
            return None;
        }
        Some(match value.filter(|_| !deleted) {
            Some(value) => Update::Put(Item { key, revision, value }),
            None => Update::Delete { key, revision },
        })
    }

    fn heard(&mut self, index: usize, event: WatchEvent<Json>) -> Result<Heard<Result<Value>>> {
        let (object, deleted) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                self.moved(index, bookmark.metadata.resource_version);
                return Ok(Heard::Updates { updates: Vec::new(), revision: self.revision() });
            }
            WatchEvent::Error(status) => {
                return match Failure::of_status(&status) {
                    Failure::Expired(reason) => Ok(Heard::Stale(reason)),
                    Failure::Other(error) => Err(error),
                    _ => Err(Error::Datastore(status.message.clone())),
                };
            }
        };
        let version = object.pointer("/metadata/resourceVersion").and_then(Json::as_str).map(str::to_owned);
        let updates = self.update(index, object, deleted).into_iter().collect();
        if let Some(version) = version {
            self.moved(index, version);
        }
        Ok(Heard::Updates { updates, revision: self.revision() })
    }

    fn moved(&mut self, index: usize, version: String) {
        if let Some(known) = self.versions.get_mut(index) {
            *known = version;
        }
    }

    async fn open_stream(&mut self, index: usize) -> std::result::Result<(), Failure> {
        let (Some(collection), Some(version)) = (self.collections.get(index), self.versions.get(index))
        else {
            return Ok(());
        };
        let labels = collection.labels.as_deref();
        let events = self.kubernetes.api.watch(&collection.path, labels, version).await?;
        if let Some(stream) = self.streams.get_mut(index) {
            *stream = Some(events);
        }
        Ok(())
    }
}

impl Source for KubernetesSource {
    type Value = Result<Value>;

    async fn list(&mut self) -> Result<Snapshot<Self::Value>> {
        let mut items = Vec::new();
        let mut versions = Vec::new();
        for collection in &self.collections {
            let (found, version) = self.kubernetes.all(collection).await?;
            versions.push(version);
            items.extend(found.into_iter().filter(|found| self.range.contains(&found.key)).filter_map(
                |found| Some(Item { key: found.key, revision: found.revision, value: found.value? }),
            ));
        }
        self.versions = versions;
        Ok(Snapshot { items, revision: self.revision() })
    }

    /// The API does not tell of the past: whoever comes back begins with a snapshot.
    async fn keys_at(&mut self, _revision: &Revision) -> Result<Option<Vec<(Key, Revision)>>> {
        Ok(None)
    }

    async fn open(&mut self, after: &Revision) -> Result<()> {
        let after = after.to_string();
        self.versions = after.splitn(self.collections.len().max(1), '/').map(str::to_owned).collect();
        self.streams.iter_mut().for_each(|stream| *stream = None);
        for index in 0..self.collections.len() {
            match self.open_stream(index).await {
                // Said again by the first `next`, which may answer that the place is lost.
                Ok(()) | Err(Failure::Expired(_)) => {}
                Err(Failure::Other(error)) => return Err(error),
                Err(Failure::Missing(reason)) => return Err(Error::Datastore(reason)),
                Err(failure) => return Err(Error::Datastore(format!("{failure:?}"))),
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Heard<Self::Value>> {
        // Bookmarks come about once a minute: a connection that is silent for longer is dead.
        let silence = self.kubernetes.api.limits.watch_silence * 3;
        loop {
            for index in 0..self.streams.len() {
                if self.streams.get(index).is_some_and(Option::is_none) {
                    match self.open_stream(index).await {
                        Ok(()) => {}
                        Err(Failure::Expired(reason)) => return Ok(Heard::Stale(reason)),
                        Err(Failure::Other(error)) => return Err(error),
                        Err(failure) => return Err(Error::Datastore(format!("{failure:?}"))),
                    }
                }
            }
            let waiting: Vec<_> = self.streams.iter_mut().flatten().map(|stream| stream.next()).collect();
            if waiting.is_empty() {
                // Nothing of this range is kept here: nothing ever happens.
                return std::future::pending().await;
            }
            let Ok((event, index, _)) = tokio::time::timeout(silence, select_all(waiting)).await else {
                return Err(Error::Datastore(format!(
                    "the watch of {} was silent for {} s: check that the API server is healthy",
                    self.range,
                    silence.as_secs()
                )));
            };
            match event {
                Some(Ok(event)) => return self.heard(index, event),
                Some(Err(kube::Error::Api(status))) => match Failure::of_status(&status) {
                    Failure::Expired(reason) => return Ok(Heard::Stale(reason)),
                    Failure::Other(error) => return Err(error),
                    _ => return Err(Error::Datastore(status.message.clone())),
                },
                Some(Err(error)) => return Err(Error::Datastore(error.to_string())),
                // The server ends every watch after a while.
                None => {
                    if let Some(stream) = self.streams.get_mut(index) {
                        *stream = None;
                    }
                }
            }
        }
    }

    fn read(&self, item: Item<Self::Value>) -> Result<Entry> {
        item.value.map(|value| Entry::new(item.key, value, item.revision))
    }
}
