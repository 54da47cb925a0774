//! Semantics of projectcalico.org/v3 on top of the client: defaults, validation, metadata rules, and the checks and
//! side effects that involve several objects.
//!
//! This module contains the operations. `rules` contains the checks against other objects before a write; kinds whose
//! deletion affects other objects have a module each.

mod addresses;
mod init;
mod metadata;
mod node;
mod policy;
mod pool;
mod profile;
mod rules;

pub use policy::tier_of;

use crate::{StoreClient, StoreEntry, StoreError, StoreResult, StoreWatch};
use tortie_model::{KeyRange, Kind, Resource, ResourceList, ResourceSpec, StoreKey, StoreValue, TypedObject};

/// Maximum number of attempts to change an object that other clients change at the same time.
const MAX_MODIFY_ATTEMPTS: u32 = 10;

#[derive(Clone, Debug)]
pub struct ResourceClient {
    client: StoreClient,
}

impl ResourceClient {
    pub fn new(client: StoreClient) -> ResourceClient {
        ResourceClient { client }
    }

    pub fn client(&self) -> &StoreClient {
        &self.client
    }

    /// Creates an object; fails with `AlreadyExists`. Returns the stored object with its resourceVersion.
    pub async fn create(&self, resource: Resource) -> StoreResult<Resource> {
        let resource = prepared(resource, metadata::check_create)?;
        self.before_create(&resource).await?;
        self.insert(resource).await
    }

    /// Updates an object with a compare-and-swap on `metadata.resourceVersion`.
    pub async fn update(&self, resource: Resource) -> StoreResult<Resource> {
        let resource = prepared(resource, metadata::check_update)?;
        self.before_update(&resource).await?;
        self.replace(resource).await
    }

    /// Returns the object that [`ResourceClient::create`] would store, or its error.
    pub async fn check_create(&self, resource: Resource) -> StoreResult<Resource> {
        let mut resource = prepared(resource, metadata::check_create)?;
        self.before_create(&resource).await?;
        metadata::stamp(resource.metadata_mut());
        Ok(resource)
    }

    /// Returns the object that [`ResourceClient::update`] would store, or its error.
    pub async fn check_update(&self, resource: Resource) -> StoreResult<Resource> {
        let resource = prepared(resource, metadata::check_update)?;
        self.before_update(&resource).await?;
        Ok(resource)
    }

    /// Fails if [`ResourceClient::delete`] would refuse.
    pub async fn check_delete(&self, kind: Kind, name: &str) -> StoreResult<()> {
        match kind {
            Kind::Tier => self.check_tier_unused(name).await,
            _ if profile::is_synthetic(kind, name) => Err(profile::refused("delete")),
            _ => Ok(()),
        }
    }

    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> StoreResult<Resource> {
        metadata::check_identity(kind, namespace, name)?;
        if profile::is_synthetic(kind, name) {
            return Ok(profile::synthetic());
        }
        read(self.client.get(&StoreKey::resource(kind, namespace, name)).await?)
    }

    /// Lists a kind, in all namespaces if `namespace` is `None`.
    pub async fn list(&self, kind: Kind, namespace: Option<&str>) -> StoreResult<ResourceList> {
        let (list, unreadable) = self.list_all(kind, namespace).await?;
        for error in &unreadable {
            tracing::warn!(%error, "skipped an entry that cannot be read");
        }
        Ok(list)
    }

    /// Like `list`, but also returns the errors of unreadable entries.
    pub async fn list_all(
        &self,
        kind: Kind,
        namespace: Option<&str>,
    ) -> StoreResult<(ResourceList, Vec<StoreError>)> {
        let listing = self.client.list(&range(kind, namespace)).await?;
        let mut items: Vec<Resource> = listing.entries.into_iter().map(read).collect::<StoreResult<_>>()?;
        if kind == Kind::Profile {
            items.push(profile::synthetic());
        }
        let list = ResourceList { kind, resource_version: listing.revision.to_string(), items };
        Ok((list, listing.unreadable))
    }

