//! A write that a controller decides on, and its execution.

use tortie_model::{Key, Kind, ObjectMeta, Resource, Value};
use tortie_store::{Client, Resources};

#[derive(Clone, Debug, PartialEq)]
// Writes are few and short-lived.
#[allow(clippy::large_enum_variant)]
pub enum Write {
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

impl Write {
    pub fn delete(kind: Kind, meta: &ObjectMeta) -> Write {
        Write::Delete {
            kind,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            version: meta.resource_version.clone(),
        }
    }

    pub fn key(&self) -> Key {
        match self {
            Write::Create(resource) | Write::Update(resource) => {
                let meta = resource.metadata();
                Key::resource(resource.kind(), &meta.namespace, &meta.name)
            }
            Write::Delete { kind, namespace, name, .. } => Key::resource(*kind, namespace, name),
        }
    }

    /// Executes the write like a user's: with defaults, validation and dependent objects.
    pub async fn carry_out(self, resources: &Resources) -> tortie_store::Result<()> {
        settled(match self {
            Write::Create(resource) => resources.create(resource).await.map(drop),
            Write::Update(resource) => resources.update(resource).await.map(drop),
            Write::Delete { kind, namespace, name, version } => {
                resources.delete(kind, &namespace, &name, Some(&version)).await.map(drop)
            }
        })
    }

    /// Executes the write unchanged, for derived objects that are not validated like those of users.
    pub async fn carry_out_plainly(self, client: &Client) -> tortie_store::Result<()> {
        let key = self.key();
        settled(match self {
            Write::Create(resource) => client.create(&key, &Value::Resource(resource)).await.map(drop),
            Write::Update(resource) => {
                let version = client.revision(&resource.metadata().resource_version)?;
                client.update(&key, &Value::Resource(resource), &version).await.map(drop)
            }
            Write::Delete { version, .. } => {
                let version = client.revision(&version)?;
                client.delete(&key, Some(&version)).await.map(drop)
            }
        })
    }
}

/// Ignores a lost race: the newer version arrives as an event and is reconciled then.
fn settled(outcome: tortie_store::Result<()>) -> tortie_store::Result<()> {
    match outcome {
        Err(error) if error.is_lost_race() => Ok(()),
        outcome => outcome,
    }
}
