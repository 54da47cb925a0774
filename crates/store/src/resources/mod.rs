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

use crate::{Client, Entry, Error, Result, Watch};
use tortie_model::{Key, KeyRange, Kind, Object, Resource, ResourceList, Spec, Value};

#[derive(Clone, Debug)]
pub struct Resources {
    client: Client,
}

impl Resources {
    pub fn new(client: Client) -> Resources {
        Resources { client }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Creates an object; fails with `AlreadyExists`. Returns the stored object with its resourceVersion.
    pub async fn create(&self, resource: Resource) -> Result<Resource> {
        let resource = prepared(resource, metadata::check_create)?;
        self.before_create(&resource).await?;
        self.insert(resource).await
    }

    /// Updates an object with a compare-and-swap on `metadata.resourceVersion`.
    pub async fn update(&self, resource: Resource) -> Result<Resource> {
        let resource = prepared(resource, metadata::check_update)?;
        self.before_update(&resource).await?;
        self.replace(resource).await
    }

    /// Returns the object that [`Resources::create`] would store, or its error.
    pub async fn check_create(&self, resource: Resource) -> Result<Resource> {
        let mut resource = prepared(resource, metadata::check_create)?;
        self.before_create(&resource).await?;
        metadata::stamp(resource.metadata_mut());
        Ok(resource)
    }

    /// Returns the object that [`Resources::update`] would store, or its error.
    pub async fn check_update(&self, resource: Resource) -> Result<Resource> {
        let resource = prepared(resource, metadata::check_update)?;
        self.before_update(&resource).await?;
        Ok(resource)
    }

    /// Fails if [`Resources::delete`] would refuse.
    pub async fn check_delete(&self, kind: Kind, name: &str) -> Result<()> {
        match kind {
            Kind::Tier => self.check_tier_unused(name).await,
            _ if profile::is_synthetic(kind, name) => Err(profile::refused("delete")),
            _ => Ok(()),
        }
    }

    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Resource> {
        metadata::check_identity(kind, namespace, name)?;
        if profile::is_synthetic(kind, name) {
            return Ok(profile::synthetic());
        }
        read(self.client.get(&Key::resource(kind, namespace, name)).await?)
    }

    /// Lists a kind, in all namespaces if `namespace` is `None`.
    pub async fn list(&self, kind: Kind, namespace: Option<&str>) -> Result<ResourceList> {
        let (list, unreadable) = self.list_all(kind, namespace).await?;
        for error in &unreadable {
            tracing::warn!(%error, "skipped an entry that cannot be read");
        }
        Ok(list)
    }

    /// Like `list`, but also returns the errors of unreadable entries.
    pub async fn list_all(&self, kind: Kind, namespace: Option<&str>) -> Result<(ResourceList, Vec<Error>)> {
        let listing = self.client.list(&range(kind, namespace)).await?;
        let mut items: Vec<Resource> = listing.entries.into_iter().map(read).collect::<Result<_>>()?;
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
    ) -> Result<Resource> {
        metadata::check_identity(kind, namespace, name)?;
        let revision = resource_version
            .filter(|text| !text.is_empty())
            .map(|text| self.client.revision(text))
            .transpose()?;
        let key = Key::resource(kind, namespace, name);
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
    pub fn watch(&self, kind: Kind, namespace: Option<&str>) -> Result<Watch> {
        if kind == Kind::LiveMigration {
            return Err(Error::NotSupported {
                operation: "Watch",
                id: kind.name().to_owned(),
                reason: String::new(),
            });
        }
        Ok(self.client.watch(range(kind, namespace), None))
    }

    /// Like [`Resources::get`], for a kind known at compile time.
    pub async fn get_as<S: Spec>(&self, namespace: &str, name: &str) -> Result<Object<S>>
    where
        Object<S>: TryFrom<Resource, Error = Resource>,
    {
        typed(self.get(S::KIND, namespace, name).await?)
    }

    /// Like [`Resources::list`], for a kind known at compile time.
    pub async fn list_as<S: Spec>(&self, namespace: Option<&str>) -> Result<Vec<Object<S>>>
    where
        Object<S>: TryFrom<Resource, Error = Resource>,
    {
        self.list(S::KIND, namespace).await?.items.into_iter().map(typed).collect()
    }

    /// Stores a new object that was checked.
    async fn insert(&self, mut resource: Resource) -> Result<Resource> {
        let meta = resource.metadata_mut();
        metadata::stamp(meta);
        meta.self_link.clear();
        read(self.client.create(&key(&resource), &Value::Resource(resource)).await?)
    }

    /// Stores a checked object, replacing the version it is based on.
    async fn replace(&self, mut resource: Resource) -> Result<Resource> {
        let revision = self.client.revision(&resource.metadata().resource_version)?;
        resource.metadata_mut().self_link.clear();
        read(self.client.update(&key(&resource), &Value::Resource(resource), &revision).await?)
    }
}

/// Applies the defaults, then checks and validates the object.
fn prepared(mut resource: Resource, check: fn(&Resource) -> Result<()>) -> Result<Resource> {
    resource.set_defaults();
    check(&resource)?;
    resource.validate()?;
    Ok(resource)
}

fn range(kind: Kind, namespace: Option<&str>) -> KeyRange {
    let namespace = namespace.filter(|namespace| !namespace.is_empty()).map(str::to_owned);
    KeyRange::Resources { kind, namespace, name_prefix: String::new() }
}

fn key(resource: &Resource) -> Key {
    let meta = resource.metadata();
    Key::resource(resource.kind(), &meta.namespace, &meta.name)
}

/// Returns the resource of an entry; an entry under a resource key contains nothing else.
fn read(entry: Entry) -> Result<Resource> {
    match entry.value {
        Value::Resource(resource) => Ok(resource),
        _ => Err(Error::Parse {
            key: entry.key.to_string(),
            value: String::new(),
            reason: "not a projectcalico.org/v3 resource".into(),
        }),
    }
}

fn typed<S: Spec>(resource: Resource) -> Result<Object<S>>
where
    Object<S>: TryFrom<Resource, Error = Resource>,
{
    Object::try_from(resource).map_err(|other| Error::Parse {
        key: key(&other).to_string(),
        value: String::new(),
        reason: format!("not a {}", S::KIND),
    })
}