    /// Deletes an object, and everything that belongs to it. Fails if `resource_version` is set and no longer current.
    pub async fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        resource_version: Option<&str>,
    ) -> StoreResult<Resource> {
        metadata::check_identity(kind, namespace, name)?;
        let revision = resource_version
            .filter(|text| !text.is_empty())
            .map(|text| self.client.revision(text))
            .transpose()?;
        let key = StoreKey::resource(kind, namespace, name);
        match kind {
            Kind::Tier => self.check_tier_unused(name).await?,
            Kind::IPPool => return self.delete_pool(&key, revision).await,
            Kind::Node => return self.delete_node(name, revision).await,
            _ if profile::is_synthetic(kind, name) => return Err(profile::refused("delete")),
            _ => {}
        }
        read(self.client.delete(&key, revision.as_ref()).await?)
    }

    /// Watches a kind: a snapshot, then all changes.
    pub fn watch(&self, kind: Kind, namespace: Option<&str>) -> StoreResult<StoreWatch> {
        if kind == Kind::LiveMigration {
            return Err(StoreError::NotSupported {
                operation: "Watch",
                id: kind.name().to_owned(),
                reason: String::new(),
            });
        }
        Ok(self.client.watch(range(kind, namespace), None))
    }

    /// Like [`ResourceClient::get`], for a kind known at compile time.
    pub async fn get_as<S: ResourceSpec>(&self, namespace: &str, name: &str) -> StoreResult<TypedObject<S>>
    where
        TypedObject<S>: TryFrom<Resource, Error = Resource>,
    {
        typed(self.get(S::KIND, namespace, name).await?)
    }

    /// Like [`ResourceClient::list`], for a kind known at compile time.
    pub async fn list_as<S: ResourceSpec>(&self, namespace: Option<&str>) -> StoreResult<Vec<TypedObject<S>>>
    where
        TypedObject<S>: TryFrom<Resource, Error = Resource>,
    {
        self.list(S::KIND, namespace).await?.items.into_iter().map(typed).collect()
    }

    /// Reads, changes and writes an object, and starts again if another client wrote it in between. `change` receives the
    /// stored object, or the error of the read, and returns the object to write; `None` leaves the store as it is.
    /// An object that could not be read is created. Returns the written object.
    pub async fn modify<S: ResourceSpec, E: From<StoreError>>(
        &self,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(StoreResult<TypedObject<S>>) -> Result<Option<TypedObject<S>>, E>,
    ) -> Result<Option<Resource>, E>
    where
        TypedObject<S>: TryFrom<Resource, Error = Resource>,
        Resource: From<TypedObject<S>>,
    {
        let mut attempt = 1;
        loop {
            let stored = self.get_as(namespace, name).await;
            let exists = stored.is_ok();
            let Some(next) = change(stored)? else { return Ok(None) };
            let written =
                if exists { self.update(next.into()).await } else { self.create(next.into()).await };
            match written {
                Err(error) if error.is_lost_race() && attempt < MAX_MODIFY_ATTEMPTS => attempt += 1,
                written => return Ok(Some(written?)),
            }
        }
    }

    /// Stores a new object that was checked.
    async fn insert(&self, mut resource: Resource) -> StoreResult<Resource> {
        let meta = resource.metadata_mut();
        metadata::stamp(meta);
        meta.self_link.clear();
        read(self.client.create(&key(&resource), &StoreValue::Resource(resource)).await?)
    }

    /// Stores a checked object, replacing the version it is based on.
    async fn replace(&self, mut resource: Resource) -> StoreResult<Resource> {
        let revision = self.client.revision(&resource.metadata().resource_version)?;
        resource.metadata_mut().self_link.clear();
        read(self.client.update(&key(&resource), &StoreValue::Resource(resource), &revision).await?)
    }
}

/// Applies the defaults, then checks and validates the object.
fn prepared(mut resource: Resource, check: fn(&Resource) -> StoreResult<()>) -> StoreResult<Resource> {
    resource.set_defaults();
    check(&resource)?;
    resource.validate()?;
    Ok(resource)
}

fn range(kind: Kind, namespace: Option<&str>) -> KeyRange {
    let namespace = namespace.filter(|namespace| !namespace.is_empty()).map(str::to_owned);
    KeyRange::Resources { kind, namespace, name_prefix: String::new() }
}

fn key(resource: &Resource) -> StoreKey {
    let meta = resource.metadata();
    StoreKey::resource(resource.kind(), &meta.namespace, &meta.name)
}

/// Returns the resource of an entry; an entry under a resource key contains nothing else.
fn read(entry: StoreEntry) -> StoreResult<Resource> {
    match entry.value {
        StoreValue::Resource(resource) => Ok(resource),
        _ => Err(StoreError::Parse {
            key: entry.key.to_string(),
            value: String::new(),
            reason: "not a projectcalico.org/v3 resource".into(),
        }),
    }
}

fn typed<S: ResourceSpec>(resource: Resource) -> StoreResult<TypedObject<S>>
where
    TypedObject<S>: TryFrom<Resource, Error = Resource>,
{
    TypedObject::try_from(resource).map_err(|other| StoreError::Parse {
        key: key(&other).to_string(),
        value: String::new(),
        reason: format!("not a {}", S::KIND),
    })
}
