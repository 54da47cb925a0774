//! The client's state of the store, and the events that it emits to its node as messages arrive. A node receives
//! every change once and no deletion that did not happen, even when it switches between hubs. Does no I/O.

mod bucket;
mod outage;
mod transfer;

use crate::protocol::{
    BUCKET_COUNT, BucketMessage, ChangesMessage, ClientMessage, DigestsMessage, EndMessage, FeedRecord,
    HelloMessage, HubMessage, HubPosition, NEWEST_PROTOCOL_VERSION, OLDEST_PROTOCOL_VERSION, PROTOCOL_MAGIC,
    ProtocolError, RecordAction, choose_bucket, find_class, find_collection, from_record,
};
use bucket::ReplicaBucket;
use outage::StoreOutage;
use std::collections::BTreeMap;
use tortie_model::{FeedEvent, Revision};
use tortie_store::ListAbsence;
use transfer::{BucketTransfer, ReceivedBucket};

#[derive(Debug)]
pub struct HubReplica {
    node: String,
    /// Classes that the node subscribes to.
    wanted: Vec<String>,
    buckets: Vec<ReplicaBucket>,
    position: Option<HubPosition>,
    /// For each class, the latest revision received.
    marks: BTreeMap<String, u64>,
    /// Epoch of the connected hub.
    epoch: u64,
    /// The hub lacks revisions that this client has received and will not receive them.
    behind: bool,
    transfer: Option<BucketTransfer>,
    in_sync: bool,
    outage: StoreOutage,
    /// Number of entries of unknown kinds.
    unknown: u64,
    snapshot_check: SnapshotCheck,
}

/// Protection against a hub that reads the wrong datastore: a snapshot that lacks most known objects without reported
/// deletions is rejected, until `limit` consecutive snapshots were rejected.
#[derive(Debug, Default)]
struct SnapshotCheck {
    /// Classes whose loss would remove policy from workloads or disconnect them.
    guarded: Vec<String>,
    limit: u32,
    /// Number of consecutive snapshots that were rejected.
    snapshots: u32,
}

/// Result of handling a message.
#[derive(Debug, Default, PartialEq)]
pub struct ReplicaReaction {
    pub events: Vec<FeedEvent>,
    pub reply: Option<ClientMessage>,
    /// Reason why the hub rejects this client or asks it to disconnect.
    pub disconnect: Option<String>,
    /// Reason why the hub's snapshot is rejected.
    pub rejection: Option<String>,
}

impl HubReplica {
    pub fn new(node: &str, wanted: Vec<String>) -> HubReplica {
        HubReplica {
            node: node.to_owned(),
            wanted,
            buckets: (0..BUCKET_COUNT).map(|_| ReplicaBucket::default()).collect(),
            position: None,
            marks: BTreeMap::new(),
            epoch: 0,
            behind: false,
            transfer: None,
            in_sync: false,
            outage: StoreOutage::default(),
            unknown: 0,
            snapshot_check: SnapshotCheck::default(),
        }
    }

    /// Makes the replica reject up to `limit` consecutive snapshots that lack most of its objects of these classes.
    pub fn set_snapshot_check(&mut self, guarded: Vec<String>, limit: u32) {
        self.snapshot_check = SnapshotCheck { guarded, limit, snapshots: 0 };
    }

    /// Returns the first message of a new connection. Discards the unfinished transfer of an earlier connection.
    pub fn hello(&mut self) -> ClientMessage {
        self.transfer = None;
        ClientMessage::Hello(HelloMessage {
            magic: PROTOCOL_MAGIC,
            oldest: OLDEST_PROTOCOL_VERSION,
            newest: NEWEST_PROTOCOL_VERSION,
            node: self.node.clone(),
            position: self.position,
            empty: self.buckets.iter().all(ReplicaBucket::is_empty),
            marks: self.marks.clone(),
            wanted: self.wanted.clone(),
        })
    }

    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    /// Returns the number of entries that were ignored because this version does not know their kinds.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Records that no hub can be reached.
    pub fn record_unreachable(&mut self, reason: &str) -> Option<FeedEvent> {
        self.outage.record_failure(reason)
    }

