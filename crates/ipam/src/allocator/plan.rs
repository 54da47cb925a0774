//! Several requests as one transaction: worked out on copies of the blocks in memory, nothing written yet.
//!
//! Only what needs no look at the store is planned: handing out from blocks we are known to own, and taking back
//! what we remember handing out. Whatever else is asked for is left to be done alone.

use super::auto::choose;
use super::owned::{Owned, Seen};
use super::request::{Assigned, Assignments, Request};
use crate::block;
use crate::facts::Facts;
use crate::handle::HandleRecord;
use crate::ledger::update_block;
use crate::owner::Owner;
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tokio::sync::oneshot;
use tortie_model::ipam::{AffinityState, Block, Handle};
use tortie_store::{Change, Revision};

/// A request and whoever waits for it. Dropped without an answer, it has to be done alone.
pub(super) enum Work {
    Assign { request: Box<Request>, answer: oneshot::Sender<Assignments> },
    Release { handle: String, record: Option<HandleRecord>, answer: oneshot::Sender<Vec<IpAddr>> },
}

/// A request as it will have been carried out.
pub(super) enum Planned {
    Assign {
        work: Box<Request>,
        answer: oneshot::Sender<Assignments>,
        assigned: Assignments,
        handle: Handle,
    },
    Release {
        handle: String,
        record: HandleRecord,
        answer: oneshot::Sender<Vec<IpAddr>>,
        released: Vec<IpAddr>,
    },
}

#[derive(Default)]
pub(super) struct Plan {
    pub planned: Vec<Planned>,
    pub changes: Vec<Change>,
    /// The blocks after the changes.
    pub blocks: Vec<Block>,
}

/// A block that can be used without looking, and what was decided about it so far.
struct Draft {
    block: Block,
    revision: Revision,
    keep: Change,
    touched: bool,
}

struct Drafts<'a> {
    owner: &'a Owner,
    facts: &'a Facts,
    blocks: Vec<Draft>,
    handles: BTreeSet<String>,
}

impl Work {
    fn handle(&self) -> Option<&str> {
        match self {
            Work::Assign { request, .. } => request.holder.handle.as_deref(),
            Work::Release { handle, .. } => Some(handle),
        }
    }
}

impl Planned {
    pub fn handle(&self) -> Option<&str> {
        match self {
            Planned::Assign { work, .. } => work.holder.handle.as_deref(),
            Planned::Release { handle, .. } => Some(handle),
        }
    }

    /// To be planned again after all.
    pub fn into_work(self) -> Work {
        match self {
            Planned::Assign { work, answer, .. } => Work::Assign { request: work, answer },
            Planned::Release { handle, record, answer, .. } => {
                Work::Release { handle, record: Some(record), answer }
            }
        }
    }
}

impl Plan {
    pub fn make(owner: &Owner, facts: &Facts, owned: &mut Owned, work: Vec<Work>, now: Timestamp) -> Plan {
        let mut drafts =
            Drafts { owner, facts, blocks: usable(owner, facts, owned, now), handles: BTreeSet::new() };
        let mut plan = Plan::default();
        for work in work {
            // One handle can only be written once in a transaction.
            let Some(handle) = work.handle().map(str::to_owned) else { continue };
            if drafts.handles.contains(&handle) {
                continue;
            }
            let planned = match work {
                Work::Assign { request, answer } => {
                    drafts.assign(&request).map(|(assigned, record, change)| {
                        (Planned::Assign { work: request, answer, assigned, handle: record }, change)
                    })
                }
                Work::Release { handle, record, answer } => {
                    record.or_else(|| owned.take_handle(&handle)).and_then(|record| {
                        let (released, change) = drafts.release(&record, now)?;
                        Some((Planned::Release { handle, record, answer, released }, change))
                    })
                }
            };
            if let Some((planned, change)) = planned {
                drafts.handles.insert(handle);
                plan.planned.push(planned);
                plan.changes.push(change);
            }
        }
        for mut draft in drafts.blocks.into_iter().filter(|draft| draft.touched) {
            block::thaw(&mut draft.block, facts.config.ip_cooldown_seconds, now);
            block::advance(&mut draft.block);
            plan.changes.push(update_block(&draft.block, draft.revision.clone()));
            plan.changes.push(draft.keep);
            plan.blocks.push(draft.block);
        }
        plan
    }
}

