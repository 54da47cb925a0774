//! A write that a controller decides on, and its execution.

use tortie_model::{Kind, ObjectMeta, Resource, StoreKey, StoreValue};
use tortie_store::{ResourceClient, StoreClient};

#[derive(Clone, Debug, PartialEq)]
// Writes are few and short-lived.
#[allow(clippy::large_enum_variant)]
pub enum ObjectWrite {
    Create(Resource),
    /// Replaces the version that the resource was derived from.
    Update(Resource),
    Delete {
        kind: Kind,
        namespace: String,
        name: String,
        version: String,
    },
}

impl ObjectWrite {
    pub fn delete(kind: Kind, meta: &ObjectMeta) -> ObjectWrite {
        ObjectWrite::Delete {
            kind,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            version: meta.resource_version.clone(),
        }
    }

    pub fn key(&self) -> StoreKey {
        match self {
            ObjectWrite::Create(resource) | ObjectWrite::Update(resource) => {
                let meta = resource.metadata();
                StoreKey::resource(resource.kind(), &meta.namespace, &meta.name)
            }
            ObjectWrite::Delete { kind, namespace, name, .. } => StoreKey::resource(*kind, namespace, name),
        }
    }

    /// Executes the write like a user's: with defaults, validation and dependent objects.
    pub async fn execute(self, resources: &ResourceClient) -> tortie_store::StoreResult<()> {
        ignore_lost_race(match self {
            ObjectWrite::Create(resource) => resources.create(resource).await.map(drop),
            ObjectWrite::Update(resource) => resources.update(resource).await.map(drop),
            ObjectWrite::Delete { kind, namespace, name, version } => {
                resources.delete(kind, &namespace, &name, Some(&version)).await.map(drop)
            }
        })
    }

    /// Executes the write unchanged, for derived objects that are not validated like those of users.
    pub async fn execute_unchanged(self, client: &StoreClient) -> tortie_store::StoreResult<()> {
        let key = self.key();
        ignore_lost_race(match self {
            ObjectWrite::Create(resource) => {
                client.create(&key, &StoreValue::Resource(resource)).await.map(drop)
            }
            ObjectWrite::Update(resource) => {
                let version = client.revision(&resource.metadata().resource_version)?;
                client.update(&key, &StoreValue::Resource(resource), &version).await.map(drop)
            }
            ObjectWrite::Delete { version, .. } => {
                let version = client.revision(&version)?;
                client.delete(&key, Some(&version)).await.map(drop)
            }
        })
    }
}

/// Ignores a lost race: the newer version arrives as an event and is reconciled then.
fn ignore_lost_race(outcome: tortie_store::StoreResult<()>) -> tortie_store::StoreResult<()> {
    match outcome {
        Err(error) if error.is_lost_race() => Ok(()),
        outcome => outcome,
    }
}
