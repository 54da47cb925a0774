//! The effect of a write in the form in which watchers receive it.

use bytes::Bytes;
use prost::Message;
use std::sync::{Arc, OnceLock};
use tortie_etcd_proto::mvccpb::event::EventType;
use tortie_etcd_proto::mvccpb::{Event, KeyValue};

/// All changes of one revision, in order. A watcher receives either all of them or none.
#[derive(Debug)]
pub struct RevisionCommit {
    pub revision: i64,
    pub changes: Vec<Arc<KeyChange>>,
    /// Whether each change holds its previous value; otherwise watchers read the revision from disk.
    pub is_whole: bool,
}

/// One put or delete. Its wire format is encoded once, by the first watcher that needs it, and shared by the others.
#[derive(Debug)]
pub struct KeyChange {
    pub kv: KeyValue,
    pub deleted: bool,
    pub previous: Option<KeyValue>,
    bare: OnceLock<Bytes>,
    with_previous: OnceLock<Bytes>,
}

impl KeyChange {
    pub fn put(kv: KeyValue, previous: Option<KeyValue>) -> KeyChange {
        KeyChange { kv, deleted: false, previous, bare: OnceLock::new(), with_previous: OnceLock::new() }
    }

    pub fn delete(key: Bytes, revision: i64, previous: Option<KeyValue>) -> KeyChange {
        let kv = KeyValue { key, mod_revision: revision, ..Default::default() };
        KeyChange { deleted: true, ..KeyChange::put(kv, previous) }
    }

    /// Returns the approximate memory usage, including the encoded form.
    pub fn size(&self) -> usize {
        let kvs = [Some(&self.kv), self.previous.as_ref()];
        64 + 2 * kvs.into_iter().flatten().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>()
    }

    /// Returns the encoded `mvccpb.Event`.
    pub fn event(&self, with_previous: bool) -> &Bytes {
        let cell = if with_previous { &self.with_previous } else { &self.bare };
        cell.get_or_init(|| {
            let kind = if self.deleted { EventType::Delete } else { EventType::Put };
            let event = Event {
                r#type: kind.into(),
                kv: Some(self.kv.clone()),
                prev_kv: if with_previous { self.previous.clone() } else { None },
            };
            Bytes::from(event.encode_to_vec())
        })
    }
}
