//! Combines several requests into one operation, computed on copies of the cached blocks. Nothing is written here.
//!
//! A batch only contains requests that need no read: assigning from confirmed blocks of this host, and releasing
//! handles whose addresses the cache knows. All other requests are left to be processed individually.

use super::auto::choose;
use super::cache::{BlockCache, CachedBlock};
use super::request::{AssignRequest, AssignedAddresses, DualStackAssignment};
use crate::block;
use crate::facts::AllocatorInputs;
use crate::handle::HandleRecord;
use crate::operations::update_block;
use crate::owner::BlockOwner;
use crate::records::handle_key;
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tokio::sync::oneshot;
use tortie_model::ipam::{AddressBlock, AddressHandle, AffinityState};
use tortie_model::{StoreKey, StoreValue};
use tortie_store::operation::{OperationStep, ReversibleStep};
use tortie_store::{Revision, StoreOperation};

/// A request and the channel for its response. If the channel is dropped without a response, the request has to be
/// processed individually.
pub(super) enum QueuedRequest {
    Assign { request: Box<AssignRequest>, answer: oneshot::Sender<DualStackAssignment> },
    Release { handle: String, record: Option<HandleRecord>, answer: oneshot::Sender<Vec<IpAddr>> },
}

/// A request with the result that it gets once the operation succeeds.
pub(super) enum BatchedRequest {
    Assign {
        request: Box<AssignRequest>,
        answer: oneshot::Sender<DualStackAssignment>,
        assigned: DualStackAssignment,
        handle: AddressHandle,
    },
    Release {
        handle: String,
        record: HandleRecord,
        answer: oneshot::Sender<Vec<IpAddr>>,
        released: Vec<IpAddr>,
    },
}

#[derive(Default)]
pub(super) struct RequestBatch {
    pub requests: Vec<BatchedRequest>,
    pub operation: StoreOperation,
    /// The blocks as the operation writes them.
    pub blocks: Vec<AddressBlock>,
}

/// A block that can be used without a read, with the changes planned so far.
struct UsableBlock {
    block: AddressBlock,
    revision: Revision,
    check: (StoreKey, Revision),
    changed: bool,
}

struct RequestBatchBuilder<'a> {
    owner: &'a BlockOwner,
    facts: &'a AllocatorInputs,
    blocks: Vec<UsableBlock>,
    handles: BTreeSet<String>,
}

impl QueuedRequest {
    fn handle(&self) -> Option<&str> {
        match self {
            QueuedRequest::Assign { request, .. } => request.holder.handle.as_deref(),
            QueuedRequest::Release { handle, .. } => Some(handle),
        }
    }
}

impl BatchedRequest {
    pub fn handle(&self) -> Option<&str> {
        match self {
            BatchedRequest::Assign { request, .. } => request.holder.handle.as_deref(),
            BatchedRequest::Release { handle, .. } => Some(handle),
        }
    }

    /// Converts the request back, to retry it in another batch.
    pub fn into_queued(self) -> QueuedRequest {
        match self {
            BatchedRequest::Assign { request, answer, .. } => QueuedRequest::Assign { request, answer },
            BatchedRequest::Release { handle, record, answer, .. } => {
                QueuedRequest::Release { handle, record: Some(record), answer }
            }
        }
    }
}

impl RequestBatch {
    pub fn make(
        owner: &BlockOwner,
        facts: &AllocatorInputs,
        cache: &mut BlockCache,
        queued: Vec<QueuedRequest>,
        now: Timestamp,
    ) -> RequestBatch {
        let mut builder = RequestBatchBuilder {
            owner,
            facts,
            blocks: usable(owner, facts, cache, now),
            handles: BTreeSet::new(),
        };
        let mut batch = RequestBatch::default();
        for request in queued {
            // A transaction can write each handle only once.
            let Some(handle) = request.handle().map(str::to_owned) else { continue };
            if builder.handles.contains(&handle) {
                continue;
            }
            match request {
                QueuedRequest::Assign { request, answer } => {
                    let Some((assigned, record)) = builder.assign(&request) else { continue };
                    let count =
                        ReversibleStep::create(handle_key(&handle), StoreValue::Handle(record.clone()));
                    batch.operation.prepare.push(count);
                    batch.requests.push(BatchedRequest::Assign { request, answer, assigned, handle: record });
                }
                QueuedRequest::Release { handle, record, answer } => {
                    let Some(record) = record.or_else(|| cache.take_handle(&handle)) else { continue };
                    let Some((released, leave)) = builder.release(&record, now) else { continue };
                    batch.operation.finish.push(leave);
                    batch.requests.push(BatchedRequest::Release { handle, record, answer, released });
                }
            }
            builder.handles.insert(handle);
        }
        for mut usable in builder.blocks.into_iter().filter(|usable| usable.changed) {
            block::thaw(&mut usable.block, facts.config.ip_cooldown_seconds, now);
            block::advance(&mut usable.block);
            batch.operation.commit.push(update_block(&usable.block, &usable.revision));
            batch.operation.checks.push(usable.check);
            batch.blocks.push(usable.block);
        }
        batch
    }
}

