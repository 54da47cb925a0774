//! Reads and deletes objects in the store, with the semantics of resource versions in Kubernetes.

use crate::cache::ResourceCache;
use crate::refusal::StatusError;
use crate::request::RequestOptions;
use crate::resources::ServedKind;
use crate::selectors::ObjectSelection;
use crate::stored::{StoredObject, convert_revision};
use data_encoding::BASE64URL_NOPAD;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::{
    EntryLabelSelector, PageContinuation, PageRequest, ResourceClient, StoreClient, StoreError, StoreResult,
};

/// The built-in profile, which exists without being stored.
const BUILT_IN_PROFILE: &str = "projectcalico-default-allow";

#[derive(Debug)]
pub struct ObjectStorage {
    resources: ResourceClient,
    caches: Mutex<HashMap<Kind, Arc<ResourceCache>>>,
}

/// A list of objects, or one page of it.
#[derive(Debug)]
pub struct ObjectList {
    pub items: Vec<Arc<StoredObject>>,
    pub revision: String,
    /// Token of the next page; empty for the last page.
    pub continuation: String,
}

impl ObjectStorage {
    pub fn new(client: StoreClient) -> ObjectStorage {
        ObjectStorage { resources: ResourceClient::new(client), caches: Mutex::default() }
    }

    pub fn resources(&self) -> &ResourceClient {
        &self.resources
    }

    /// Returns the cache of a kind. It is started on first use.
    pub async fn cache(&self, kind: Kind) -> Result<Arc<ResourceCache>, StatusError> {
        let known = self.caches.lock().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned();
        let cache = match known {
            Some(cache) => cache,
            None => {
                let built_in = self.built_in_object(kind).await;
                let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
                let cache = caches.entry(kind);
                cache.or_insert_with(|| ResourceCache::start(self.resources.client(), kind, built_in)).clone()
            }
        };
        if !cache.wait_until_synced().await {
            return Err(StatusError::unavailable(format!("{kind} has not been read from the datastore yet")));
        }
        Ok(cache)
    }

    /// Returns the object of a kind that exists without being stored, if there is one.
    async fn built_in_object(&self, kind: Kind) -> Option<Resource> {
        match kind {
            Kind::Profile => self.resources.get(kind, "", BUILT_IN_PROFILE).await.ok(),
            _ => None,
        }
    }

    pub async fn get(
        &self,
        served: ServedKind,
        namespace: &str,
        name: &str,
    ) -> Result<Resource, StatusError> {
        let got = self.resources.get(served.kind, namespace, name).await;
        got.map_err(|error| StatusError::from_store(served, name, error))
    }

