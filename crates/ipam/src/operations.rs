//! All changes that IPAM makes in the store, as operations whose steps are in Calico's order.
//!
//! | operation | prepare | commit | finish |
//! | --- | --- | --- | --- |
//! | claim a block | affinity pending | create the block | affinity confirmed |
//! | confirm a claim | affinity pending | write the block | affinity confirmed |
//! | take over an empty block | own affinity pending, theirs pendingDeletion | write the block | own confirmed, theirs deleted |
//! | give up a block | affinity pendingDeletion | delete the block, or write it without owner | delete the affinity |
//! | assign | count the address in the handle | write the block | |
//! | release | | write or delete the block | count fewer in the handle |
//!
//! So a handle references every block in which it has addresses, wherever a process stops, and releasing the handle
//! finds them. It may reference further blocks; releasing it then rewrites such a block before removing the reference,
//! so that a concurrent assignment from that block with this handle is refused.

use crate::records::{VersionedValue, affinity_key, block_key};
use ipnet::IpNet;
use tortie_model::StoreValue;
use tortie_model::ipam::block;
use tortie_model::ipam::owner::BlockOwner;
use tortie_model::ipam::{AddressBlock, AffinityState, BlockAffinity};
use tortie_store::operation::{ExpectedRevision, OperationStep, ReversibleStep};
use tortie_store::{Revision, StoreOperation};

pub fn create_block(block: &AddressBlock) -> OperationStep {
    OperationStep::Create { key: block_key(block.cidr), value: StoreValue::Block(block.clone()) }
}

pub fn update_block(block: &AddressBlock, revision: &Revision) -> OperationStep {
    let expected = ExpectedRevision::At(revision.clone());
    OperationStep::Update { key: block_key(block.cidr), value: StoreValue::Block(block.clone()), expected }
}

pub fn delete_block(cidr: IpNet, revision: &Revision) -> OperationStep {
    OperationStep::Delete { key: block_key(cidr), expected: ExpectedRevision::At(revision.clone()) }
}

/// Rewrites the block with the next sequence number, so that concurrent writes of the block fail and are retried.
pub fn touch_block(found: &VersionedValue<AddressBlock>) -> OperationStep {
    let mut block = found.value.clone();
    block::advance(&mut block);
    update_block(&block, &found.revision)
}

/// Claims a block for an owner without an affinity to it. `block` creates the block or changes its owner.
pub fn claim(owner: &BlockOwner, cidr: IpNet, block: OperationStep) -> StoreOperation {
    let key = affinity_key(owner, cidr);
    StoreOperation {
        prepare: vec![ReversibleStep::create(
            key,
            in_state(&BlockAffinity::default(), AffinityState::Pending),
        )],
        commit: vec![block],
        finish: vec![confirmed(owner, cidr, &BlockAffinity::default(), ExpectedRevision::Written)],
        ..StoreOperation::default()
    }
}

/// Completes an affinity that exists but is not confirmed, or whose block is missing.
pub fn confirm(
    owner: &BlockOwner,
    cidr: IpNet,
    affinity: &VersionedValue<BlockAffinity>,
    block: OperationStep,
) -> StoreOperation {
    let mut operation = StoreOperation::one(block);
    let mut expected = ExpectedRevision::At(affinity.revision.clone());
    if affinity.value.state != AffinityState::Pending {
        operation.prepare.push(set_state(owner, cidr, affinity, AffinityState::Pending));
        expected = ExpectedRevision::Written;
    }
    operation.finish.push(confirmed(owner, cidr, &affinity.value, expected));
    operation
}

/// Claims an empty block that its owner does not use.
pub fn take_over(
    owner: &BlockOwner,
    cidr: IpNet,
    block: OperationStep,
    theirs: Option<(&BlockOwner, &VersionedValue<BlockAffinity>)>,
) -> StoreOperation {
    let mut operation = claim(owner, cidr, block);
    if let Some((them, affinity)) = theirs {
        operation.prepare.push(set_state(them, cidr, affinity, AffinityState::PendingDeletion));
        operation.finish.push(delete_affinity(them, cidr, ExpectedRevision::Written));
    }
    operation
}

/// Releases a block of the owner. `block` deletes the block or removes its owner.
pub fn give_up(
    owner: &BlockOwner,
    cidr: IpNet,
    affinity: &VersionedValue<BlockAffinity>,
    block: OperationStep,
) -> StoreOperation {
    StoreOperation {
        prepare: vec![set_state(owner, cidr, affinity, AffinityState::PendingDeletion)],
        commit: vec![block],
        finish: vec![delete_affinity(owner, cidr, ExpectedRevision::Written)],
        ..StoreOperation::default()
    }
}

/// Deletes an affinity to a block that is missing or has another owner.
pub fn withdraw(owner: &BlockOwner, cidr: IpNet, affinity: &VersionedValue<BlockAffinity>) -> StoreOperation {
    StoreOperation::one(delete_affinity(owner, cidr, ExpectedRevision::At(affinity.revision.clone())))
}

/// Assigns addresses: the handle counts them before the block contains them.
pub fn assign(block: OperationStep, handle: Option<ReversibleStep>) -> StoreOperation {
    StoreOperation { prepare: handle.into_iter().collect(), ..StoreOperation::one(block) }
}

/// Releases addresses: the handles count them until the block no longer contains them.
pub fn release(block: Option<OperationStep>, handles: Vec<OperationStep>) -> StoreOperation {
    StoreOperation { commit: block.into_iter().collect(), finish: handles, ..StoreOperation::default() }
}

fn in_state(affinity: &BlockAffinity, state: AffinityState) -> StoreValue {
    StoreValue::BlockAffinity(BlockAffinity { state, ..affinity.clone() })
}

fn set_state(
    owner: &BlockOwner,
    cidr: IpNet,
    affinity: &VersionedValue<BlockAffinity>,
    state: AffinityState,
) -> ReversibleStep {
    ReversibleStep::update(
        affinity_key(owner, cidr),
        StoreValue::BlockAffinity(affinity.value.clone()),
        in_state(&affinity.value, state),
        affinity.revision.clone(),
    )
}

fn confirmed(
    owner: &BlockOwner,
    cidr: IpNet,
    affinity: &BlockAffinity,
    expected: ExpectedRevision,
) -> OperationStep {
    let value = in_state(affinity, AffinityState::Confirmed);
    OperationStep::Update { key: affinity_key(owner, cidr), value, expected }
}

fn delete_affinity(owner: &BlockOwner, cidr: IpNet, expected: ExpectedRevision) -> OperationStep {
    OperationStep::Delete { key: affinity_key(owner, cidr), expected }
}
