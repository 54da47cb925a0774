//! The keys that one branch of a transaction writes. Writing a key twice in a branch is an error, except where only
//! one of the writes can be executed.
//!
//! The sets of nested branches are merged into those of the enclosing branch, always the smaller into the larger, and
//! deleted ranges are kept as disjoint intervals. A request of n operations therefore costs n log n for any nesting.

use super::key_span::KeySpan;
use super::rejection::RequestRejection;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tortie_etcd_proto::etcdserverpb::RequestOp;
use tortie_etcd_proto::etcdserverpb::request_op::Request;

#[derive(Default)]
pub struct TxnWrites {
    puts: BTreeSet<Bytes>,
    deletes: KeyIntervals,
}

impl TxnWrites {
    /// Collects the writes. Rejects operations that write a key twice, in the order of evaluation of etcd.
    pub fn collect(ops: &[RequestOp]) -> Result<TxnWrites, RequestRejection> {
        let mut writes = TxnWrites::default();
        for op in ops {
            if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                writes.deletes.insert(KeySpan::new(&delete.key, &delete.range_end));
            }
        }
        for op in ops {
            if let Some(Request::RequestTxn(inner)) = &op.request {
                writes.join(TxnWrites::collect(&inner.success)?, TxnWrites::collect(&inner.failure)?)?;
            }
        }
        for op in ops {
            if let Some(Request::RequestPut(put)) = &op.request
                && (writes.deletes.contains(&put.key) || !writes.puts.insert(put.key.clone()))
            {
                return Err(RequestRejection::DUPLICATE_KEY);
            }
        }
        Ok(writes)
    }

    /// Merges a nested transaction, of which only one branch is executed.
    fn join(&mut self, then: TxnWrites, otherwise: TxnWrites) -> Result<(), RequestRejection> {
        for inner in [&then, &otherwise] {
            if !are_disjoint(&self.puts, &inner.puts) || self.deletes.contain_any(&inner.puts) {
                return Err(RequestRejection::DUPLICATE_KEY);
            }
        }
        for inner in [then, otherwise] {
            union(&mut self.puts, inner.puts);
            self.deletes.union(inner.deletes);
        }
        Ok(())
    }
}

fn are_disjoint(a: &BTreeSet<Bytes>, b: &BTreeSet<Bytes>) -> bool {
    let (small, large) = if a.len() < b.len() { (a, b) } else { (b, a) };
    !small.iter().any(|key| large.contains(key))
}

fn union(into: &mut BTreeSet<Bytes>, mut from: BTreeSet<Bytes>) {
    if into.len() < from.len() {
        std::mem::swap(into, &mut from);
    }
    into.extend(from);
}

/// Key ranges by start, with their ends. No two of them overlap.
#[derive(Default)]
struct KeyIntervals {
    ends: BTreeMap<Bytes, Bytes>,
}

impl KeyIntervals {
    fn insert(&mut self, span: KeySpan) {
        match span {
            KeySpan::Range(from, end) if from < end => self.add(from, end),
            // etcd treats the end of an open range as the smallest key, so it detects no overlap there.
            KeySpan::Range(..) | KeySpan::From(_) => {}
            KeySpan::Key(key) => {
                let end = [key.as_ref(), &[0]].concat();
                self.add(key, end.into());
            }
        }
    }

    fn add(&mut self, mut from: Bytes, mut end: Bytes) {
        // Intervals that touch the new one are merged into it.
        while let Some((start, stop)) = self.ends.range::<Bytes, _>(..=&end).next_back()
            && *stop >= from
        {
            end = end.max(stop.clone());
            let start = start.clone();
            self.ends.remove(&start);
            from = from.min(start);
        }
        self.ends.insert(from, end);
    }

    fn contains(&self, key: &Bytes) -> bool {
        self.ends.range::<Bytes, _>(..=key).next_back().is_some_and(|(_, end)| key < end)
    }

    /// Returns whether one of the keys is in one of the ranges.
    fn contain_any(&self, keys: &BTreeSet<Bytes>) -> bool {
        if keys.len() <= self.ends.len() {
            return keys.iter().any(|key| self.contains(key));
        }
        self.ends.iter().any(|(from, end)| keys.range::<Bytes, _>(from..end).next().is_some())
    }