    /// Handles a message of the hub.
    pub fn receive(&mut self, message: HubMessage) -> Result<ReplicaReaction, ProtocolError> {
        let mut reaction = ReplicaReaction::default();
        match message {
            HubMessage::Welcome(welcome) => {
                if !(OLDEST_PROTOCOL_VERSION..=NEWEST_PROTOCOL_VERSION).contains(&welcome.version) {
                    return Err(ProtocolError::Unexpected(
                        "a Welcome with a version that this client does not support",
                    ));
                }
                self.epoch = welcome.epoch;
                self.behind = welcome.behind;
            }
            HubMessage::Refused(refused) => reaction.disconnect = Some(refused.reason),
            HubMessage::Leave(()) => {
                reaction.disconnect = Some("the hub asked its clients to disconnect".to_owned())
            }
            HubMessage::Ping(()) => reaction.reply = Some(ClientMessage::Pong(())),
            HubMessage::Resume(status) => {
                if self.position.is_none_or(|position| position.epoch != self.epoch) {
                    return Err(ProtocolError::Unexpected(
                        "a Resume, but this client has no position of this hub",
                    ));
                }
                reaction.events.extend(self.outage.apply_status(&status));
            }
            HubMessage::Compare(()) => {
                self.transfer = None;
                let sums = self.buckets.iter().map(|bucket| bucket.sum().0).collect();
                reaction.reply = Some(ClientMessage::Digests(DigestsMessage { sums }));
            }
            HubMessage::Begin(begin) => {
                self.transfer = Some(BucketTransfer::new(begin.sequence, begin.status.unwrap_or_default()));
            }
            HubMessage::Bucket(bucket) => self.receive_bucket(&bucket, &mut reaction.events)?,
            HubMessage::End(end) => {
                reaction.rejection = self.complete_transfer(&end, &mut reaction.events)?;
            }
            HubMessage::Changes(changes) => self.apply_changes(&changes, &mut reaction.events)?,
        }
        Ok(reaction)
    }

    fn receive_bucket(
        &mut self,
        bucket: &BucketMessage,
        events: &mut Vec<FeedEvent>,
    ) -> Result<(), ProtocolError> {
        let transfer =
            self.transfer.as_mut().ok_or(ProtocolError::Unexpected("a bucket without a preceding Begin"))?;
        let Some(mut received) = transfer.receive(bucket, &self.buckets)? else { return Ok(()) };
        if !self.in_sync {
            self.apply_bucket(&mut received, &BTreeMap::new(), events);
        }
        self.transfer.as_mut().map_or(Ok(()), |transfer| transfer.store_bucket(received))
    }

    /// Returns an error message if a snapshot lacks too many entries to be applied.
    fn check_snapshot(&mut self, transfer: &BucketTransfer) -> Option<String> {
        let mut absences: BTreeMap<(String, &str), ListAbsence> = BTreeMap::new();
        let deleted = transfer.buckets.iter().flat_map(|bucket| &bucket.deleted);
        for collection in deleted.filter_map(|key| find_collection(key)) {
            absences.entry(collection).or_default().missing += 1;
        }
        absences.retain(|(class, _), _| self.snapshot_check.guarded.contains(class));
        if absences.is_empty() || !self.in_sync {
            self.snapshot_check.snapshots = 0;
            return None;
        }
        for collection in self.buckets.iter().flat_map(ReplicaBucket::keys).filter_map(find_collection) {
            if let Some(absence) = absences.get_mut(&collection) {
                absence.known += 1;
            }
        }
        let large = absences.iter().find(|(_, absence)| absence.is_large());
        let Some(((class, _), ListAbsence { known, missing })) =
            large.filter(|_| self.snapshot_check.snapshots < self.snapshot_check.limit)
        else {
            self.snapshot_check.snapshots = 0;
            return None;
        };
        self.snapshot_check.snapshots += 1;
        Some(format!(
            "its snapshot lacks {missing} of {known} objects of {class}, whose deletion it did not report; this node keeps them; \
             check the datastore of the hub"
        ))
    }