impl RequestBatchBuilder<'_> {
    /// Assigns addresses of both families, or none.
    fn assign(&mut self, request: &AssignRequest) -> Option<(DualStackAssignment, AddressHandle)> {
        let labels = self.facts.labels(self.owner).ok()?;
        let mut places = [None, None];
        for (place, version) in places.iter_mut().zip([4, 6]) {
            let count = request.count(version) as usize;
            if count == 0 {
                continue;
            }
            let pools = choose(self.facts, &self.owner.name, labels, request, version).ok()?;
            *place = Some(self.blocks.iter().position(|usable| {
                pools.iter().any(|pool| pool.cidr.contains(&usable.block.cidr))
                    && block::free(&usable.block, &self.facts.reservations) >= count
            })?);
        }
        let mut handle = AddressHandle::default();
        let mut assigned = DualStackAssignment {
            v4: AssignedAddresses::new(4, request.v4),
            v6: AssignedAddresses::new(6, request.v6),
        };
        for (place, family) in places.into_iter().zip([&mut assigned.v4, &mut assigned.v6]) {
            let Some(usable) = place.and_then(|place| self.blocks.get_mut(place)) else { continue };
            let taken = block::allocate(
                &mut usable.block,
                family.requested as usize,
                &request.holder,
                &self.facts.reservations,
            );
            usable.changed = true;
            let cidr = usable.block.cidr;
            handle.add(cidr, u32::try_from(taken.len()).unwrap_or(u32::MAX));
            family.addresses =
                taken.into_iter().filter_map(|a| IpNet::new(a, cidr.prefix_len()).ok()).collect();
        }
        (!handle.block.is_empty()).then_some((assigned, handle))
    }

    /// Releases all addresses of the handle, or none.
    fn release(&mut self, record: &HandleRecord, now: Timestamp) -> Option<(Vec<IpAddr>, OperationStep)> {
        let mut places = BTreeMap::new();
        for text in record.blocks() {
            let cidr: IpNet = text.parse().ok()?;
            let place = self.blocks.iter().position(|usable| {
                usable.block.cidr == cidr && !block::addresses_of(&usable.block, &record.id).is_empty()
            });
            places.insert(text.to_owned(), place?);
        }
        let mut released = Vec::new();
        for place in places.values() {
            let usable = self.blocks.get_mut(*place)?;
            released.extend(block::release_handle(&mut usable.block, &record.id, now));
            usable.changed = true;
        }
        let blocks: Vec<String> = places.into_keys().collect();
        Some((released, record.leave(&blocks)?))
    }
}

/// Returns the cached blocks with a confirmed affinity to this host.
fn usable(
    owner: &BlockOwner,
    facts: &AllocatorInputs,
    cache: &mut BlockCache,
    now: Timestamp,
) -> Vec<UsableBlock> {
    let mut usable = Vec::new();
    for version in [4, 6] {
        for claim in cache.claims(version).iter().flatten() {
            let CachedBlock::Present(found) = &claim.block else { continue };
            if claim.affinity.value.state != AffinityState::Confirmed
                || !block::belongs_to(&found.value, owner)
            {
                continue;
            }
            let mut block = found.value.clone();
            block::thaw(&mut block, facts.config.ip_cooldown_seconds, now);
            let revision = found.revision.clone();
            usable.push(UsableBlock { block, revision, check: claim.check(owner), changed: false });
        }
    }
    usable
}
