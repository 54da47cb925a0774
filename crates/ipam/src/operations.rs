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

use crate::records::{Versioned, affinity_key, block_key};
use ipnet::IpNet;
use tortie_model::Value;
use tortie_model::ipam::block;
use tortie_model::ipam::owner::Owner;
use tortie_model::ipam::{AffinityState, Block, BlockAffinity};
use tortie_store::operation::{Expected, Reversible, Step};
use tortie_store::{Operation, Revision};

pub fn create_block(block: &Block) -> Step {
    Step::Create { key: block_key(block.cidr), value: Value::Block(block.clone()) }
}

pub fn update_block(block: &Block, revision: &Revision) -> Step {
    let expected = Expected::At(revision.clone());
    Step::Update { key: block_key(block.cidr), value: Value::Block(block.clone()), expected }
}

pub fn delete_block(cidr: IpNet, revision: &Revision) -> Step {
    Step::Delete { key: block_key(cidr), expected: Expected::At(revision.clone()) }
}

/// Rewrites the block with the next sequence number, so that concurrent writes of the block fail and are retried.
pub fn touch_block(found: &Versioned<Block>) -> Step {
    let mut block = found.value.clone();
    block::advance(&mut block);
    update_block(&block, &found.revision)
}

/// Claims a block for an owner without an affinity to it. `block` creates the block or changes its owner.
pub fn claim(owner: &Owner, cidr: IpNet, block: Step) -> Operation {
    let key = affinity_key(owner, cidr);
    Operation {
        prepare: vec![Reversible::create(key, in_state(&BlockAffinity::default(), AffinityState::Pending))],
        commit: vec![block],
        finish: vec![confirmed(owner, cidr, &BlockAffinity::default(), Expected::Written)],
        ..Operation::default()
    }
}

/// Completes an affinity that exists but is not confirmed, or whose block is missing.
pub fn confirm(owner: &Owner, cidr: IpNet, affinity: &Versioned<BlockAffinity>, block: Step) -> Operation {
    let mut operation = Operation::one(block);
    let mut expected = Expected::At(affinity.revision.clone());
    if affinity.value.state != AffinityState::Pending {
        operation.prepare.push(set_state(owner, cidr, affinity, AffinityState::Pending));
        expected = Expected::Written;
    }
    operation.finish.push(confirmed(owner, cidr, &affinity.value, expected));
    operation
}

/// Claims an empty block that its owner does not use.
pub fn take_over(
    owner: &Owner,
    cidr: IpNet,
    block: Step,
    theirs: Option<(&Owner, &Versioned<BlockAffinity>)>,
) -> Operation {
    let mut operation = claim(owner, cidr, block);
    if let Some((them, affinity)) = theirs {
        operation.prepare.push(set_state(them, cidr, affinity, AffinityState::PendingDeletion));
        operation.finish.push(delete_affinity(them, cidr, Expected::Written));
    }
    operation
}

/// Releases a block of the owner. `block` deletes the block or removes its owner.
pub fn give_up(owner: &Owner, cidr: IpNet, affinity: &Versioned<BlockAffinity>, block: Step) -> Operation {
    Operation {
        prepare: vec![set_state(owner, cidr, affinity, AffinityState::PendingDeletion)],
        commit: vec![block],
        finish: vec![delete_affinity(owner, cidr, Expected::Written)],
        ..Operation::default()
    }
}

/// Deletes an affinity to a block that is missing or has another owner.
pub fn withdraw(owner: &Owner, cidr: IpNet, affinity: &Versioned<BlockAffinity>) -> Operation {
    Operation::one(delete_affinity(owner, cidr, Expected::At(affinity.revision.clone())))
}

/// Assigns addresses: the handle counts them before the block contains them.
pub fn assign(block: Step, handle: Option<Reversible>) -> Operation {
    Operation { prepare: handle.into_iter().collect(), ..Operation::one(block) }
}

/// Releases addresses: the handles count them until the block no longer contains them.
pub fn release(block: Option<Step>, handles: Vec<Step>) -> Operation {
    Operation { commit: block.into_iter().collect(), finish: handles, ..Operation::default() }
}

fn in_state(affinity: &BlockAffinity, state: AffinityState) -> Value {
    Value::BlockAffinity(BlockAffinity { state, ..affinity.clone() })
}

fn set_state(
    owner: &Owner,
    cidr: IpNet,
    affinity: &Versioned<BlockAffinity>,
    state: AffinityState,
) -> Reversible {
    Reversible::update(
        affinity_key(owner, cidr),
        Value::BlockAffinity(affinity.value.clone()),
        in_state(&affinity.value, state),
        affinity.revision.clone(),
    )
}

fn confirmed(owner: &Owner, cidr: IpNet, affinity: &BlockAffinity, expected: Expected) -> Step {
    let value = in_state(affinity, AffinityState::Confirmed);
    Step::Update { key: affinity_key(owner, cidr), value, expected }
}

fn delete_affinity(owner: &Owner, cidr: IpNet, expected: Expected) -> Step {
    Step::Delete { key: affinity_key(owner, cidr), expected }
}
