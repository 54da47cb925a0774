//! Implementation of `Backend` for the Kubernetes API: operations on entries are requests for API objects.

use super::api::{
    DEFAULT_PAGE_LIMIT, ListMetadata, ListQuery, MERGE_PATCH_MEDIA_TYPE, STRATEGIC_MERGE_PATCH_MEDIA_TYPE,
};
use super::collection::{ApiCollection, CollectionForm, ConvertedObject, ObjectLocation};
use super::failure::KubernetesFailure;
use super::group::CalicoApiGroup;
use super::source::KubernetesSource;
use super::{CAPABILITIES, KubernetesBackend, node, object, pod, records, response};
use crate::backend::{Backend, BackendCapabilities};
use crate::page::{PageContinuation, PageRequest};
use crate::watch::{StoreWatch, WatchOptions};
use crate::{EntryListing, Revision, StoreEntry, StoreError, StoreResult};
use async_trait::async_trait;
use serde_json::Value as Json;
use std::time::Duration;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue, ValidationError};

/// Maximum number of attempts to list when the resource version of the list expires before the last page.
const MAX_LIST_ATTEMPTS: u32 = 5;
/// Timeout of a probe. Longer than for etcd: an API server responds late while it is busy with other clients.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of attempts of an unconditional write that conflicts with other writers.
const MAX_APPLY_ATTEMPTS: u32 = 5;

#[async_trait]
impl Backend for KubernetesBackend {
    fn capabilities(&self) -> BackendCapabilities {
        CAPABILITIES
    }

    fn stores_v3_as_written(&self) -> bool {
        self.reader.group == CalicoApiGroup::V3
    }

    fn watch(&self, range: KeyRange, options: WatchOptions) -> StoreWatch {
        let source = KubernetesSource::new(self.clone(), range.clone());
        StoreWatch::start(source, range, self.api.limits.absence_grace, options)
    }

    async fn probe(&self) -> StoreResult<()> {
        let mut api = self.api.clone();
        api.limits.request = PROBE_TIMEOUT;
        match api.check().await {
            Err(failure @ KubernetesFailure::Unreachable { .. }) => {
                Err(failure.into_collection_error("/version"))
            }
            // The server responded; whether the account may read the version is irrelevant.
            _ => Ok(()),
        }
    }

    async fn get(&self, key: &StoreKey) -> StoreResult<StoreEntry> {
        let place = self.reader.place(key).ok_or_else(|| StoreError::missing(key))?;
        let found = self.find(key, &place).await?;
        entry(found)
    }

    /// Returns `None` only if the server reports this object as not found.
    async fn look_up(&self, key: &StoreKey) -> StoreResult<Option<StoreEntry>> {
        let Some(place) = self.reader.place(key) else { return Ok(None) };
        let path = place.path();
        let answer = match self.api.get(place.form.kind_name(self.reader.group), &path).await {
            Ok(answer) => answer,
            Err(KubernetesFailure::Missing(_)) => return Ok(None),
            Err(failure) => return Err(failure.into_collection_error(&path)),
        };
        match self.reader.read(place.form, answer).filter(|found| found.key == *key) {
            Some(found) => entry(found).map(Some),
            None => Err(StoreError::Datastore(format!(
                "the answer to {path} is not the object that was asked for"
            ))),
        }
    }

    async fn list(&self, range: &KeyRange) -> StoreResult<EntryListing> {
        let mut entries = Vec::new();
        let mut unreadable = Vec::new();
        let mut revisions = Vec::new();
        for collection in self.reader.collections(range) {
            let Some((found, revision)) = self.all(&collection).await? else { continue };
            revisions.push(revision);
            for found in found.into_iter().filter(|found| range.contains(&found.key)) {
                match entry_of(found) {
                    Some(Ok(entry)) => entries.push(entry),
                    Some(Err(error)) => unreadable.push(error),
                    None => {}
                }
            }
        }
        Ok(EntryListing { entries, unreadable, revision: joined(&revisions), next: None })
    }