    /// Lists objects. Without a resource version the list is read from the store. A list of a given version or later is
    /// served from the cache if the cache has reached the version.
    pub async fn list(
        &self,
        served: ServedKind,
        namespace: &str,
        selection: &ObjectSelection,
        options: &RequestOptions,
    ) -> Result<ObjectList, StatusError> {
        let version = options.resource_version.as_str();
        match options.resource_version_match.as_str() {
            "" | "NotOlderThan" => {}
            "Exact" if version == "0" || version.is_empty() => {
                return Err(StatusError::bad_request(
                    "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
            "Exact" => return self.list_at_version(served, namespace, selection, version).await,
            other => {
                return Err(StatusError::bad_request(format!(
                    "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                )));
            }
        }
        let may_use_cache = !version.is_empty() && options.continuation.is_empty() && options.limit == 0;
        if may_use_cache {
            let wanted = parse_version(version)?;
            let cache = self.cache(served.kind).await?;
            if cache.reached_revision() >= wanted {
                return Ok(list_cached(&cache, namespace, selection));
            }
        }
        self.list_stored(served, namespace, selection, options).await
    }

    async fn list_at_version(
        &self,
        served: ServedKind,
        namespace: &str,
        selection: &ObjectSelection,
        version: &str,
    ) -> Result<ObjectList, StatusError> {
        let wanted = parse_version(version)?;
        let cache = self.cache(served.kind).await?;
        let listed = list_cached(&cache, namespace, selection);
        if listed.revision != wanted.to_string() {
            let message = format!("The provided resource version {version} is not available");
            return Err(StatusError::expired(message));
        }
        Ok(listed)
    }

    async fn list_stored(
        &self,
        served: ServedKind,
        namespace: &str,
        selection: &ObjectSelection,
        options: &RequestOptions,
    ) -> Result<ObjectList, StatusError> {
        let namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        let range = KeyRange::Written { kind: served.kind, namespace };
        let client = self.resources.client();
        let is_first_page = options.continuation.is_empty();
        let listing = match NonZeroUsize::new(options.limit) {
            None if is_first_page => client.list(&range).await,
            limit => {
                let after =
                    if is_first_page { None } else { Some(parse_continuation(&options.continuation)?) };
                // Without a limit, return the remaining objects, at most one page.
                let limit = limit.unwrap_or(NonZeroUsize::MAX).min(MAX_PAGE_SIZE);
                client
                    .list_page(&range, &PageRequest { limit, after, labels: EntryLabelSelector::default() })
                    .await
            }
        };
        let listing = listing.map_err(|error| StatusError::from_store(served, "", error))?;
        for error in &listing.unreadable {
            tracing::warn!(%error, "cannot decode an object, which is omitted from the list; correct or delete the object");
        }
        let resources = listing.entries.into_iter().filter_map(|entry| match entry.value {
            StoreValue::Resource(resource) => Some(resource),
            _ => None,
        });
        let built_in = if is_first_page { self.built_in_object(served.kind).await } else { None };
        let items = resources.chain(built_in).map(|resource| StoredObject::new(&resource));
        let items = items.filter(|object| selection.selects(&object.subject())).map(Arc::new).collect();
        let continuation = listing.next.map(|next| BASE64URL_NOPAD.encode(next.0.as_bytes()));
        let revision = convert_revision(&listing.revision).to_string();
        Ok(ObjectList { items, revision, continuation: continuation.unwrap_or_default() })
    }

    /// Deletes an object, unless the rules of its kind forbid it.
    pub async fn delete(&self, served: ServedKind, resource: &Resource) -> Result<(), StatusError> {
        let meta = resource.metadata();
        let version = Some(meta.resource_version.as_str());
        let deleted = self.resources.delete(served.kind, &meta.namespace, &meta.name, version).await;
        deleted.map(drop).map_err(|error| StatusError::from_store(served, &meta.name, error))
    }

    /// Returns the names of all tiers.
    pub async fn tier_names(&self) -> Result<Vec<String>, StatusError> {
        let cache = self.cache(Kind::Tier).await?;
        Ok(cache.snapshot().0.iter().map(|tier| tier.name.clone()).collect())
    }

    /// Checks that the store responds.
    pub async fn check_store(&self) -> StoreResult<()> {
        let key = StoreKey::resource(Kind::ClusterInformation, "", "default");
        match self.resources.client().get(&key).await {
            Ok(_) | Err(StoreError::DoesNotExist { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Maximum page size, regardless of the limit of the request.
const MAX_PAGE_SIZE: NonZeroUsize = match NonZeroUsize::new(10_000) {
    Some(size) => size,
    None => NonZeroUsize::MIN,
};

fn list_cached(cache: &ResourceCache, namespace: &str, selection: &ObjectSelection) -> ObjectList {
    let (mut items, revision, _) = cache.snapshot();
    items.retain(|object| {
        (namespace.is_empty() || object.namespace == namespace) && selection.selects(&object.subject())
    });
    ObjectList { items, revision: revision.to_string(), continuation: String::new() }
}

pub fn parse_version(text: &str) -> Result<u64, StatusError> {
    text.parse().map_err(|_| {
        StatusError::bad_request(format!("resourceVersion: Invalid value: {text:?}: not a number"))
    })
}

fn parse_continuation(text: &str) -> Result<PageContinuation, StatusError> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok();
    let decoded = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).map(PageContinuation);
    decoded.ok_or_else(|| StatusError::bad_request(format!("continue key is not valid: {text:?}")))
}
