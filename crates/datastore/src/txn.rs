//! Transactions: evaluate the comparisons on every level, check the requirements of the chosen branches, then apply
//! them.

use super::batch::WriteBatch;
use super::key_span::KeySpan;
use super::limits::{MAX_WRITE_RESPONSE_BYTES, MAX_WRITE_WORK, ResponseAllowance};
use super::range;
use super::rejection::RequestRejection;
use super::revision_view::{HistoryTable, RevisionView};
use super::storage_fault::{RequestError, StorageFault};
use std::cmp::Ordering;
use std::ops::ControlFlow;
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::response_op::Response;
use tortie_etcd_proto::etcdserverpb::{
    Compare, RangeRequest, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};

/// The branch that each transaction takes, decided before anything changes.
struct TxnPath<'r> {
    succeeded: bool,
    ops: &'r [RequestOp],
    /// One for each nested transaction among `ops`, in order.
    nested: Vec<TxnPath<'r>>,
}

/// Executes a transaction that may write.
pub fn write(batch: &mut WriteBatch, request: &TxnRequest) -> Result<TxnResponse, RequestError> {
    batch.work.set(MAX_WRITE_WORK);
    let path = choose(&batch.view(), request)?;
    batch.view().check_work()?;
    check_puts(batch, &path)?;
    check_ranges(&batch.view(), &path)?;
    let mut allowance = ResponseAllowance::new(MAX_WRITE_RESPONSE_BYTES);
    measure(&batch.view(), &path, &mut allowance)?;
    batch.view().check_work()?;
    allowance.check()?;
    batch.work.set(usize::MAX);
    let mut response = apply(batch, &path)?;
    response.header = batch.header();
    Ok(response)
}

/// Executes a transaction of which neither branch can write.
pub fn read<H: HistoryTable>(
    view: &RevisionView<H>,
    request: &TxnRequest,
    allowance: &mut ResponseAllowance,
) -> Result<TxnResponse, RequestError> {
    let path = choose(view, request)?;
    check_ranges(view, &path)?;
    let mut response = answer(view, &path, allowance)?;
    // An operation that exceeded the limits has no response, but the operations after it were still counted.
    view.check_work()?;
    allowance.check()?;
    response.header = Some(ResponseHeader { revision: view.revision, ..Default::default() });
    Ok(response)
}

fn choose<'r, H: HistoryTable>(
    view: &RevisionView<H>,
    request: &'r TxnRequest,
) -> Result<TxnPath<'r>, StorageFault> {
    let mut succeeded = true;
    for compare in &request.compare {
        if !holds(view, compare)? {
            succeeded = false;
            break;
        }
    }
    let ops = if succeeded { &request.success } else { &request.failure };
    let mut nested = Vec::new();
    for op in ops {
        if let Some(Request::RequestTxn(inner)) = &op.request {
            nested.push(choose(view, inner)?);
        }
    }
    Ok(TxnPath { succeeded, ops, nested })
}