    /// Returns one page of a range. Label selectors are evaluated here: objects of crd.projectcalico.org/v1 keep the
    /// labels of the resource in an annotation.
    async fn list_page(&self, range: &KeyRange, page: &PageRequest) -> StoreResult<EntryListing> {
        let collections = self.reader.collections(range);
        let (mut index, mut after) = match &page.after {
            Some(continuation) => read_continuation(continuation)?,
            None => (0, None),
        };
        let limit = page.limit.get();
        let mut entries = Vec::new();
        let mut unreadable = Vec::new();
        let mut revision = String::new();
        while let Some(collection) = collections.get(index) {
            let mut query = collection.query(limit - entries.len(), after.take());
            let answer = loop {
                match self.page(collection, &query).await {
                    Err(failure) if query.shrink(&failure) => {}
                    answer => break answer,
                }
            };
            let (metadata, found) = match answer {
                Ok(page) => page,
                Err(KubernetesFailure::Expired(_)) => {
                    return Err(StoreError::Expired(format!(
                        "the list of {range} that the continuation belongs to"
                    )));
                }
                Err(KubernetesFailure::NotServed(_)) => {
                    self.confirm_unserved(&collection.path).await?;
                    index += 1;
                    continue;
                }
                Err(failure) => return Err(failure.into_collection_error(&collection.path)),
            };
            revision = metadata.resource_version;
            for found in found.into_iter().filter(|found| range.contains(&found.key)) {
                match entry_of(found) {
                    Some(Ok(entry)) if page.labels.selects(&entry.value) => entries.push(entry),
                    Some(Err(error)) => unreadable.push(error),
                    Some(Ok(_)) | None => {}
                }
            }
            after = metadata.r#continue.filter(|token| !token.is_empty());
            if after.is_none() {
                index += 1;
            }
            if entries.len() >= limit {
                break;
            }
        }
        let more = after.is_some() || index < collections.len();
        let next = more.then(|| PageContinuation(format!("{index} {}", after.unwrap_or_default())));
        Ok(EntryListing { entries, unreadable, revision: joined(&[revision]), next })
    }

    async fn create(&self, key: &StoreKey, value: &StoreValue) -> StoreResult<StoreEntry> {
        let place = self.writable(key, "Create")?;
        match place.form {
            CollectionForm::Pod => return self.patch_pod(key, &place, value).await,
            // Kubernetes creates nodes; an existing one can be updated.
            CollectionForm::Node => {
                let reason = "nodes are made by Kubernetes";
                let found = self.find(key, &place).await;
                let found = found.map_err(|_| unsupported("Create", key, reason))?;
                let current = resource(entry(found).ok());
                return Err(StoreError::AlreadyExists {
                    id: key.to_string(),
                    reason: reason.into(),
                    current,
                });
            }
            _ => {}
        }
        let mut body = self.body(key, &place, value)?;
        clear(&mut body, &["resourceVersion", "uid"]);
        match self.api.post(&place.collection, &body).await {
            Ok(answer) => self.written(key, &place, &body, answer).await,
            Err(KubernetesFailure::Exists(reason)) => {
                // Return the existing object. If it was marked as deleted, `find` completed the deletion and the name
                // is free.
                match self.find(key, &place).await {
                    Ok(found) => Err(StoreError::AlreadyExists {
                        id: key.to_string(),
                        reason,
                        current: resource(entry(found).ok()),
                    }),
                    Err(StoreError::DoesNotExist { .. }) => {
                        let answer = self.api.post(&place.collection, &body).await;
                        let answer = answer.map_err(|failure| failure.into_error(key))?;
                        self.written(key, &place, &body, answer).await
                    }
                    Err(error) => Err(error),
                }
            }
            Err(failure) => Err(failure.into_error(key)),
        }
    }

