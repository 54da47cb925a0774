//! Validates requests without access to the state of the store.

use super::rejection::RequestRejection;
use super::txn_writes::TxnWrites;
use bytes::Bytes;
use std::collections::BTreeSet;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};

/// The default limits of etcd.
pub const MAX_REQUEST_BYTES: usize = 1536 * 1024;
const MAX_TXN_OPS: usize = 128;

pub fn size(encoded_len: usize) -> Result<(), RequestRejection> {
    if encoded_len > MAX_REQUEST_BYTES { Err(RequestRejection::TOO_LARGE) } else { Ok(()) }
}

pub fn range(request: &RangeRequest) -> Result<(), RequestRejection> {
    check_key(&request.key)
}

pub fn delete(request: &DeleteRangeRequest) -> Result<(), RequestRejection> {
    check_key(&request.key)
}

pub fn put(request: &PutRequest) -> Result<(), RequestRejection> {
    check_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(RequestRejection::VALUE_PROVIDED);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(RequestRejection::LEASE_PROVIDED);
    }
    Ok(())
}

pub fn txn(request: &TxnRequest) -> Result<(), RequestRejection> {
    check_shape(request, MAX_TXN_OPS)?;
    TxnWrites::collect(&request.success)?;
    TxnWrites::collect(&request.failure)?;
    Ok(())
}

/// Returns whether neither branch of a transaction can change anything.
pub fn is_read_only(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).all(|op| match &op.request {
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) => false,
        Some(Request::RequestTxn(inner)) => is_read_only(inner),
        Some(Request::RequestRange(_)) | None => true,
    })
}

/// Returns whether a transaction may add data, which a full store rejects.
pub fn adds_data(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|op| match &op.request {
        Some(Request::RequestPut(_)) => true,
        Some(Request::RequestTxn(inner)) => adds_data(inner),
        _ => false,
    })
}

/// Returns the leases to which a transaction attaches keys in either branch.
pub fn leases(request: &TxnRequest) -> BTreeSet<i64> {
    let mut found = BTreeSet::new();
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestPut(put)) => drop(found.insert(put.lease)),
            Some(Request::RequestTxn(inner)) => found.extend(leases(inner)),
            _ => {}
        }
    }
    found
}

/// Returns whether the response to a transaction may contain many keys.
pub fn may_list(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|op| match &op.request {
        Some(Request::RequestRange(range)) => {
            !range.range_end.is_empty() && !range.count_only && range.limit != 1
        }
        Some(Request::RequestDeleteRange(delete)) => !delete.range_end.is_empty() && delete.prev_kv,
        Some(Request::RequestTxn(inner)) => may_list(inner),
        Some(Request::RequestPut(_)) | None => false,
    })
}

fn check_key(key: &Bytes) -> Result<(), RequestRejection> {
    if key.is_empty() { Err(RequestRejection::EMPTY_KEY) } else { Ok(()) }
}

/// Checks the operations. Nested transactions share one limit of operations, level by level.
fn check_shape(request: &TxnRequest, allowance: usize) -> Result<(), RequestRejection> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    let left = allowance.checked_sub(ops).ok_or(RequestRejection::TOO_MANY_OPS)?;
    for compare in &request.compare {
        check_key(&compare.key)?;
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(inner)) => range(inner)?,
            Some(Request::RequestPut(inner)) => put(inner)?,
            Some(Request::RequestDeleteRange(inner)) => delete(inner)?,
            Some(Request::RequestTxn(inner)) => check_shape(inner, left)?,
            None => return Err(RequestRejection::KEY_NOT_FOUND),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_etcd_proto::etcdserverpb::RequestOp;

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put_op(key: &'static str) -> RequestOp {
        op(Request::RequestPut(PutRequest { key: Bytes::from(key), ..Default::default() }))
    }

    fn delete_op(key: &'static str, end: &'static str) -> RequestOp {
        op(Request::RequestDeleteRange(DeleteRangeRequest {
            key: Bytes::from(key),
            range_end: Bytes::from(end),
            prev_kv: false,
        }))
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        op(Request::RequestTxn(TxnRequest { compare: vec![], success, failure }))
    }

    fn verdict(success: Vec<RequestOp>) -> Result<(), RequestRejection> {
        txn(&TxnRequest { compare: vec![], success, failure: vec![] })
    }

    #[test]
    fn one_key_is_written_once_per_branch() {
        assert_eq!(verdict(vec![put_op("a"), put_op("b")]), Ok(()));
        assert_eq!(verdict(vec![put_op("a"), put_op("a")]), Err(RequestRejection::DUPLICATE_KEY));
        assert_eq!(verdict(vec![put_op("b"), delete_op("a", "c")]), Err(RequestRejection::DUPLICATE_KEY));
        assert_eq!(verdict(vec![delete_op("a", "c"), delete_op("b", "")]), Ok(()));
        assert_eq!(verdict(vec![nested(vec![put_op("a")], vec![put_op("a")])]), Ok(()));
        assert_eq!(
            verdict(vec![nested(vec![put_op("a")], vec![]), put_op("a")]),
            Err(RequestRejection::DUPLICATE_KEY)
        );
    }

    #[test]
    fn operations_are_counted_along_the_nesting() {
        assert_eq!(verdict((0..128).map(|_| delete_op("a", "")).collect()), Ok(()));
        assert_eq!(
            verdict((0..129).map(|_| delete_op("a", "")).collect()),
            Err(RequestRejection::TOO_MANY_OPS)
        );
        let inner = nested((0..127).map(|_| delete_op("a", "")).collect(), vec![]);
        assert_eq!(verdict(vec![inner]), Ok(()));
        let inner = nested((0..128).map(|_| delete_op("a", "")).collect(), vec![]);
        assert_eq!(verdict(vec![inner]), Err(RequestRejection::TOO_MANY_OPS));
    }

    #[test]
    fn empty_operations_and_keys_are_refused() {
        assert_eq!(verdict(vec![RequestOp { request: None }]), Err(RequestRejection::KEY_NOT_FOUND));
        assert_eq!(verdict(vec![put_op("")]), Err(RequestRejection::EMPTY_KEY));
        let ignore = PutRequest {
            key: Bytes::from("a"),
            value: Bytes::from("b"),
            ignore_value: true,
            ..Default::default()
        };
        assert_eq!(put(&ignore), Err(RequestRejection::VALUE_PROVIDED));
    }
}
