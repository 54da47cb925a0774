//! Lists: selects, sorts and pages flows, and sums each over a window.

use super::filter::{FilterError, FilterMatcher, check_filter};
use super::hints::HintError;
use super::intern::InternId;
use super::key::split_labels;
use super::sample::{BucketNumber, FlowCounters};
use super::window::TimeWindow;
use super::{BucketSnapshot, FlowRing, FlowSlot};
use crate::proto::{Filter, Flow, FlowResult, SortBy};
use std::ops::Range;

/// Limit of the estimated size of a result. Nodes determine how many flows, names and policies there are.
pub const MAX_RESULT_BYTES: usize = 64 << 20;

/// Identity of a flow in the ring. It is invalid once the flow is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRef {
    pub slot: u32,
    pub id: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Hint(#[from] HintError),
    #[error(
        "sort_by: {name} is not supported; use Time, SourceName, SourceNamespace, DestName or DestNamespace"
    )]
    SortBy { name: &'static str },
    #[error("sort_by: the value {value} is unknown")]
    UnknownSortBy { value: i32 },
    #[error("{field}: {value} is negative")]
    Negative { field: &'static str, value: i64 },
    #[error("page: page {page} needs a page_size above 0")]
    PageWithoutSize { page: i64 },
    #[error("{field}: the value {value} is unknown")]
    Unknown { field: &'static str, value: i32 },
    #[error("the result would be larger than {} MiB; request a shorter time or filter", MAX_RESULT_BYTES >> 20)]
    TooLarge,
}

/// The requested part of a result. A size of zero means everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    page: usize,
    size: usize,
}

impl PageRequest {
    pub fn new(page: i64, size: i64) -> Result<PageRequest, QueryError> {
        for (field, value) in [("page", page), ("page_size", size)] {
            if value < 0 {
                return Err(QueryError::Negative { field, value });
            }
        }
        if size == 0 && page > 0 {
            return Err(QueryError::PageWithoutSize { page });
        }
        let clamp = |value| usize::try_from(value).unwrap_or(usize::MAX);
        Ok(PageRequest { page: clamp(page), size: clamp(size) })
    }

    /// Returns the positions of the page within a result.
    pub fn range(&self, total: usize) -> Range<usize> {
        if self.size == 0 {
            return 0..total;
        }
        let begin = self.page.saturating_mul(self.size).min(total);
        begin..begin.saturating_add(self.size).min(total)
    }

    pub fn total_pages(&self, total: usize) -> usize {
        if self.size == 0 { 1 } else { total.div_ceil(self.size) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct FlowQuery {
    pub window: TimeWindow,
    pub filter: Filter,
    pub sort: SortBy,
    pub page: PageRequest,
}

impl FlowQuery {
    /// Checks the parts of a request. Only the first sort option counts.
    pub fn new(
        window: TimeWindow,
        filter: Filter,
        sort_by: Option<i32>,
        page: PageRequest,
    ) -> Result<FlowQuery, QueryError> {
        check_filter(&filter)?;
        let value = sort_by.unwrap_or_default();
        let sort = SortBy::try_from(value).map_err(|_| QueryError::UnknownSortBy { value })?;
        if matches!(sort, SortBy::DestType | SortBy::SourceType) {
            return Err(QueryError::SortBy { name: sort.as_str_name() });
        }
        Ok(FlowQuery { window, filter, sort, page })
    }
}

/// The flows of one page, in order.
#[derive(Clone, Debug, Default)]
pub struct FlowPage {
    pub total: usize,
    pub flows: Vec<FlowRef>,
    pub buckets: Range<BucketNumber>,
}

/// Sort key: the rank of the name if flows are sorted by name, then the newest first.
type FlowRank = (u32, BucketNumber, u32);

impl FlowRing {
    /// Selects the flows of a page.
    pub fn select_page(&self, query: &FlowQuery, now: i64) -> FlowPage {
        let buckets = query.window.buckets(self, now);
        let mut found: Vec<FlowRank> = Vec::new();
        self.visit_matching(&query.filter, &buckets, |position, slot, samples| {
            // Most keys begin within the window, so their samples need not be read.
            let first =
                if slot.first >= buckets.start { slot.first } else { slot.samples[samples.start].bucket };
            let name = sort_name(query.sort, slot).map_or(0, |id| id.index() as u32);
            found.push((name, BucketNumber::MAX - first, position));
        });
        if query.sort != SortBy::Time {
            self.replace_names_by_ranks(&mut found);
        }
        let total = found.len();
        let page = query.page.range(total);
        order_range(&mut found, &page);
        let flows = found[page].iter();
        let flows = flows.map(|(_, _, slot)| FlowRef { slot: *slot, id: self.slots[*slot as usize].id });
        FlowPage { total, flows: flows.collect(), buckets }
    }

    /// Calls `visit` for each flow that matches and has data in `buckets`, with the range of its samples there.
    pub(super) fn visit_matching<'a>(
        &'a self,
        filter: &'a Filter,
        buckets: &Range<BucketNumber>,
        mut visit: impl FnMut(u32, &'a FlowSlot, Range<usize>),
    ) {
        let mut matcher = FilterMatcher::new(self, filter);
        for (position, slot) in self.slots.iter().enumerate() {
            if slot.id == 0 || slot.first >= buckets.end || slot.last < buckets.start {
                continue;
            }
            if !matcher.matches(&slot.key) {
                continue;
            }
            let samples = self.samples_in(slot, buckets);
            if !samples.is_empty() {
                visit(position as u32, slot, samples);
            }
        }
    }

    fn replace_names_by_ranks(&self, found: &mut [FlowRank]) {
        let mut used = vec![false; self.names.capacity()];
        for (name, _, _) in found.iter() {
            used[*name as usize] = true;
        }
        let mut names: Vec<(&[u8], u32)> = Vec::new();
        for (name, _) in used.iter().enumerate().filter(|(_, used)| **used) {
            names.push((self.names.get_index(name), name as u32));
        }
        names.sort_unstable();
        let mut ranks = vec![0; used.len()];
        for (rank, (_, name)) in names.into_iter().enumerate() {
            ranks[name as usize] = rank as u32;
        }
        for (name, _, _) in found {
            *name = ranks[*name as usize];
        }
    }

    /// Sums a flow over `buckets`. Returns `None` if it was removed or has no data there.
    pub fn aggregate(&self, flow: FlowRef, buckets: &Range<BucketNumber>) -> Option<FlowResult> {
        let slot = self.slots.get(flow.slot as usize).filter(|slot| slot.id == flow.id && flow.id != 0)?;
        let samples = &slot.samples[self.samples_in(slot, buckets)];
        let (first, last) = (samples.first()?, samples.last()?);
        let mut counters = FlowCounters::default();
        let mut source_labels = Vec::from_iter(split_labels(self.labels.text(first.source_labels)));
        let mut dest_labels = Vec::from_iter(split_labels(self.labels.text(first.dest_labels)));
        let mut previous = first;
        for sample in samples {
            counters.add(&sample.counters);
            if sample.source_labels != previous.source_labels {
                self.keep_common(&mut source_labels, sample.source_labels);
            }
            if sample.dest_labels != previous.dest_labels {
                self.keep_common(&mut dest_labels, sample.dest_labels);
            }
            previous = sample;
        }
        let mut result = Flow {
            key: Some(slot.key.to_proto(&self.names, &self.traces)),
            start_time: self.start_of(first.bucket),
            end_time: self.start_of(last.bucket) + self.window(),
            source_labels: source_labels.into_iter().map(str::to_owned).collect(),
            dest_labels: dest_labels.into_iter().map(str::to_owned).collect(),
            ..Flow::default()
        };
        counters.write_to(&mut result);
        Some(FlowResult { id: slot.id, flow: Some(result) })
    }

    fn keep_common(&self, labels: &mut Vec<&str>, other: InternId) {
        let other: Vec<&str> = split_labels(self.labels.text(other)).collect();
        labels.retain(|label| other.binary_search(label).is_ok());
    }

    /// Returns the matching flows of a part of a snapshot, as they are in its bucket now, and the number of flows that are
    /// gone.
    pub fn read_snapshot(
        &self,
        snapshot: &BucketSnapshot,
        part: Range<usize>,
        filter: &Filter,
    ) -> (Vec<FlowResult>, usize) {
        let mut matcher = FilterMatcher::new(self, filter);
        let buckets = snapshot.bucket..snapshot.bucket + 1;
        let mut results = Vec::new();
        let mut gone = 0;
        for flow in &snapshot.flows[part] {
            let slot = &self.slots[flow.slot as usize];
            if slot.id != flow.id {
                gone += 1;
            } else if matcher.matches(&slot.key) {
                results.extend(self.aggregate(*flow, &buckets));
            }
        }
        (results, gone)
    }
}

fn sort_name(sort: SortBy, slot: &FlowSlot) -> Option<InternId> {
    match sort {
        SortBy::SourceName => Some(slot.key.source_name),
        SortBy::SourceNamespace => Some(slot.key.source_namespace),
        SortBy::DestName => Some(slot.key.dest_name),
        SortBy::DestNamespace => Some(slot.key.dest_namespace),
        SortBy::Time | SortBy::DestType | SortBy::SourceType => None,
    }
}

/// Moves the elements that a complete sort would place at `range` there, in order.
fn order_range(found: &mut [FlowRank], range: &Range<usize>) {
    if range.is_empty() {
        return;
    }
    let mut rest = found;
    if range.start > 0 {
        rest = rest.select_nth_unstable(range.start - 1).2;
    }
    let count = range.len();
    if count < rest.len() {
        rest = rest.select_nth_unstable(count).0;
    }
    rest.sort_unstable();
}