    async fn update(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        revision: &Revision,
    ) -> StoreResult<StoreEntry> {
        let place = self.writable(key, "Update")?;
        match place.form {
            CollectionForm::Pod => return self.patch_pod(key, &place, value).await,
            CollectionForm::Node => return self.patch_node(key, &place, value, revision).await,
            _ => {}
        }
        let mut body = self.body(key, &place, value)?;
        body["metadata"]["resourceVersion"] = revision.to_string().into();
        match self.api.put(&place.path(), &body).await {
            Ok(answer) => self.written(key, &place, &body, answer).await,
            Err(failure) => Err(self.refused(key, &place, "", failure).await),
        }
    }

    async fn apply(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        ttl: Option<Duration>,
    ) -> StoreResult<StoreEntry> {
        if ttl.is_some() {
            return Err(unsupported("Apply", key, "objects of the Kubernetes API do not expire"));
        }
        let mut attempt = 1;
        loop {
            match self.create(key, value).await {
                Err(StoreError::AlreadyExists { .. } | StoreError::NotSupported { .. }) => {}
                done => return done,
            }
            let revision = match self.get(key).await {
                Ok(entry) => entry.revision,
                Err(StoreError::DoesNotExist { .. }) if attempt < MAX_APPLY_ATTEMPTS => {
                    attempt += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.update(key, value, &revision).await {
                Err(StoreError::Conflict { .. } | StoreError::DoesNotExist { .. })
                    if attempt < MAX_APPLY_ATTEMPTS =>
                {
                    attempt += 1
                }
                done => return done,
            }
        }
    }

    /// Deletes an entry. IPAM records are marked as deleted first, so that a late write of another client fails,
    /// whatever revision it is based on.
    async fn delete(&self, key: &StoreKey, revision: Option<&Revision>) -> StoreResult<StoreEntry> {
        let place = self.writable(key, "Delete")?;
        if place.form == CollectionForm::Node {
            return Err(unsupported("Delete", key, "nodes are deleted in Kubernetes"));
        }
        let found = self.find(key, &place).await?;
        if revision.is_some_and(|revision| *revision != found.revision) {
            return Err(StoreError::Conflict { id: key.to_string(), current: resource(entry(found).ok()) });
        }
        let uid = found.uid.as_str();
        let version = found.revision.to_string();
        match place.form {
            CollectionForm::Pod => {
                let patch = pod::removal(uid, revision.map(|_| version.as_str()));
                let path = format!("{}/status", place.path());
                if let Err(failure) = self.api.patch(&path, STRATEGIC_MERGE_PATCH_MEDIA_TYPE, &patch).await {
                    return Err(self.refused(key, &place, uid, failure).await);
                }
            }
            CollectionForm::Record(_) => {
                let Some(Ok(value)) = &found.value else { return entry(found) };
                let mut body = self.body(key, &place, &records::deleted(value))?;
                body["metadata"]["resourceVersion"] = version.into();
                if let Err(failure) = self.api.put(&place.path(), &body).await {
                    return Err(self.refused(key, &place, uid, failure).await);
                }
                self.finish_deletion(&place, &found).await?;
            }
            _ => {
                let version = revision.map(|_| version.as_str());
                if let Err(failure) = self.api.delete(&place.path(), uid, version).await {
                    return Err(self.refused(key, &place, uid, failure).await);
                }
            }
        }
        entry(found)
    }
}

impl KubernetesBackend {
    /// Returns the object of a key. If it is marked as deleted, completes its deletion.
    async fn find(&self, key: &StoreKey, place: &ObjectLocation) -> StoreResult<ConvertedObject> {
        let answer = match self.api.get(place.form.kind_name(self.reader.group), &place.path()).await {
            Err(KubernetesFailure::NotServed(reason)) => {
                self.confirm_unserved(&place.collection).await?;
                return Err(StoreError::DoesNotExist { id: key.to_string(), reason });
            }
            answer => answer.map_err(|failure| failure.into_error(key))?,
        };
        let found = self.reader.read(place.form, answer).ok_or_else(|| StoreError::missing(key))?;
        // A pod of the same name may be a different endpoint; a handle may differ in case only.
        if found.key != *key {
            return Err(StoreError::missing(key));
        }
        if found.value.is_none() {
            // Only IPAM records are marked as deleted; other objects without a value have no counterpart in the model.
            if let CollectionForm::Record(_) = place.form {
                self.finish_deletion(place, &found).await?;
            }
            return Err(StoreError::missing(key));
        }
        Ok(found)
    }

    /// Verifies through discovery that a collection, for which a request returned 404, does not exist. Fails otherwise.
    async fn confirm_unserved(&self, path: &str) -> StoreResult<()> {
        match self.api.is_served(path).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(StoreError::Datastore(format!(
                "the API server did not find {path}, which its discovery has: check what answers at its address"
            ))),
            Err(failure) => Err(failure.into_collection_error(path)),
        }
    }

    /// Returns the failure for a collection that this account may not list. kube-apiserver checks rights before the
    /// existence of the kind, and the role of an older release does not include new optional kinds. Therefore a kind that
    /// discovery does not list is reported as not served.
    async fn check_forbidden(&self, collection: &ApiCollection, error: StoreError) -> KubernetesFailure {
        let is_optional = collection.definition().is_some();
        if is_optional && matches!(self.api.is_served(&collection.path).await, Ok(false)) {
            return KubernetesFailure::NotServed(error.to_string());
        }
        KubernetesFailure::Forbidden(error)
    }

    /// Lists a collection at one resource version, page by page; `None` if the server does not have the kind.
    pub(super) async fn all(
        &self,
        collection: &ApiCollection,
    ) -> StoreResult<Option<(Vec<ConvertedObject>, String)>> {
        let mut attempt = 1;
        'again: loop {
            let mut found = Vec::new();
            let mut query = collection.query(DEFAULT_PAGE_LIMIT, None);
            loop {
                match self.page(collection, &query).await {
                    Ok((metadata, mut page)) => {
                        found.append(&mut page);
                        query.after = metadata.r#continue.filter(|token| !token.is_empty());
                        if query.after.is_none() {
                            return Ok(Some((found, metadata.resource_version)));
                        }
                    }
                    Err(KubernetesFailure::Expired(_)) if attempt < MAX_LIST_ATTEMPTS => {
                        attempt += 1;
                        continue 'again;
                    }
                    Err(KubernetesFailure::NotServed(_)) => {
                        self.confirm_unserved(&collection.path).await?;
                        return Ok(None);
                    }
                    Err(failure) if query.shrink(&failure) => {}
                    Err(failure) => return Err(failure.into_collection_error(&collection.path)),
                }
            }
        }
    }

