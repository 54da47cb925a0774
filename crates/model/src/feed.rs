//! The feed of a node: what it hears of the datastore, from whatever source (the store's watches, a hub, a file).
//!
//! A feed is a snapshot followed by deltas. The source merges whatever it has to listen to, so a consumer never
//! counts ranges or connections.

use crate::{Key, Revision, Value};

/// One event of a feed.
#[derive(Clone, Debug, PartialEq)]
// Nearly every event is a put: boxing it would cost an allocation each to make the rare ones smaller.
#[allow(clippy::large_enum_variant)]
pub enum FeedEvent {
    /// An entry was written, or belongs to the snapshot.
    Put { key: Key, value: Value, revision: Revision },
    /// An entry was deleted; the revision is that of the deletion.
    Delete { key: Key, revision: Revision },
    /// An entry was written with a value that cannot be read.
    Unreadable { key: Key, text: String, reason: String },
    /// The snapshot is complete. Sent once in the life of a feed.
    InSync,
    /// The source cannot reach the datastore (or a part of it). Until [`FeedEvent::ConnectionBack`] the feed may be
    /// behind; what was heard before still stands.
    ConnectionLost { reason: String },
    /// The source reaches all of the datastore again, after this many failed attempts. What was missed comes as
    /// ordinary puts and deletes.
    ConnectionBack { failed_attempts: u64 },
}
