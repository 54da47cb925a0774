//! A change of several entries as ordered steps, each of which is safe on its own.
//!
//! A store with transactions applies the steps folded into one transaction; any other store executes them one by one,
//! each as a compare-and-swap. A process that stops at any step must leave a state that the next operation on the same
//! entries repairs: this determines the order of the steps.
//!
//! ```text
//! prepare   announce the change; undone if the commit is refused
//! commit    the decisive write
//! finish    clean up; anything left undone is harmless
//! ```

use crate::{EntryChange, Revision, StoreClient, StoreEntry, StoreError, StoreResult};
use tortie_model::{StoreKey, StoreValue};

/// Expected state of the entry that a step changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedRevision {
    At(Revision),
    /// The version that an earlier step of the same operation wrote.
    Written,
}

#[derive(Clone, Debug)]
pub enum OperationStep {
    Create { key: StoreKey, value: StoreValue },
    Update { key: StoreKey, value: StoreValue, expected: ExpectedRevision },
    Delete { key: StoreKey, expected: ExpectedRevision },
}

/// A step and the step that undoes it.
#[derive(Clone, Debug)]
pub struct ReversibleStep {
    step: OperationStep,
    undo: OperationStep,
}

#[derive(Clone, Debug, Default)]
pub struct StoreOperation {
    /// Entries that must be unchanged. Only a transaction guarantees this, so correctness must not depend on it: the
    /// checks only detect a stale cache before anything is written.
    pub checks: Vec<(StoreKey, Revision)>,
    pub prepare: Vec<ReversibleStep>,
    /// With more than one step, each must be safe alone: without transactions a later one may be refused after an
    /// earlier one was written.
    pub commit: Vec<OperationStep>,
    pub finish: Vec<OperationStep>,
}

/// Result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationOutcome {
    Done(WrittenRevisions),
    /// Another client was faster.
    Refused(OperationRefusal),
}

/// The first entry of an operation that was not as expected.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationRefusal {
    pub key: StoreKey,
    /// The current entry, if the store returned it with the refusal; otherwise it has to be read.
    pub current: Option<Box<StoreEntry>>,
}

/// Revisions of the entries after an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum WrittenRevisions {
    Together(Revision),
    Each {
        revisions: Vec<(StoreKey, Revision)>,
        /// Entries of the `finish` steps that another client has changed in between.
        unfinished: Vec<StoreKey>,
    },
}

/// A conditional write of one entry, which every backend supports.
pub(crate) trait CompareAndSwap {
    fn write(&self, change: &EntryChange) -> impl Future<Output = StoreResult<Revision>> + Send;
}

impl ExpectedRevision {
    fn resolve(&self, key: &StoreKey, written: &[(StoreKey, Revision)]) -> Option<Revision> {
        match self {
            ExpectedRevision::At(revision) => Some(revision.clone()),
            ExpectedRevision::Written => find_last(written, key),
        }
    }
}

impl OperationStep {
    pub fn key(&self) -> &StoreKey {
        match self {
            OperationStep::Create { key, .. }
            | OperationStep::Update { key, .. }
            | OperationStep::Delete { key, .. } => key,
        }
    }

    /// Converts the step; `None` if it depends on an entry that no earlier step wrote.
    fn into_change(self) -> Option<EntryChange> {
        match self {
            OperationStep::Create { key, value } => Some(EntryChange::Create { key, value }),
            OperationStep::Update { key, value, expected: ExpectedRevision::At(revision) } => {
                Some(EntryChange::Update { key, value, revision })
            }
            OperationStep::Delete { key, expected: ExpectedRevision::At(revision) } => {
                Some(EntryChange::Delete { key, revision })
            }
            OperationStep::Update { expected: ExpectedRevision::Written, .. }
            | OperationStep::Delete { expected: ExpectedRevision::Written, .. } => None,
        }
    }

    /// Converts the step with its revision filled in; `None` if the entry that it depends on was not written.
    fn to_change(&self, written: &[(StoreKey, Revision)]) -> Option<EntryChange> {
        Some(match self {
            OperationStep::Create { key, value } => {
                EntryChange::Create { key: key.clone(), value: value.clone() }
            }
            OperationStep::Update { key, value, expected } => {
                let revision = expected.resolve(key, written)?;
                EntryChange::Update { key: key.clone(), value: value.clone(), revision }
            }
            OperationStep::Delete { key, expected } => {
                EntryChange::Delete { key: key.clone(), revision: expected.resolve(key, written)? }
            }
        })
    }
}

impl ReversibleStep {
    pub fn create(key: StoreKey, value: StoreValue) -> ReversibleStep {
        let undo = OperationStep::Delete { key: key.clone(), expected: ExpectedRevision::Written };
        ReversibleStep { step: OperationStep::Create { key, value }, undo }
    }

    pub fn update(key: StoreKey, from: StoreValue, to: StoreValue, revision: Revision) -> ReversibleStep {
        let undo =
            OperationStep::Update { key: key.clone(), value: from, expected: ExpectedRevision::Written };
        ReversibleStep {
            step: OperationStep::Update { key, value: to, expected: ExpectedRevision::At(revision) },
            undo,
        }
    }
}

impl StoreOperation {
    /// Creates an operation with a single write.
    pub fn one(step: OperationStep) -> StoreOperation {
        StoreOperation { commit: vec![step], ..StoreOperation::default() }
    }