    /// Lists one page of a collection.
    pub(super) async fn page(
        &self,
        collection: &ApiCollection,
        query: &ListQuery,
    ) -> std::result::Result<(ListMetadata, Vec<ConvertedObject>), KubernetesFailure> {
        let path = &collection.path;
        let text = match self.api.list(path, query).await {
            Err(KubernetesFailure::Forbidden(error)) => {
                return Err(self.check_forbidden(collection, error).await);
            }
            answer => answer?,
        };
        let read = self.reader.read_list(collection.form, &text);
        let (head, found) = read.map_err(|error| response::unreadable(path, &error))?;
        response::check_list(path, collection.form.kind_name(self.reader.group), &head)?;
        Ok((head.metadata, found))
    }

    /// Deletes a record that is marked as deleted. Another client may have done so already.
    async fn finish_deletion(&self, place: &ObjectLocation, found: &ConvertedObject) -> StoreResult<()> {
        match self.api.delete(&place.path(), &found.uid, None).await {
            Ok(()) | Err(KubernetesFailure::Missing(_)) => Ok(()),
            Err(failure) => Err(failure.into_error(&found.key)),
        }
    }

    fn writable(&self, key: &StoreKey, operation: &'static str) -> StoreResult<ObjectLocation> {
        let place = self.reader.place(key);
        match place {
            Some(ObjectLocation {
                form: CollectionForm::Namespace | CollectionForm::ServiceAccount, ..
            }) => Err(unsupported(operation, key, "profiles are made from namespaces and service accounts")),
            Some(ObjectLocation {
                form: CollectionForm::NetworkPolicy | CollectionForm::ClusterPolicy(_),
                ..
            }) => Err(unsupported(operation, key, "it is made from a policy of Kubernetes: change that one")),
            Some(ObjectLocation {
                form: CollectionForm::EndpointSlice | CollectionForm::Service, ..
            }) => Err(unsupported(operation, key, "services and their endpoints are Kubernetes' own")),
            Some(place) => Ok(place),
            None if operation == "Delete" => Err(StoreError::missing(key)),
            None => Err(unsupported(operation, key, "the Kubernetes API datastore does not keep it")),
        }
    }