    /// Applies the completed transfer. Returns the reason if it rejects the snapshot.
    fn complete_transfer(
        &mut self,
        end: &EndMessage,
        events: &mut Vec<FeedEvent>,
    ) -> Result<Option<String>, ProtocolError> {
        let mut transfer = self.transfer.take_if(|transfer| transfer.has_no_partial_bucket()).ok_or(
            ProtocolError::Unexpected(
                "an End without a preceding Begin, or before the last part of a bucket",
            ),
        )?;
        if let Some(reason) = self.check_snapshot(&transfer) {
            return Ok(Some(reason));
        }
        events.extend(self.outage.apply_status(&transfer.status));
        // Apply deletions first, so that a node never has both an object and its replacement.
        for received in &mut transfer.buckets {
            self.delete_missing(received, &end.marks, events);
        }
        for bucket in &mut self.buckets {
            bucket.as_of = 0;
        }
        for received in &mut transfer.buckets {
            self.apply_bucket(received, &end.marks, events);
            self.buckets[received.index].as_of = received.changed;
        }
        if std::mem::take(&mut self.behind) {
            // The store was restored from a backup: the marks must not exceed the hub's.
            for (class, mark) in &mut self.marks {
                *mark = end.marks.get(class).map_or(*mark, |hub_mark| (*mark).min(*hub_mark));
            }
        }
        self.position = Some(HubPosition { epoch: self.epoch, sequence: transfer.sequence });
        if !std::mem::replace(&mut self.in_sync, true) {
            events.push(FeedEvent::InSync);
        }
        Ok(None)
    }

    fn delete_missing(
        &mut self,
        received: &mut ReceivedBucket,
        hub_marks: &BTreeMap<String, u64>,
        events: &mut Vec<FeedEvent>,
    ) {
        for key in received.deleted.drain(..) {
            // The revision of the deletion is unknown; the hub's mark is an upper bound.
            let class = find_class(&key).unwrap_or_default();
            let revision = hub_marks.get(&class).or(self.marks.get(&class)).copied().unwrap_or_default();
            let revision = Revision::from(revision).to_string();
            let record =
                FeedRecord { key, action: RecordAction::Delete.into(), revision, ..FeedRecord::default() };
            self.apply_record(record, received.index, events);
        }
    }

    fn apply_bucket(
        &mut self,
        received: &mut ReceivedBucket,
        hub_marks: &BTreeMap<String, u64>,
        events: &mut Vec<FeedEvent>,
    ) {
        self.delete_missing(received, hub_marks, events);
        received.bytes = 0;
        for record in std::mem::take(&mut received.changed_records) {
            self.apply_record(record, received.index, events);
        }
    }

    fn apply_changes(
        &mut self,
        changes: &ChangesMessage,
        events: &mut Vec<FeedEvent>,
    ) -> Result<(), ProtocolError> {
        let position = match (&mut self.position, &self.transfer) {
            (Some(position), None) if position.epoch == self.epoch => position,
            _ => return Err(ProtocolError::Unexpected("changes before the snapshot is complete")),
        };
        if changes.sequence != position.sequence + 1 {
            return Err(ProtocolError::Unexpected("changes with a gap in the sequence numbers"));
        }
        let records = changes.records.records()?;
        position.sequence = changes.sequence;
        for record in records {
            let index = choose_bucket(&record.key);
            // A bucket that was sent after this change already includes it, and maybe a later one.
            if changes.sequence > self.buckets[index].as_of {
                self.apply_record(record, index, events);
            }
        }
        events.extend(changes.status.as_ref().and_then(|status| self.outage.apply_status(status)));
        Ok(())
    }

    /// Applies a record and emits an event if it is new.
    fn apply_record(&mut self, record: FeedRecord, index: usize, events: &mut Vec<FeedEvent>) {
        if let Ok(number) = record.revision.parse::<u64>()
            && let Some(class) = find_class(&record.key)
        {
            let mark = self.marks.entry(class).or_default();
            *mark = number.max(*mark);
        }
        if !self.buckets[index].apply(&record) {
            return;
        }
        match from_record(&record) {
            Ok(event) => events.push(event),
            Err(error) => {
                tracing::debug!(%error, "ignoring an entry of an unknown kind");
                self.unknown += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