/// Returns whether every key of the range satisfies the comparison. A missing key compares as zero, but has no value.
fn holds<H: HistoryTable>(view: &RevisionView<H>, compare: &Compare) -> Result<bool, StorageFault> {
    let span = KeySpan::new(&compare.key, &compare.range_end);
    let mut found = false;
    let mut all = true;
    view.visit(&span, view.revision, |_, version| {
        found = true;
        let number = match compare.target() {
            CompareTarget::Version => version.version,
            CompareTarget::Create => version.created,
            CompareTarget::Mod => version.at.main,
            CompareTarget::Lease => version.lease,
            CompareTarget::Value => 0,
        };
        all = satisfies(compare, number, version.value);
        if all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if !found {
        return Ok(compare.target() != CompareTarget::Value && satisfies(compare, 0, &[]));
    }
    Ok(all)
}

fn satisfies(compare: &Compare, number: i64, value: &[u8]) -> bool {
    let wanted = match (&compare.target_union, compare.target()) {
        (Some(TargetUnion::Version(wanted)), CompareTarget::Version) => *wanted,
        (Some(TargetUnion::CreateRevision(wanted)), CompareTarget::Create) => *wanted,
        (Some(TargetUnion::ModRevision(wanted)), CompareTarget::Mod) => *wanted,
        (Some(TargetUnion::Lease(wanted)), CompareTarget::Lease) => *wanted,
        _ => 0,
    };
    let ordering = match (compare.target(), &compare.target_union) {
        (CompareTarget::Value, Some(TargetUnion::Value(wanted))) => value.cmp(wanted.as_ref()),
        (CompareTarget::Value, _) => value.cmp(&[][..]),
        _ => number.cmp(&wanted),
    };
    match compare.result() {
        CompareResult::Equal => ordering == Ordering::Equal,
        CompareResult::NotEqual => ordering != Ordering::Equal,
        CompareResult::Greater => ordering == Ordering::Greater,
        CompareResult::Less => ordering == Ordering::Less,
    }
}

/// Checks the puts. The operations are checked in the order in which they would be applied, so that of several errors
/// the client gets the same one as from etcd.
fn check_puts(batch: &mut WriteBatch, path: &TxnPath) -> Result<(), RequestError> {
    let mut nested = path.nested.iter();
    for op in path.ops {
        match &op.request {
            Some(Request::RequestPut(put)) => {
                // In the reverse order of a single put; clients can observe the difference.
                batch.check_kept_key(put)?;
                batch.check_lease(put)?;
            }
            Some(Request::RequestTxn(_)) => {
                if let Some(inner) = nested.next() {
                    check_puts(batch, inner)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_ranges<H: HistoryTable>(view: &RevisionView<H>, path: &TxnPath) -> Result<(), RequestRejection> {
    let mut nested = path.nested.iter();
    for op in path.ops {
        match &op.request {
            // Elsewhere a negative revision means the newest; in transactions etcd checks more strictly.
            Some(Request::RequestRange(range)) if range.revision != 0 && range.revision < view.compacted => {
                return Err(RequestRejection::COMPACTED);
            }
            Some(Request::RequestRange(range)) => {
                view.resolve(range.revision)?;
            }
            Some(Request::RequestTxn(_)) => {
                if let Some(inner) = nested.next() {
                    check_ranges(view, inner)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Counts the work and the memory of the response, based on the state before the transaction; the values that it puts
/// itself are small.
fn measure<H: HistoryTable>(
    view: &RevisionView<H>,
    path: &TxnPath,
    allowance: &mut ResponseAllowance,
) -> Result<(), StorageFault> {
    let mut nested = path.nested.iter();
    for op in path.ops {
        match &op.request {
            Some(Request::RequestRange(request)) => range::measure(view, request, allowance)?,
            Some(Request::RequestDeleteRange(delete)) => range::measure_delete(view, delete, allowance)?,
            Some(Request::RequestPut(put)) if put.prev_kv => {
                let one = RangeRequest { key: put.key.clone(), ..Default::default() };
                range::measure(view, &one, allowance)?;
            }
            Some(Request::RequestTxn(_)) => {
                if let Some(inner) = nested.next() {
                    measure(view, inner, allowance)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn apply(batch: &mut WriteBatch, path: &TxnPath) -> Result<TxnResponse, StorageFault> {
    let mut nested = path.nested.iter();
    let mut responses = Vec::with_capacity(path.ops.len());
    for op in path.ops {
        let response = match &op.request {
            Some(Request::RequestPut(put)) => Some(Response::ResponsePut(batch.put(put)?)),
            Some(Request::RequestDeleteRange(delete)) => {
                Some(Response::ResponseDeleteRange(batch.delete(delete)?))
            }
            Some(Request::RequestRange(range)) => {
                unless_rejected(batch.range(range))?.map(Response::ResponseRange)
            }
            Some(Request::RequestTxn(_)) => match nested.next() {
                Some(inner) => Some(Response::ResponseTxn(apply(batch, inner)?)),
                None => None,
            },
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    Ok(branch(path.succeeded, responses))
}

fn answer<H: HistoryTable>(
    view: &RevisionView<H>,
    path: &TxnPath,
    allowance: &mut ResponseAllowance,
) -> Result<TxnResponse, StorageFault> {
    let mut nested = path.nested.iter();
    let mut responses = Vec::with_capacity(path.ops.len());
    for op in path.ops {
        if allowance.is_hopeless() {
            break;
        }
        let response = match &op.request {
            Some(Request::RequestRange(request)) => {
                unless_rejected(range::range(view, request, allowance))?.map(Response::ResponseRange)
            }
            Some(Request::RequestTxn(_)) => match nested.next() {
                Some(inner) => Some(Response::ResponseTxn(answer(view, inner, allowance)?)),
                None => None,
            },
            _ => None,
        };
        responses.push(ResponseOp { response });
    }
    Ok(branch(path.succeeded, responses))
}

/// Returns `None` for a rejected operation: its requirements and limits are checked for the transaction as a whole.
fn unless_rejected<T>(outcome: Result<T, RequestError>) -> Result<Option<T>, StorageFault> {
    match outcome {
        Ok(response) => Ok(Some(response)),
        Err(RequestError::Rejected(_)) => Ok(None),
        Err(RequestError::Storage(fault)) => Err(fault),
    }
}

fn branch(succeeded: bool, responses: Vec<ResponseOp>) -> TxnResponse {
    TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses }
}