    fn body(&self, key: &StoreKey, place: &ObjectLocation, value: &StoreValue) -> StoreResult<Json> {
        let body = match (place.form, value) {
            (CollectionForm::Resource(kind), StoreValue::Resource(resource)) if resource.kind() == kind => {
                check_sync_labels(resource)?;
                Some(object::write(self.reader.group, &place.name, resource))
            }
            (CollectionForm::Record(_), value) => records::write(self.reader.group, key, value),
            _ => None,
        };
        body.ok_or_else(|| unsupported("Write", key, "the value is not one of this key"))
    }

    /// Returns the entry that the server stored. Kinds with a status subresource get their status with a second
    /// request.
    async fn written(
        &self,
        key: &StoreKey,
        place: &ObjectLocation,
        body: &Json,
        answer: Json,
    ) -> StoreResult<StoreEntry> {
        self.check_written(key, place, &answer)?;
        let answer = match (place.form, body.get("status")) {
            (CollectionForm::Resource(kind), Some(status))
                if self.reader.group.has_status_subresource(kind) =>
            {
                let mut with_status = answer;
                with_status["status"] = status.clone();
                let path = format!("{}/status", place.path());
                self.api.put(&path, &with_status).await.map_err(|failure| failure.into_error(key))?
            }
            _ => answer,
        };
        self.read_written(key, place, answer)
    }

    fn check_written(&self, key: &StoreKey, place: &ObjectLocation, answer: &Json) -> StoreResult<()> {
        let kind = place.form.kind_name(self.reader.group);
        response::check_object(&place.path(), kind, answer).map_err(|failure| failure.into_error(key))
    }

    /// Decodes the response to a write.
    fn read_written(&self, key: &StoreKey, place: &ObjectLocation, answer: Json) -> StoreResult<StoreEntry> {
        self.check_written(key, place, &answer)?;
        entry(self.reader.read(place.form, answer).ok_or_else(|| StoreError::missing(key))?)
    }

