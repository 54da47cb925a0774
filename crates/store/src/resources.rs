//! projectcalico.org/v3 semantics on top of the client: defaults, validation, metadata rules, and the checks and
//! side effects that concern more than one object.

use crate::client::Watch;
use crate::{Client, Error, Result};
use tortie_model::{Kind, Resource, ResourceList};

#[derive(Clone)]
pub struct Resources {
    client: Client,
}

fn unfinished<T>() -> Result<T> {
    Err(Error::Datastore("not built yet".into()))
}

impl Resources {
    pub fn new(client: Client) -> Resources {
        Resources { client }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Fails with `AlreadyExists`. The result is the object as stored, with its resourceVersion.
    pub async fn create(&self, _resource: Resource) -> Result<Resource> {
        unfinished()
    }

    /// Compare-and-swap on `metadata.resourceVersion`.
    pub async fn update(&self, _resource: Resource) -> Result<Resource> {
        unfinished()
    }

    pub async fn get(&self, _kind: Kind, _namespace: &str, _name: &str) -> Result<Resource> {
        unfinished()
    }

    /// All namespaces when `namespace` is `None`.
    pub async fn list(&self, _kind: Kind, _namespace: Option<&str>) -> Result<ResourceList> {
        unfinished()
    }

    /// Only if `resource_version` still stands, when given.
    pub async fn delete(
        &self,
        _kind: Kind,
        _namespace: &str,
        _name: &str,
        _resource_version: Option<&str>,
    ) -> Result<Resource> {
        unfinished()
    }

    pub fn watch(&self, kind: Kind, namespace: Option<&str>) -> Watch {
        let range = tortie_model::KeyRange::Resources {
            kind,
            namespace: namespace.map(str::to_owned),
            name_prefix: String::new(),
        };
        self.client.watch(range, None)
    }

    /// Creates ClusterInformation and the built-in tiers where they are missing.
    pub async fn ensure_initialized(&self, _version: &str, _cluster_type: &str) -> Result<()> {
        unfinished()
    }
}
