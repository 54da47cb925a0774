//! Random requests over few keys, so that they affect each other.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::*;

pub const LEASE_IDS: std::ops::RangeInclusive<i64> = 1..=8;

pub struct RequestGenerator {
    pub rng: StdRng,
    /// The approximate revision of the store, to choose relevant revisions.
    pub revision: i64,
}

impl RequestGenerator {
    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    pub fn key(&mut self) -> Bytes {
        if self.chance(1) {
            return Bytes::new();
        }
        let stems = ["a", "b", "/calico/x/", "/calico/y/", "\u{ff}z", "\0"];
        let stem = stems.choose(&mut self.rng).unwrap();
        let leaf = self.rng.random_range(0..6);
        Bytes::from(if leaf == 0 { (*stem).to_owned() } else { format!("{stem}{leaf}") })
    }

    /// Returns a key and a range end in one of the possible forms.
    pub fn span(&mut self) -> (Bytes, Bytes) {
        let key = self.key();
        match self.rng.random_range(0..10) {
            0..4 => (key, Bytes::new()),
            4 => (key, Bytes::from_static(&[0])),
            5 => (Bytes::from_static(&[0]), Bytes::from_static(&[0])),
            6 => (Bytes::from_static(b"/calico/"), Bytes::from_static(b"/calico0")),
            7 => (Bytes::from_static(b"/calico/x/"), Bytes::from_static(b"/calico/x0")),
            _ => {
                let end = self.key();
                (key, end)
            }
        }
    }

    pub fn some_revision(&mut self) -> i64 {
        match self.rng.random_range(0..20) {
            0 => self.rng.random_range(-3..=self.revision + 3),
            1 => self.revision + 1,
            2 => self.revision,
            _ => (self.revision - self.rng.random_range(0..40)).max(0),
        }
    }

    pub fn range(&mut self) -> RangeRequest {
        let (key, range_end) = self.span();
        let sort_target =
            *[SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value]
                .choose(&mut self.rng)
                .unwrap();
        let sort_order =
            *[SortOrder::None, SortOrder::Ascend, SortOrder::Descend].choose(&mut self.rng).unwrap();
        let sorted = self.chance(40);
        // The order of equal elements is undefined, so only lists sorted by key are limited.
        let limited = (!sorted || sort_target == SortTarget::Key) && self.chance(40);
        let bound = |generator: &mut RequestGenerator| match generator.chance(10) {
            true => generator.some_revision(),
            false => 0,
        };
        RangeRequest {
            key,
            range_end,
            limit: if limited { self.rng.random_range(-1..6) } else { 0 },
            revision: if self.chance(30) { self.some_revision() } else { 0 },
            sort_order: if sorted { sort_order.into() } else { 0 },
            sort_target: if sorted { sort_target.into() } else { 0 },
            serializable: self.chance(10),
            keys_only: self.chance(20),
            count_only: self.chance(10),
            min_mod_revision: bound(self),
            max_mod_revision: bound(self),
            min_create_revision: bound(self),
            max_create_revision: bound(self),
        }
    }

    pub fn put(&mut self) -> PutRequest {
        let ignore_value = self.chance(5);
        let ignore_lease = self.chance(5);
        let value = if ignore_value && self.chance(90) { 0 } else { self.rng.random_range(0..40) };
        let lease = if ignore_lease && self.chance(90) || self.chance(70) { 0 } else { self.lease() };
        PutRequest {
            key: self.key(),
            value: (0..value).map(|_| self.rng.random_range(b'a'..=b'e')).collect::<Vec<u8>>().into(),
            lease,
            prev_kv: self.chance(30),
            ignore_value,
            ignore_lease,
        }
    }

    pub fn lease(&mut self) -> i64 {
        self.rng.random_range(LEASE_IDS)
    }

    pub fn delete(&mut self) -> DeleteRangeRequest {
        let (key, mut range_end) = self.span();
        // Too many deletions would leave no keys.
        if self.chance(60) {
            range_end = Bytes::new();
        }
        DeleteRangeRequest { key, range_end, prev_kv: self.chance(40) }
    }

    fn compare(&mut self) -> Compare {
        let targets = [
            CompareTarget::Version,
            CompareTarget::Create,
            CompareTarget::Mod,
            CompareTarget::Value,
            CompareTarget::Lease,
        ];
        let results =
            [CompareResult::Equal, CompareResult::Greater, CompareResult::Less, CompareResult::NotEqual];
        let target = *targets.choose(&mut self.rng).unwrap();
        let (key, range_end) = self.span();
        let union = match target {
            CompareTarget::Version => TargetUnion::Version(self.rng.random_range(0..4)),
            CompareTarget::Create => TargetUnion::CreateRevision(self.some_revision()),
            CompareTarget::Mod => TargetUnion::ModRevision(self.some_revision()),
            CompareTarget::Value => TargetUnion::Value(Bytes::from_static(b"ccc")),
            CompareTarget::Lease => TargetUnion::Lease(self.rng.random_range(0..4)),
        };
        Compare {
            result: (*results.choose(&mut self.rng).unwrap()).into(),
            target: target.into(),
            key,
            range_end: if self.chance(70) { Bytes::new() } else { range_end },
            target_union: if self.chance(90) { Some(union) } else { None },
        }
    }

    fn ops(&mut self, depth: usize) -> Vec<RequestOp> {
        let count =
            if self.chance(1) { self.rng.random_range(120..135) } else { self.rng.random_range(0..4) };
        (0..count).map(|_| self.op(depth)).collect()
    }

    fn op(&mut self, depth: usize) -> RequestOp {
        let request = match self.rng.random_range(0..20) {
            0 if self.chance(10) => None,
            0..7 => Some(Request::RequestRange(self.range())),
            7..13 => Some(Request::RequestPut(self.put())),
            13..17 => Some(Request::RequestDeleteRange(self.delete())),
            _ if depth > 0 => Some(Request::RequestTxn(self.txn(depth - 1))),
            _ => Some(Request::RequestPut(self.put())),
        };
        RequestOp { request }
    }

    pub fn txn(&mut self, depth: usize) -> TxnRequest {
        let mut request = TxnRequest {
            compare: (0..self.rng.random_range(0..3)).map(|_| self.compare()).collect(),
            success: self.ops(depth),
            failure: self.ops(depth),
        };
        if has_delete(&request) {
            keep_nothing(&mut request);
        }
        request
    }
}

fn ops(request: &TxnRequest) -> impl Iterator<Item = &Request> {
    request.success.iter().chain(&request.failure).filter_map(|op| op.request.as_ref())
}

fn has_delete(request: &TxnRequest) -> bool {
    ops(request).any(|op| match op {
        Request::RequestDeleteRange(_) => true,
        Request::RequestTxn(inner) => has_delete(inner),
        _ => false,
    })
}

/// Clears the flags of puts that keep a value or lease: if the key was deleted earlier in the same transaction, etcd
/// 3.4 would exit.
fn keep_nothing(request: &mut TxnRequest) {
    for op in request.success.iter_mut().chain(&mut request.failure) {
        match &mut op.request {
            Some(Request::RequestPut(put)) => (put.ignore_value, put.ignore_lease) = (false, false),
            Some(Request::RequestTxn(inner)) => keep_nothing(inner),
            _ => {}
        }
    }
}