    async fn patch_pod(
        &self,
        key: &StoreKey,
        place: &ObjectLocation,
        value: &StoreValue,
    ) -> StoreResult<StoreEntry> {
        let StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) = value else {
            return Err(unsupported("Write", key, "the value is not a WorkloadEndpoint"));
        };
        let found = self.find(key, place).await?;
        let patch = pod::patch(&found.uid, &endpoint.spec.ip_networks, &endpoint.spec.container_id);
        let path = format!("{}/status", place.path());
        match self.api.patch(&path, STRATEGIC_MERGE_PATCH_MEDIA_TYPE, &patch).await {
            Ok(answer) => self.read_written(key, place, answer),
            Err(failure) => Err(self.refused(key, place, &found.uid, failure).await),
        }
    }

    async fn patch_node(
        &self,
        key: &StoreKey,
        place: &ObjectLocation,
        value: &StoreValue,
        revision: &Revision,
    ) -> StoreResult<StoreEntry> {
        let StoreValue::Resource(Resource::Node(node)) = value else {
            return Err(unsupported("Write", key, "the value is not a Node"));
        };
        let mut patch = node::patch(node);
        patch["metadata"]["resourceVersion"] = revision.to_string().into();
        match self.api.patch(&format!("{}/status", place.path()), MERGE_PATCH_MEDIA_TYPE, &patch).await {
            Ok(answer) => self.read_written(key, place, answer),
            Err(failure) => Err(self.refused(key, place, "", failure).await),
        }
    }

    /// Returns the error of a conditional write. A conflict contains the current object. A pod with another UID is
    /// another endpoint, so the intended one does not exist any more.
    async fn refused(
        &self,
        key: &StoreKey,
        place: &ObjectLocation,
        uid: &str,
        failure: KubernetesFailure,
    ) -> StoreError {
        match failure {
            KubernetesFailure::Conflict => match self.find(key, place).await {
                Ok(found) if place.form == CollectionForm::Pod && !uid.is_empty() && found.uid != uid => {
                    StoreError::missing(key)
                }
                Ok(found) => {
                    StoreError::Conflict { id: key.to_string(), current: resource(entry(found).ok()) }
                }
                Err(error) => error,
            },
            other => other.into_error(key),
        }
    }
}

/// Joins the resource versions of several collections to one revision.
pub(super) fn joined(revisions: &[String]) -> Revision {
    revisions.join("/").parse().unwrap_or(Revision::from(0))
}

fn entry(found: ConvertedObject) -> StoreResult<StoreEntry> {
    let key = found.key.clone();
    entry_of(found).unwrap_or_else(|| Err(StoreError::missing(&key)))
}

fn entry_of(found: ConvertedObject) -> Option<StoreResult<StoreEntry>> {
    let ConvertedObject { key, revision, value, .. } = found;
    value.map(|value| value.map(|value| StoreEntry::new(key, value, revision)))
}

fn resource(entry: Option<StoreEntry>) -> Option<Box<Resource>> {
    match entry?.value {
        StoreValue::Resource(resource) => Some(Box::new(resource)),
        _ => None,
    }
}

fn clear(body: &mut Json, fields: &[&str]) {
    if let Some(Json::Object(metadata)) = body.get_mut("metadata") {
        for field in fields {
            metadata.shift_remove(*field);
        }
    }
}

/// Rejects `syncLabels: Disabled`: with this backend the labels of nodes belong to Kubernetes and need no
/// synchronisation.
fn check_sync_labels(resource: &Resource) -> StoreResult<()> {
    if resource.kind() == Kind::KubeControllersConfiguration {
        let object = resource.to_value();
        let labels = object.pointer("/spec/controllers/node/syncLabels").and_then(Json::as_str);
        if labels == Some("Disabled") {
            return Err(StoreError::Validation(ValidationError::one(
                "KubeControllersConfiguration.Spec.Controllers.Node.SyncLabels",
                "Disabled",
                "invalid SyncLabels value",
            )));
        }
    }
    Ok(())
}

fn read_continuation(continuation: &PageContinuation) -> StoreResult<(usize, Option<String>)> {
    let text = &continuation.0;
    let place = text.split_once(' ').and_then(|(index, token)| Some((index.parse().ok()?, token)));
    let (index, token) = place.ok_or_else(|| continuation.invalid())?;
    Ok((index, Some(token.to_owned()).filter(|token| !token.is_empty())))
}

fn unsupported(operation: &'static str, key: &StoreKey, reason: &str) -> StoreError {
    StoreError::NotSupported { operation, id: key.to_string(), reason: reason.into() }
}