    fn union(&mut self, mut other: KeyIntervals) {
        if self.ends.len() < other.ends.len() {
            std::mem::swap(self, &mut other);
        }
        for (from, end) in other.ends {
            self.add(from, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::time::{ClockId, clock_gettime};
    use tortie_etcd_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, TxnRequest};

    fn put(key: String) -> RequestOp {
        RequestOp { request: Some(Request::RequestPut(PutRequest { key: key.into(), ..Default::default() })) }
    }

    fn delete(key: String, range_end: String) -> RequestOp {
        let delete = DeleteRangeRequest { key: key.into(), range_end: range_end.into(), prev_kv: false };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        RequestOp { request: Some(Request::RequestTxn(TxnRequest { compare: vec![], success, failure })) }
    }

    /// Implements the pairwise check of etcd.
    fn model(ops: &[RequestOp]) -> Result<(Vec<Bytes>, Vec<KeySpan>), ()> {
        let mut deletes: Vec<KeySpan> = Vec::new();
        for op in ops {
            if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                deletes.push(KeySpan::new(&delete.key, &delete.range_end));
            }
        }
        deletes.retain(|span| !matches!(span, KeySpan::From(_)));
        let mut puts: Vec<Bytes> = Vec::new();
        for op in ops {
            let Some(Request::RequestTxn(inner)) = &op.request else { continue };
            let (then, else_) = (model(&inner.success)?, model(&inner.failure)?);
            let outside = puts.clone();
            for key in then.0.iter().chain(&else_.0) {
                if outside.contains(key) || deletes.iter().any(|span| span.contains(key)) {
                    return Err(());
                }
                puts.push(key.clone());
            }
            deletes.extend(then.1);
            deletes.extend(else_.1);
        }
        for op in ops {
            let Some(Request::RequestPut(put)) = &op.request else { continue };
            if puts.contains(&put.key) || deletes.iter().any(|span| span.contains(&put.key)) {
                return Err(());
            }
            puts.push(put.key.clone());
        }
        Ok((puts, deletes))
    }

    fn operation() -> impl Strategy<Value = RequestOp> {
        let leaf = prop_oneof![
            3 => "[a-e]{1,2}".prop_map(put),
            1 => ("[a-e]{1,2}", "[a-e\0]{0,2}").prop_map(|(from, end)| delete(from, end)),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let branch = prop::collection::vec(inner, 0..4);
            (branch.clone(), branch).prop_map(|(then, otherwise)| nested(then, otherwise))
        })
    }

    proptest! {
        #[test]
        fn it_agrees_with_comparing_every_pair(ops in prop::collection::vec(operation(), 0..6)) {
            prop_assert_eq!(TxnWrites::collect(&ops).is_ok(), model(&ops).is_ok());
        }
    }

    #[test]
    fn many_writes_and_deletes_take_little_time() {
        // As many as fit into a request, in the nesting that allows them.
        const OPERATION_COUNT: usize = 40_000;
        let puts = (0..OPERATION_COUNT).map(|n| put(format!("p{n:06}"))).collect::<Vec<_>>();
        let deletes = (0..OPERATION_COUNT)
            .map(|n| delete(format!("d{n:06}a"), format!("d{n:06}b")))
            .collect::<Vec<_>>();
        let group = |ops: Vec<RequestOp>| -> Vec<RequestOp> {
            ops.chunks(100).map(|ops| nested(ops.to_vec(), vec![])).collect()
        };
        let mut deep = puts.clone();
        for level in 0..60 {
            deep = vec![nested(deep, vec![]), delete(format!("x{level}"), format!("x{level}z"))];
        }
        let begin = clock_gettime(ClockId::ThreadCPUTime).tv_sec;
        assert!(TxnWrites::collect(&[group(deletes), group(puts)].concat()).is_ok());
        assert!(TxnWrites::collect(&deep).is_ok());
        // CPU time, which does not depend on the load of the machine. Comparing every pair takes minutes.
        let seconds = clock_gettime(ClockId::ThreadCPUTime).tv_sec - begin;
        assert!(seconds < 15, "{seconds} s");
    }
}
