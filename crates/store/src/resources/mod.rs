//! projectcalico.org/v3 semantics on top of the client: defaults, validation, metadata rules, and the checks and
//! side effects that concern more than one object.

mod init;
mod metadata;

use crate::{Client, Entry, Error, Result, Watch};
use tortie_model::{Key, KeyRange, Kind, Resource, ResourceList, Value};

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

    /// Fails with `AlreadyExists`. The result is the object as stored, with its resourceVersion.
    pub async fn create(&self, mut resource: Resource) -> Result<Resource> {
        metadata::check_create(&resource)?;
        resource.set_defaults();
        resource.validate()?;
        metadata::stamp(resource.metadata_mut());
        self.store_new(resource).await
    }

    /// Writes an object that is already complete.
    async fn store_new(&self, mut resource: Resource) -> Result<Resource> {
        resource.metadata_mut().self_link.clear();
        read(self.client.create(&key(&resource), &Value::Resource(resource.clone())).await?)
    }

    /// Compare-and-swap on `metadata.resourceVersion`.
    pub async fn update(&self, mut resource: Resource) -> Result<Resource> {
        metadata::check_update(&resource)?;
        resource.set_defaults();
        resource.validate()?;
        self.store_update(resource).await
    }

    async fn store_update(&self, mut resource: Resource) -> Result<Resource> {
        let revision = metadata::revision(&resource.metadata().resource_version)?;
        resource.metadata_mut().self_link.clear();
        read(self.client.update(&key(&resource), &Value::Resource(resource.clone()), revision).await?)
    }

    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Resource> {
        metadata::check_identity(kind, namespace, name)?;
        read(self.client.get(&Key::resource(kind, namespace, name)).await?)
    }

    /// All namespaces when `namespace` is `None`.
    pub async fn list(&self, kind: Kind, namespace: Option<&str>) -> Result<ResourceList> {
        let listing = self.client.list(&range(kind, namespace)).await?;
        for error in &listing.unreadable {
            tracing::warn!(%error, "skipped an entry that cannot be read");
        }
        let items = listing.entries.into_iter().map(read).collect::<Result<_>>()?;
        Ok(ResourceList { kind, resource_version: listing.revision.to_string(), items })
    }

    /// Only if `resource_version` still stands, when given.
    pub async fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        resource_version: Option<&str>,
    ) -> Result<Resource> {
        metadata::check_identity(kind, namespace, name)?;
        let revision =
            resource_version.filter(|text| !text.is_empty()).map(metadata::revision).transpose()?;
        read(self.client.delete(&Key::resource(kind, namespace, name), revision).await?)
    }

    /// A snapshot of the kind, then every change.
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
}

fn range(kind: Kind, namespace: Option<&str>) -> KeyRange {
    let namespace = namespace.filter(|namespace| !namespace.is_empty()).map(str::to_owned);
    KeyRange::Resources { kind, namespace, name_prefix: String::new() }
}

fn key(resource: &Resource) -> Key {
    let meta = resource.metadata();
    Key::resource(resource.kind(), &meta.namespace, &meta.name)
}

/// The resource in an entry; under a resource's key there is nothing else.
fn read(entry: Entry) -> Result<Resource> {
    match entry.value {
        Value::Resource(resource) => Ok(resource),
        _ => Err(Error::Parse {
            key: entry.key.path(),
            value: String::new(),
            reason: "not a projectcalico.org/v3 resource".into(),
        }),
    }
}