    /// Returns the changes of one transaction: each entry is written once, with its last value, conditional on the
    /// state that its first step expects.
    pub fn fold(self) -> Vec<EntryChange> {
        let StoreOperation { checks, prepare, commit, finish } = self;
        let mut changes: Vec<EntryChange> = Vec::new();
        for step in prepare.into_iter().map(|reversible| reversible.step).chain(commit).chain(finish) {
            match changes.iter().position(|change| change.key() == step.key()) {
                // This operation itself created or read the entry: only the value changes.
                Some(index) => {
                    let earlier = changes.remove(index);
                    if let Some(change) = merge(earlier, step) {
                        changes.insert(index, change);
                    }
                }
                None => changes.extend(step.into_change()),
            }
        }
        for (key, revision) in checks {
            if !changes.iter().any(|change| *change.key() == key) {
                changes.push(EntryChange::Keep { key, revision });
            }
        }
        changes
    }
}

/// Merges a further step on the same entry into a change; `None` if they cancel out.
fn merge(first: EntryChange, then: OperationStep) -> Option<EntryChange> {
    Some(match (first, then) {
        (
            EntryChange::Create { key, .. },
            OperationStep::Update { value, .. } | OperationStep::Create { value, .. },
        ) => EntryChange::Create { key, value },
        (EntryChange::Create { .. }, OperationStep::Delete { .. }) => return None,
        (
            EntryChange::Update { key, revision, .. }
            | EntryChange::Keep { key, revision }
            | EntryChange::Delete { key, revision },
            OperationStep::Update { value, .. } | OperationStep::Create { value, .. },
        ) => EntryChange::Update { key, value, revision },
        (
            EntryChange::Update { key, revision, .. }
            | EntryChange::Keep { key, revision }
            | EntryChange::Delete { key, revision },
            OperationStep::Delete { .. },
        ) => EntryChange::Delete { key, revision },
    })
}

impl From<StoreKey> for OperationRefusal {
    fn from(key: StoreKey) -> OperationRefusal {
        OperationRefusal { key, current: None }
    }
}

impl WrittenRevisions {
    /// Returns the revision of an entry that the operation wrote.
    pub fn revision(&self, key: &StoreKey) -> Option<Revision> {
        match self {
            WrittenRevisions::Together(revision) => Some(revision.clone()),
            WrittenRevisions::Each { revisions, .. } => find_last(revisions, key),
        }
    }

    pub fn unfinished(&self) -> &[StoreKey] {
        match self {
            WrittenRevisions::Together(_) => &[],
            WrittenRevisions::Each { unfinished, .. } => unfinished,
        }
    }
}

/// Returns the revision that was written last for a key.
fn find_last(written: &[(StoreKey, Revision)], key: &StoreKey) -> Option<Revision> {
    written.iter().rev().find(|(known, _)| known == key).map(|(_, revision)| revision.clone())
}

/// Executes an operation step by step.
pub(crate) async fn one_by_one(
    store: &impl CompareAndSwap,
    operation: &StoreOperation,
) -> StoreResult<OperationOutcome> {
    let mut revisions: Vec<(StoreKey, Revision)> = Vec::new();
    for (done, ReversibleStep { step, .. }) in operation.prepare.iter().enumerate() {
        if let Some(refused) = attempt(store, step, &mut revisions).await? {
            undo(store, &operation.prepare[..done], &mut revisions).await?;
            return Ok(OperationOutcome::Refused(refused.into()));
        }
    }
    for (done, step) in operation.commit.iter().enumerate() {
        if let Some(refused) = attempt(store, step, &mut revisions).await? {
            if done == 0 {
                undo(store, &operation.prepare, &mut revisions).await?;
            }
            return Ok(OperationOutcome::Refused(refused.into()));
        }
    }
    let mut unfinished = Vec::new();
    for step in &operation.finish {
        if let Some(refused) = attempt(store, step, &mut revisions).await? {
            revisions.retain(|(key, _)| *key != refused);
            unfinished.push(refused);
        }
    }
    Ok(OperationOutcome::Done(WrittenRevisions::Each { revisions, unfinished }))
}

/// Undoes steps in reverse order. Entries that another client has changed since are left alone.
async fn undo(
    store: &impl CompareAndSwap,
    prepared: &[ReversibleStep],
    revisions: &mut Vec<(StoreKey, Revision)>,
) -> StoreResult<()> {
    for ReversibleStep { undo, .. } in prepared.iter().rev() {
        attempt(store, undo, revisions).await?;
    }
    Ok(())
}

/// Executes a step. Returns its key if the entry was not as expected.
async fn attempt(
    store: &impl CompareAndSwap,
    step: &OperationStep,
    revisions: &mut Vec<(StoreKey, Revision)>,
) -> StoreResult<Option<StoreKey>> {
    let Some(change) = step.to_change(revisions) else { return Ok(Some(step.key().clone())) };
    match store.write(&change).await {
        Ok(revision) => {
            revisions.push((step.key().clone(), revision));
            Ok(None)
        }
        Err(error) if error.is_lost_race() => Ok(Some(step.key().clone())),
        Err(error) => Err(error),
    }
}

impl CompareAndSwap for StoreClient {
    async fn write(&self, change: &EntryChange) -> StoreResult<Revision> {
        match change {
            EntryChange::Create { key, value } => Ok(self.create(key, value).await?.revision),
            EntryChange::Update { key, value, revision } => {
                Ok(self.update(key, value, revision).await?.revision)
            }
            EntryChange::Delete { key, revision } => Ok(self.delete(key, Some(revision)).await?.revision),
            EntryChange::Keep { key, revision } => match self.get(key).await? {
                entry if entry.revision == *revision => Ok(entry.revision),
                _ => Err(StoreError::Conflict { id: key.to_string(), current: None }),
            },
        }
    }
}

#[cfg(test)]
mod tests;
