//! Range requests: select, filter, sort, cut.

use super::fault::Fault;
use super::limits::Allowance;
use super::record::Version;
use super::refusal::Refusal;
use super::span::Span;
use super::view::{HistoryTable, View};
use bytes::{Bytes, BytesMut};
use std::cmp::Ordering;
use std::ops::ControlFlow;
use tortie_etcd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use tortie_etcd_proto::etcdserverpb::{DeleteRangeRequest, RangeRequest, RangeResponse, ResponseHeader};
use tortie_etcd_proto::mvccpb::KeyValue;

/// The answer, with a header that carries only the revision.
pub fn range<H: HistoryTable>(
    view: &View<H>,
    request: &RangeRequest,
    allowance: &mut Allowance,
) -> Result<Result<RangeResponse, Refusal>, Fault> {
    let revision = match view.resolve(request.revision) {
        Ok(revision) => revision,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let order = order(request);
    let limit = usize::try_from(request.limit).unwrap_or(0);
    // Without sorting or filtering the first `limit` keys are the answer; the rest are only counted.
    let keep = match limit {
        0 => usize::MAX,
        _ if order.is_some() || filters(request) => usize::MAX,
        limit => limit,
    };
    // Of many keys that are sorted, the values of the few that are wanted are looked up in the end.
    let by_value = order.is_some_and(|(target, _)| target == SortTarget::Value);
    let values_later = order.is_some() && limit > 0 && !by_value && !request.keys_only;
    // A sort by value needs the values even when they are not wanted in the answer.
    let with_value = by_value || !(request.keys_only || values_later);

    let span = Span::new(&request.key, &request.range_end);
    let mut answer = Selection::default();
    view.visit(&span, revision, |key, version| {
        answer.count += 1;
        let room = answer.kept < keep;
        if room && !request.count_only && passes(request, version) {
            answer.kept += 1;
            answer.push(key, version, with_value, allowance);
        }
        if allowance.is_hopeless() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Err(refusal) = view.check_work().and(allowance.check()) {
        return Ok(Err(refusal));
    }

    let (count, mut kvs) = (answer.count, answer.kvs);
    if let Some((target, descending)) = order {
        sort(&mut kvs, target, descending);
    }
    let candidates = if keep == usize::MAX { kvs.len() } else { count };
    let more = limit > 0 && candidates > limit && !request.count_only;
    if limit > 0 {
        kvs.truncate(limit);
    }
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    if values_later {
        for kv in &mut kvs {
            let key = Span::Key(kv.key.clone());
            view.visit(&key, revision, |_, version| {
                if allowance.take(version.value.len()) {
                    kv.value = Bytes::copy_from_slice(version.value);
                }
                ControlFlow::Continue(())
            })?;
        }
        if let Err(refusal) = view.check_work().and(allowance.check()) {
            return Ok(Err(refusal));
        }
    }
    let header = Some(ResponseHeader { revision: view.revision, ..Default::default() });
    Ok(Ok(RangeResponse { header, kvs, more, count: count as i64 }))
}

/// What an answer would take in memory, without making it.
pub fn measure<H: HistoryTable>(
    view: &View<H>,
    request: &RangeRequest,
    allowance: &mut Allowance,
) -> Result<(), Fault> {
    let Ok(revision) = view.resolve(request.revision) else { return Ok(()) };
    if request.count_only {
        return Ok(());
    }
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0 && order(request).is_none());
    let mut seen = 0;
    view.visit(&Span::new(&request.key, &request.range_end), revision, |key, version| {
        let value = if request.keys_only { 0 } else { version.value.len() };
        seen += 1;
        let goes_on = allowance.take(KEY_VALUE_BYTES + key.len() + value) && limit != Some(seen);
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// What a deletion looks at, and what its answer would take in memory.
pub fn measure_delete<H: HistoryTable>(
    view: &View<H>,
    delete: &DeleteRangeRequest,
    allowance: &mut Allowance,
) -> Result<(), Fault> {
    // One key is no work.
    if delete.range_end.is_empty() && !delete.prev_kv {
        return Ok(());
    }
    let (key, range_end) = (delete.key.clone(), delete.range_end.clone());
    let request = RangeRequest { key, range_end, keys_only: !delete.prev_kv, ..Default::default() };
    match delete.prev_kv {
        true => measure(view, &request, allowance),
        // What was deleted is not in the answer.
        false => measure(view, &request, &mut Allowance::new(usize::MAX)),
    }
}

/// What a key takes in an answer besides its bytes.
pub const KEY_VALUE_BYTES: usize = 96;

/// Keys and values gathered into few large buffers: a list of 100,000 keys must not be 200,000 allocations.
#[derive(Default)]
struct Selection {
    count: usize,
    kept: usize,
    kvs: Vec<KeyValue>,
    arena: BytesMut,
    chunks: usize,
}

impl Selection {
    const CHUNK: usize = 256 * 1024;
    /// For what comes after the first ones. The allocator keeps smaller buffers that are freed, one heap for every thread
    /// that ever read a list; one of this size it maps and gives back whole, and takes only the pages that are written.
    const LARGE_CHUNK: usize = 33 << 20;
    const SMALL_CHUNKS: usize = 4;

    fn push(&mut self, key: &[u8], version: &Version, with_value: bool, allowance: &mut Allowance) {
        let value = if with_value { version.value } else { &[] };
        let need = key.len() + value.len();
        if !allowance.take(KEY_VALUE_BYTES + need) {
            // From here on only its size is of interest.
            (self.kvs, self.arena) = Default::default();
            return;
        }
        if self.arena.capacity() - self.arena.len() < need {
            // One key asked for, one small buffer; the second one means a list.
            let chunk = match self.chunks {
                0 => need,
                1..=Self::SMALL_CHUNKS => need.max(Self::CHUNK),
                _ => need.max(Self::LARGE_CHUNK),
            };
            self.chunks += 1;
            self.arena = BytesMut::with_capacity(chunk);
        }
        let (key, value) = (self.share(key), self.share(value));
        self.kvs.push(KeyValue {
            key,
            create_revision: version.created,
            mod_revision: version.at.main,
            version: version.version,
            value,
            lease: version.lease,
        });
    }

    fn share(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        self.arena.extend_from_slice(bytes);
        self.arena.split().freeze()
    }
}

fn filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

fn passes(request: &RangeRequest, version: &Version) -> bool {
    let within = |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(version.at.main, request.min_mod_revision, request.max_mod_revision)
        && within(version.created, request.min_create_revision, request.max_create_revision)
}

/// What to sort by, and whether downwards; keys already come in ascending order.
fn order(request: &RangeRequest) -> Option<(SortTarget, bool)> {
    match (request.sort_order(), request.sort_target()) {
        (SortOrder::None | SortOrder::Ascend, SortTarget::Key) => None,
        (SortOrder::Descend, target) => Some((target, true)),
        (_, target) => Some((target, false)),
    }
}

fn sort(kvs: &mut [KeyValue], target: SortTarget, descending: bool) {
    let compare = |a: &KeyValue, b: &KeyValue| match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    kvs.sort_by(|a, b| {
        let ordering: Ordering = compare(a, b);
        if descending { ordering.reverse() } else { ordering }
    });
}
