//! Range requests: select, filter, sort and limit keys.

use super::buffer_pool;
use super::directory::StoreIdentity;
use super::history_record::KeyVersion;
use super::key_span::KeySpan;
use super::limits::ResponseAllowance;
use super::range_encoder::{EncodedRange, RangeEncoder};
use super::revision_view::{HistoryTable, RevisionView};
use super::storage_fault::{RequestError, StorageFault};
use bytes::{Bytes, BytesMut};
use std::ops::{Bound, ControlFlow};
use tortie_etcd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use tortie_etcd_proto::etcdserverpb::{DeleteRangeRequest, RangeRequest, RangeResponse, ResponseHeader};
use tortie_etcd_proto::mvccpb::KeyValue;

/// Returns the response, with a header that contains only the revision.
pub fn range<H: HistoryTable>(
    view: &RevisionView<H>,
    request: &RangeRequest,
    allowance: &mut ResponseAllowance,
) -> Result<RangeResponse, RequestError> {
    let revision = view.resolve(request.revision)?;
    let order = order(request);
    let limit = limit(request);
    let keep = if order.is_some() { usize::MAX } else { limit };
    // If only a few of many sorted keys are requested, their values are looked up after sorting.
    let by_value = order.is_some_and(|(target, _)| target == SortTarget::Value);
    let values_later = order.is_some() && limit < usize::MAX && !by_value && !request.keys_only;
    // A sort by value needs the values even if the response omits them.
    let with_value = by_value || !(request.keys_only || values_later);

    let mut answer = KeyCollector::default();
    let found = select(view, request, revision, keep, |key, version| {
        answer.push(key, version, with_value, allowance);
        if allowance.is_hopeless() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    view.check_work()?;
    allowance.check()?;

    let mut kvs = answer.kvs;
    if let Some((target, descending)) = order {
        sort(&mut kvs, target, descending);
    }
    kvs.truncate(limit);
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    if values_later {
        for kv in &mut kvs {
            let key = KeySpan::Key(kv.key.clone());
            view.visit(&key, revision, |_, version| {
                if allowance.take(version.value.len()) {
                    kv.value = Bytes::copy_from_slice(version.value);
                }
                ControlFlow::Continue(())
            })?;
        }
        view.check_work()?;
        allowance.check()?;
    }
    let header = Some(ResponseHeader { revision: view.revision, ..Default::default() });
    let more = found.is_more_than(limit, request);
    Ok(RangeResponse { header, kvs, more, count: found.count as i64 })
}

/// Returns the same response already encoded, for keys in their natural order.
pub fn encode_range<H: HistoryTable>(
    view: &RevisionView<H>,
    identity: StoreIdentity,
    request: &RangeRequest,
    allowance: &mut ResponseAllowance,
) -> Result<EncodedRange, RequestError> {
    let revision = view.resolve(request.revision)?;
    let limit = limit(request);
    let mut answer = RangeEncoder::new(identity, view.revision);
    let found = select(view, request, revision, limit, |key, version| {
        answer.push(key, version, !request.keys_only, allowance);
        if allowance.is_hopeless() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    view.check_work()?;
    allowance.check()?;
    Ok(answer.finish(found.is_more_than(limit, request), found.count as i64))
}

/// Returns whether the request asks for an order other than ascending keys.
pub fn is_sorted(request: &RangeRequest) -> bool {
    order(request).is_some()
}

/// Returns the maximum number of keys to return.
fn limit(request: &RangeRequest) -> usize {
    usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX)
}

#[derive(Default)]
struct RangeCount {
    /// Number of keys in the range.
    count: usize,
    /// Number of keys that also pass the filters.
    matching: usize,
}

impl RangeCount {
    fn is_more_than(&self, limit: usize, request: &RangeRequest) -> bool {
        self.matching > limit && !request.count_only
    }
}

/// Calls `push` with the first `keep` matching keys; the rest are only counted.
fn select<H: HistoryTable>(
    view: &RevisionView<H>,
    request: &RangeRequest,
    revision: i64,
    keep: usize,
    mut push: impl FnMut(&[u8], &KeyVersion) -> ControlFlow<()>,
) -> Result<RangeCount, StorageFault> {
    let keep = if request.count_only { 0 } else { keep };
    let filters = has_filters(request);
    let span = KeySpan::new(&request.key, &request.range_end);
    let mut found = RangeCount::default();
    // The last key that was read, if the keys after it need no reading.
    let mut last = None;
    if keep > 0 || filters {
        view.visit(&span, revision, |key, version| {
            found.count += 1;
            if !passes_filters(request, version) {
                return ControlFlow::Continue(());
            }
            found.matching += 1;
            let flow = if found.matching > keep { ControlFlow::Continue(()) } else { push(key, version) };
            if flow.is_continue() && found.matching == keep && !filters {
                last = Some(Bytes::copy_from_slice(key));
                return ControlFlow::Break(());
            }
            flow
        })?;
    }
    let rest = match (&last, keep > 0 || filters) {
        (Some(last), _) => span.bounds().map(|(_, end)| (Bound::Excluded(&**last), end)),
        (None, true) => None,
        (None, false) => span.bounds(),
    };
    if let Some(rest) = rest {
        let count = view.count(rest, revision)?;
        found.count += count;
        found.matching += count;
    }
    Ok(found)
}

/// Counts the memory that a response would need, without building it.
pub fn measure<H: HistoryTable>(
    view: &RevisionView<H>,
    request: &RangeRequest,
    allowance: &mut ResponseAllowance,
) -> Result<(), StorageFault> {
    let Ok(revision) = view.resolve(request.revision) else { return Ok(()) };
    if request.count_only {
        return Ok(());
    }
    let limit = if order(request).is_some() { usize::MAX } else { limit(request) };
    let mut seen = 0;
    view.visit(&KeySpan::new(&request.key, &request.range_end), revision, |key, version| {
        let value = if request.keys_only { 0 } else { version.value.len() };
        seen += 1;
        let goes_on = allowance.take(KEY_VALUE_OVERHEAD_BYTES + key.len() + value) && limit != seen;
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// Counts the work of a deletion and the memory that its response would need.
pub fn measure_delete<H: HistoryTable>(
    view: &RevisionView<H>,
    delete: &DeleteRangeRequest,
    allowance: &mut ResponseAllowance,
) -> Result<(), StorageFault> {
    // Deleting a single key is cheap.
    if delete.range_end.is_empty() && !delete.prev_kv {
        return Ok(());
    }
    let request = RangeRequest {
        key: delete.key.clone(),
        range_end: delete.range_end.clone(),
        keys_only: !delete.prev_kv,
        ..Default::default()
    };
    if delete.prev_kv {
        return measure(view, &request, allowance);
    }
    // The deleted values are not in the response.
    measure(view, &request, &mut ResponseAllowance::new(usize::MAX))
}

/// Memory of a key in a response in addition to its bytes.
pub const KEY_VALUE_OVERHEAD_BYTES: usize = 96;

/// Keys and values collected into few large buffers: a list of 100,000 keys must not need 200,000 allocations.
#[derive(Default)]
struct KeyCollector {
    kvs: Vec<KeyValue>,
    arena: BytesMut,
    chunks: usize,
}

/// Returns the size of the next buffer of a list. The allocator keeps freed small buffers, in one heap for every
/// thread that ever read a list; it maps a very large buffer separately, returns it to the kernel as a whole, and
/// uses only the pages that are written.
fn choose_chunk_size(number: usize) -> usize {
    if number < 4 { buffer_pool::POOLED_BUFFER_BYTES } else { buffer_pool::LARGE_BUFFER_BYTES }
}

impl KeyCollector {
    fn push(
        &mut self,
        key: &[u8],
        version: &KeyVersion,
        with_value: bool,
        allowance: &mut ResponseAllowance,
    ) {
        let value = if with_value { version.value } else { &[] };
        let need = key.len() + value.len();
        if !allowance.take(KEY_VALUE_OVERHEAD_BYTES + need) {
            // From here on only the size is counted.
            (self.kvs, self.arena) = Default::default();
            return;
        }
        if self.arena.capacity() - self.arena.len() < need {
            // A request for a single key gets a small buffer; a second key means a list.
            let chunk = if self.chunks == 0 { need } else { need.max(choose_chunk_size(self.chunks)) };
            self.chunks += 1;
            self.arena = BytesMut::with_capacity(chunk);
        }
        let kv = KeyValue {
            key: self.share(key),
            create_revision: version.created,
            mod_revision: version.at.main,
            version: version.version,
            value: self.share(value),
            lease: version.lease,
        };
        self.kvs.push(kv);
    }

    fn share(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        self.arena.extend_from_slice(bytes);
        self.arena.split().freeze()
    }
}

fn has_filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// Returns whether the value is within the bounds, of which zero means none.
fn within(value: i64, min: i64, max: i64) -> bool {
    (min == 0 || value >= min) && (max == 0 || value <= max)
}

fn passes_filters(request: &RangeRequest, version: &KeyVersion) -> bool {
    within(version.at.main, request.min_mod_revision, request.max_mod_revision)
        && within(version.created, request.min_create_revision, request.max_create_revision)
}

/// Returns the sort target and whether the order is descending; `None` for ascending keys, which is the natural
/// order.
fn order(request: &RangeRequest) -> Option<(SortTarget, bool)> {
    match (request.sort_order(), request.sort_target()) {
        (SortOrder::None | SortOrder::Ascend, SortTarget::Key) => None,
        (SortOrder::Descend, target) => Some((target, true)),
        (_, target) => Some((target, false)),
    }
}

fn sort(kvs: &mut [KeyValue], target: SortTarget, descending: bool) {
    kvs.sort_by(|a, b| {
        let ordering = match target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        if descending { ordering.reverse() } else { ordering }
    });
}