impl Drafts<'_> {
    /// Both families or nothing.
    fn assign(&mut self, request: &Request) -> Option<(Assignments, Handle, Change)> {
        let labels = self.facts.labels(self.owner).ok()?;
        let mut places = [None, None];
        for (place, version) in places.iter_mut().zip([4, 6]) {
            let count = request.count(version) as usize;
            if count == 0 {
                continue;
            }
            let pools = choose(self.facts, &self.owner.name, labels, request, version).ok()?;
            let fits = |draft: &Draft| {
                pools.iter().any(|pool| pool.cidr.contains(&draft.block.cidr))
                    && block::free(&draft.block, &self.facts.reservations) >= count
            };
            *place = Some(self.blocks.iter().position(fits)?);
        }
        let mut record = HandleRecord::new(request.holder.handle.as_deref()?, None);
        let mut assigned = Assignments { v4: Assigned::new(4, request.v4), v6: Assigned::new(6, request.v6) };
        let mut last = None;
        for (place, family) in places.into_iter().zip([&mut assigned.v4, &mut assigned.v6]) {
            let Some(draft) = place.and_then(|place| self.blocks.get_mut(place)) else { continue };
            let taken = block::allocate(
                &mut draft.block,
                family.requested as usize,
                &request.holder,
                &self.facts.reservations,
            );
            draft.touched = true;
            let cidr = draft.block.cidr;
            let count = u32::try_from(taken.len()).unwrap_or(u32::MAX);
            family.addresses =
                taken.into_iter().filter_map(|a| IpNet::new(a, cidr.prefix_len()).ok()).collect();
            let handle = record.add(cidr, count).1;
            record.assume(handle.clone());
            last = Some(handle);
        }
        let handle = last?;
        let change = HandleRecord::new(&record.id, None).create(&handle);
        Some((assigned, handle, change))
    }

    /// Everything the handle has, or nothing.
    fn release(&mut self, record: &HandleRecord, now: Timestamp) -> Option<(Vec<IpAddr>, Change)> {
        let mut places = BTreeMap::new();
        for text in record.blocks() {
            let cidr: IpNet = text.parse().ok()?;
            let knows = |draft: &Draft| {
                draft.block.cidr == cidr && !block::addresses_of(&draft.block, &record.id).is_empty()
            };
            places.insert(text.to_owned(), self.blocks.iter().position(knows)?);
        }
        let mut released = Vec::new();
        for place in places.values() {
            let draft = self.blocks.get_mut(*place)?;
            released.extend(block::release_handle(&mut draft.block, &record.id, now));
            draft.touched = true;
        }
        let blocks: Vec<String> = places.into_keys().collect();
        Some((released, record.leave(&blocks)?))
    }
}

/// The blocks that are ours for certain, as far as we remember.
fn usable(owner: &Owner, facts: &Facts, owned: &mut Owned, now: Timestamp) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for version in [4, 6] {
        for claim in owned.claims(version).iter().flatten() {
            let Seen::At(standing) = &claim.block else { continue };
            if claim.affinity.value.state != AffinityState::Confirmed
                || !block::belongs_to(&standing.value, owner)
            {
                continue;
            }
            let mut block = standing.value.clone();
            block::thaw(&mut block, facts.config.ip_cooldown_seconds, now);
            drafts.push(Draft {
                block,
                revision: standing.revision.clone(),
                keep: claim.keep(owner),
                touched: false,
            });
        }
    }
    drafts
}
