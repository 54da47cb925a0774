//! The stream of datastore events that a node consumes, independent of its source (watches of the store, a
//! hub, a file).
//!
//! A feed is a snapshot followed by deltas. The source merges all of its ranges and connections into one
//! stream, so that a consumer does not track them.

use crate::{Revision, StoreKey, StoreValue};

/// One event of a feed.
#[derive(Clone, Debug, PartialEq)]
// Nearly every event is a put: boxing it would cost one allocation per event to shrink the rare variants.
#[allow(clippy::large_enum_variant)]
pub enum FeedEvent {
    /// An entry was written, or belongs to the snapshot.
    Put { key: StoreKey, value: StoreValue, revision: Revision },
    /// An entry was deleted; the revision is that of the deletion.
    Delete { key: StoreKey, revision: Revision },
    /// An entry was written with a value that cannot be decoded; the revision is that of the write.
    Unreadable { key: StoreKey, revision: Revision, text: String, reason: String },
    /// The snapshot is complete. Sent once per feed.
    InSync,
    /// The source cannot reach the datastore or a part of it. Until [`FeedEvent::ConnectionBack`] the feed
    /// may lag behind; entries received earlier remain valid.
    ConnectionLost { reason: String },
    /// The source reaches all of the datastore again, after this many failed attempts. Changes that happened
    /// during the outage follow as ordinary puts and deletes.
    ConnectionBack { failed_attempts: u64 },
}
