//! Typed get, list, create, update, apply, delete, transact and watch over keys.

use crate::{Config, Error, Result};
use std::time::Duration;
use tortie_model::{Key, KeyRange, Resource};

/// etcd's modification revision.
pub type Revision = i64;

/// What is kept under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Resource(Resource),
}

/// A value as it stands in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: Key,
    pub value: Value,
    pub revision: Revision,
}

/// The entries of a range at one revision. Values that cannot be read are set aside, never fatal.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub unreadable: Vec<Error>,
    pub revision: Revision,
}

/// One step of a transaction; all happen or none does.
#[derive(Clone, Debug)]
pub enum Change {
    Create { key: Key, value: Value },
    Update { key: Key, value: Value, revision: Revision },
    Delete { key: Key, revision: Revision },
}

/// What a watch tells its consumer: a snapshot, then every later change once.
#[derive(Debug)]
pub enum Event {
    Put(Entry),
    Delete {
        key: Key,
        revision: Revision,
    },
    /// The snapshot is complete up to this revision.
    InSync(Revision),
    /// One entry could not be read; the watch goes on.
    Unreadable {
        key: String,
        error: Error,
    },
}

/// A stream of events that survives reconnects and compaction.
pub struct Watch {}

impl Watch {
    /// `None` only after the client is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        None
    }
}

#[derive(Clone)]
pub struct Client {}

fn unfinished<T>() -> Result<T> {
    Err(Error::Datastore("not built yet".into()))
}

impl Client {
    pub async fn connect(_config: &Config) -> Result<Client> {
        unfinished()
    }
    pub async fn get(&self, _key: &Key) -> Result<Entry> {
        unfinished()
    }
    pub async fn list(&self, _range: &KeyRange) -> Result<Listing> {
        unfinished()
    }
    pub async fn create(&self, _key: &Key, _value: &Value) -> Result<Entry> {
        unfinished()
    }
    pub async fn update(&self, _key: &Key, _value: &Value, _revision: Revision) -> Result<Entry> {
        unfinished()
    }
    /// Writes whatever stands there now; with a time to live the entry goes away by itself.
    pub async fn apply(&self, _key: &Key, _value: &Value, _ttl: Option<Duration>) -> Result<Entry> {
        unfinished()
    }
    /// Returns what was deleted.
    pub async fn delete(&self, _key: &Key, _revision: Option<Revision>) -> Result<Entry> {
        unfinished()
    }
    /// All changes or none; the revision they happened at.
    pub async fn transact(&self, _changes: &[Change]) -> Result<Revision> {
        unfinished()
    }
    /// From the present state (snapshot first), or from just after a revision already seen.
    pub fn watch(&self, _range: KeyRange, _after: Option<Revision>) -> Watch {
        Watch {}
    }
}
