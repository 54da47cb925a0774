//! One change of a replica, already parsed and of bounded cost, so that checks wait only shortly while it is applied.

use super::sets::MemberIndex;
use std::iter::Peekable;
use std::sync::Arc;
use tortie_plan::{
    PeerLabels, PlanUpdate, PlannedPolicy, PolicyId, ProfileRules, ServiceAccountId, SetId, SetMember,
    WorkloadId, WorkloadPolicy,
};

/// `None` removes the object.
#[derive(Debug)]
pub enum ReplicaChange {
    Set(SetId, Option<MemberIndex>),
    /// Changes an existing set.
    Members {
        set: SetId,
        added: Vec<SetMember>,
        removed: Vec<SetMember>,
    },
    Policy(PolicyId, Option<Arc<PlannedPolicy>>),
    Profile(String, Option<Arc<ProfileRules>>),
    Endpoint(WorkloadId, Option<Box<WorkloadPolicy>>),
    Namespace(String, Option<PeerLabels>),
    ServiceAccount(ServiceAccountId, Option<PeerLabels>),
}

/// Maximum number of set members that one change adds or removes, about a millisecond of work.
pub const MAX_MEMBERS_PER_CHANGE: usize = 4096;

/// Prepares the updates of one message. Sets that are replaced are indexed here, and large changes of sets are split, so
/// that little work is left for [`super::Replica::apply`].
pub fn prepare_changes(updates: Vec<PlanUpdate>) -> Vec<ReplicaChange> {
    let mut changes = Vec::with_capacity(updates.len());
    let mut updates = updates.into_iter().peekable();
    while let Some(update) = updates.next() {
        match update {
            PlanUpdate::Set(id, None) => changes.push(ReplicaChange::Set(id, None)),
            PlanUpdate::Set(id, Some(kind)) => {
                let mut index = MemberIndex::new(kind);
                while let Some(added) = next_additions(&mut updates, &id) {
                    added.into_iter().for_each(|member| {
                        index.insert(member);
                    });
                }
                changes.push(ReplicaChange::Set(id, Some(index)));
            }
            PlanUpdate::Members { set, added, removed } => {
                split_members(&set, &added, &removed, &mut changes)
            }
            PlanUpdate::Policy(id, policy) => changes.push(ReplicaChange::Policy(id, policy)),
            PlanUpdate::Profile(name, profile) => changes.push(ReplicaChange::Profile(name, profile)),
            PlanUpdate::WorkloadPolicy(id, endpoint) => {
                changes.push(ReplicaChange::Endpoint(id, endpoint.map(Box::new)));
            }
            PlanUpdate::Namespace(name, labels) => changes.push(ReplicaChange::Namespace(name, labels)),
            PlanUpdate::ServiceAccount(id, labels) => changes.push(ReplicaChange::ServiceAccount(id, labels)),
            // Policy of a proxy depends on nothing else.
            _ => {}
        }
    }
    changes
}

/// Removes the next update if it only adds members to this set, and returns them.
fn next_additions(
    updates: &mut Peekable<impl Iterator<Item = PlanUpdate>>,
    id: &SetId,
) -> Option<Vec<SetMember>> {
    let next = updates.next_if(
        |next| matches!(next, PlanUpdate::Members { set, removed, .. } if set == id && removed.is_empty()),
    )?;
    match next {
        PlanUpdate::Members { added, .. } => Some(added),
        _ => None,
    }
}

fn split_members(set: &SetId, added: &[SetMember], removed: &[SetMember], changes: &mut Vec<ReplicaChange>) {
    changes.extend(removed.chunks(MAX_MEMBERS_PER_CHANGE).map(|removed| ReplicaChange::Members {
        set: set.clone(),
        added: Vec::new(),
        removed: removed.to_vec(),
    }));
    changes.extend(added.chunks(MAX_MEMBERS_PER_CHANGE).map(|added| ReplicaChange::Members {
        set: set.clone(),
        added: added.to_vec(),
        removed: Vec::new(),
    }));
}
