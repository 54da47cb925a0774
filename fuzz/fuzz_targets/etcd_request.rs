//! Executes any sequence of requests and checks that the contents of the store always equal the sum of the changes it
//! reported.
//!
//! The input is a sequence of requests: one byte for the kind, two for the length, then the protobuf message. They pass
//! through the same validation and the same core as requests from the network, on a database in memory.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::collections::BTreeMap;
use tortie_datastore::{RequestError, validate};
use tortie_datastore::core::{StoreCore, WriteRequest, WriteResponse};
use tortie_datastore::limits::{MAX_RESPONSE_BYTES, ResponseAllowance};
use tortie_etcd_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    TxnRequest,
};
use tortie_etcd_proto::mvccpb::KeyValue;

const MAX_REQUESTS: usize = 64;
/// Flag in the kind: this write is grouped with the next one in the same commit.
const GROUPED: u8 = 0x80;

fuzz_target!(|bytes: &[u8]| {
    let mut store = Store::new();
    let mut group = Vec::new();
    for (kind, message) in requests(bytes).take(MAX_REQUESTS) {
        group.extend(store.request(kind & !GROUPED, message));
        if kind & GROUPED == 0 {
            store.write(&std::mem::take(&mut group));
        }
    }
    store.write(&group);
    store.check_past();
});

fn requests(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([kind, low, high], rest) = bytes.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, rest) = rest.split_at(len);
        bytes = rest;
        Some((*kind, message))
    })
}

fn allowance() -> ResponseAllowance {
    ResponseAllowance::new(MAX_RESPONSE_BYTES)
}

fn unless_rejected<T>(outcome: Result<T, RequestError>) -> Option<T> {
    match outcome {
        Ok(response) => Some(response),
        Err(RequestError::Rejected(_)) => None,
        Err(RequestError::Storage(fault)) => panic!("{fault}"),
    }
}

struct Store {
    core: StoreCore,
    revision: i64,
    /// Contents according to the changes delivered so far.
    live: BTreeMap<Bytes, KeyValue>,
    /// Contents after each commit, by revision.
    past: BTreeMap<i64, Vec<KeyValue>>,
}

impl Store {
    fn new() -> Store {
        let core = StoreCore::in_memory().expect("a store in memory");
        let revision = core.latest().get().state.revision;
        Store { core, revision, live: BTreeMap::new(), past: BTreeMap::new() }
    }

    /// Executes a read, or returns the write to be made.
    fn request(&mut self, kind: u8, message: &[u8]) -> Option<WriteRequest> {
        match kind % 7 {
            0 => {
                let request =
                    RangeRequest::decode(message).ok().filter(|request| validate::range(request).is_ok())?;
                if let Some(response) = unless_rejected(self.core.latest().get().range(&request, &mut allowance())) {
                    assert!(response.count >= response.kvs.len() as i64);
                    assert!(request.limit <= 0 || response.kvs.len() as i64 <= request.limit);
                    response.encode_to_vec();
                }
                None
            }
            1 => PutRequest::decode(message)
                .ok()
                .filter(|request| validate::put(request).is_ok())
                .map(WriteRequest::Put),
            2 => {
                let request = DeleteRangeRequest::decode(message).ok();
                request.filter(|request| validate::delete(request).is_ok()).map(WriteRequest::Delete)
            }
            3 => {
                let request =
                    TxnRequest::decode(message).ok().filter(|request| validate::txn(request).is_ok())?;
                if !validate::is_read_only(&request) {
                    return Some(WriteRequest::Txn(request));
                }
                let response = unless_rejected(self.core.latest().get().txn(&request, &mut allowance()));
                drop(response.map(|response| response.encode_to_vec()));
                None
            }
            4 => LeaseGrantRequest::decode(message)
                .ok()
                .map(|LeaseGrantRequest { ttl, id }| WriteRequest::Grant { id: id.max(1), ttl: ttl.max(2) }),
            5 => LeaseRevokeRequest::decode(message)
                .ok()
                .map(|request| WriteRequest::Revoke { id: request.id }),
            _ => CompactionRequest::decode(message)
                .ok()
                .map(|request| WriteRequest::Compact { revision: request.revision }),
        }
    }

    fn write(&mut self, writes: &[WriteRequest]) {
        let applied = self.core.apply(writes).expect("writable");
        assert_eq!(applied.answers.len(), writes.len());
        for answer in applied.answers.into_iter().flatten() {
            match answer {
                WriteResponse::Put(response) => drop(response.encode_to_vec()),
                WriteResponse::Delete(response) => drop(response.encode_to_vec()),
                WriteResponse::Txn(response) => drop(response.encode_to_vec()),
                WriteResponse::Done { .. } | WriteResponse::Alarm { .. } => {}
            }
        }
        for commit in applied.commits {
            self.revision += 1;
            assert_eq!(commit.revision, self.revision, "each commit is one revision");
            assert!(!commit.changes.is_empty());
            // A transaction may change a key twice; both changes report the value before the transaction.
            let before = self.live.clone();
            for change in &commit.changes {
                assert_eq!(change.kv.mod_revision, commit.revision);
                assert_eq!(
                    change.previous.as_ref(),
                    before.get(&change.kv.key),
                    "as it was before this revision"
                );
                if change.deleted {
                    self.live.remove(&change.kv.key);
                } else {
                    self.live.insert(change.kv.key.clone(), change.kv.clone());
                }
                change.event(true);
            }
        }
        assert_eq!(self.core.latest().get().state.revision, self.revision);
        let now: Vec<KeyValue> = self.live.values().cloned().collect();
        assert_eq!(self.everything(0).as_ref(), Some(&now));
        self.past.insert(self.revision, now);
    }

    /// Checks that reads at an older revision return the contents at that time until the revision is compacted.
    fn check_past(&self) {
        let compacted = self.core.latest().get().state.compacted;
        for (revision, then) in &self.past {
            match self.everything(*revision) {
                Some(kvs) => assert_eq!(&kvs, then, "revision {revision}"),
                None => {
                    assert!(*revision < compacted, "revision {revision} is gone, compacted at {compacted}")
                }
            }
        }
    }

    fn everything(&self, revision: i64) -> Option<Vec<KeyValue>> {
        let all = Bytes::from_static(&[0]);
        let request = RangeRequest { key: all.clone(), range_end: all, revision, ..Default::default() };
        unless_rejected(self.core.latest().get().range(&request, &mut allowance())).map(|response| response.kvs)
    }
}
