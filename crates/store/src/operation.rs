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

use crate::{Change, Client, Entry, Error, Result, Revision};
use tortie_model::{Key, Value};

/// Expected state of the entry that a step changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    At(Revision),
    /// The version that an earlier step of the same operation wrote.
    Written,
}

#[derive(Clone, Debug)]
pub enum Step {
    Create { key: Key, value: Value },
    Update { key: Key, value: Value, expected: Expected },
    Delete { key: Key, expected: Expected },
}

/// A step and the step that undoes it.
#[derive(Clone, Debug)]
pub struct Reversible {
    step: Step,
    undo: Step,
}

#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// Entries that must be unchanged. Only a transaction guarantees this, so correctness must not depend on it: the
    /// checks only detect a stale cache before anything is written.
    pub checks: Vec<(Key, Revision)>,
    pub prepare: Vec<Reversible>,
    /// With more than one step, each must be safe alone: without transactions a later one may be refused after an
    /// earlier one was written.
    pub commit: Vec<Step>,
    pub finish: Vec<Step>,
}

/// Result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Done(Written),
    /// Another client was faster.
    Refused(Refusal),
}

/// The first entry of an operation that was not as expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub key: Key,
    /// The current entry, if the store returned it with the refusal; otherwise it has to be read.
    pub current: Option<Box<Entry>>,
}

/// Revisions of the entries after an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    Together(Revision),
    Each {
        revisions: Vec<(Key, Revision)>,
        /// Entries of the `finish` steps that another client has changed in between.
        unfinished: Vec<Key>,
    },
}

/// A conditional write of one entry, which every backend supports.
pub trait CompareAndSwap {
    fn write(&self, change: &Change) -> impl Future<Output = Result<Revision>> + Send;
}

impl Step {
    pub fn key(&self) -> &Key {
        match self {
            Step::Create { key, .. } | Step::Update { key, .. } | Step::Delete { key, .. } => key,
        }
    }

    /// Converts the step; `None` if it depends on an entry that no earlier step wrote.
    fn into_change(self) -> Option<Change> {
        match self {
            Step::Create { key, value } => Some(Change::Create { key, value }),
            Step::Update { key, value, expected: Expected::At(revision) } => {
                Some(Change::Update { key, value, revision })
            }
            Step::Delete { key, expected: Expected::At(revision) } => Some(Change::Delete { key, revision }),
            Step::Update { expected: Expected::Written, .. }
            | Step::Delete { expected: Expected::Written, .. } => None,
        }
    }

    /// Converts the step with its revision filled in; `None` if the entry that it depends on was not written.
    fn change(&self, revision_of: impl Fn(&Key) -> Option<Revision>) -> Option<Change> {
        let find = |key: &Key, expected: &Expected| match expected {
            Expected::At(revision) => Some(revision.clone()),
            Expected::Written => revision_of(key),
        };
        Some(match self {
            Step::Create { key, value } => Change::Create { key: key.clone(), value: value.clone() },
            Step::Update { key, value, expected } => {
                let revision = find(key, expected)?;
                Change::Update { key: key.clone(), value: value.clone(), revision }
            }
            Step::Delete { key, expected } => {
                Change::Delete { key: key.clone(), revision: find(key, expected)? }
            }
        })
    }
}

impl Reversible {
    pub fn create(key: Key, value: Value) -> Reversible {
        let undo = Step::Delete { key: key.clone(), expected: Expected::Written };
        Reversible { step: Step::Create { key, value }, undo }
    }

    pub fn update(key: Key, from: Value, to: Value, revision: Revision) -> Reversible {
        let undo = Step::Update { key: key.clone(), value: from, expected: Expected::Written };
        Reversible { step: Step::Update { key, value: to, expected: Expected::At(revision) }, undo }
    }
}

impl Operation {
    /// Creates an operation with a single write.
    pub fn one(step: Step) -> Operation {
        Operation { commit: vec![step], ..Operation::default() }
    }

    /// Returns the changes of one transaction: each entry is written once, with its last value, conditional on the
    /// state that its first step expects.
    pub fn fold(self) -> Vec<Change> {
        let Operation { checks, prepare, commit, finish } = self;
        let mut changes: Vec<Change> = Vec::new();
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
                changes.push(Change::Keep { key, revision });
            }
        }
        changes
    }
}

/// Merges a further step on the same entry into a change; `None` if they cancel out.
fn merge(first: Change, then: Step) -> Option<Change> {
    Some(match (first, then) {
        (Change::Create { key, .. }, Step::Update { value, .. } | Step::Create { value, .. }) => {
            Change::Create { key, value }
        }
        (Change::Create { .. }, Step::Delete { .. }) => return None,
        (
            Change::Update { key, revision, .. }
            | Change::Keep { key, revision }
            | Change::Delete { key, revision },
            Step::Update { value, .. } | Step::Create { value, .. },
        ) => Change::Update { key, value, revision },
        (
            Change::Update { key, revision, .. }
            | Change::Keep { key, revision }
            | Change::Delete { key, revision },
            Step::Delete { .. },
        ) => Change::Delete { key, revision },
    })
}

impl From<Key> for Refusal {
    fn from(key: Key) -> Refusal {
        Refusal { key, current: None }
    }
}

impl Written {
    /// Returns the revision of an entry that the operation wrote.
    pub fn revision(&self, key: &Key) -> Option<Revision> {
        match self {
            Written::Together(revision) => Some(revision.clone()),
            Written::Each { revisions, .. } => revisions
                .iter()
                .rev()
                .find(|(written, _)| written == key)
                .map(|(_, revision)| revision.clone()),
        }
    }

    pub fn unfinished(&self) -> &[Key] {
        match self {
            Written::Together(_) => &[],
            Written::Each { unfinished, .. } => unfinished,
        }
    }
}

/// Executes an operation step by step.
pub async fn one_by_one(store: &impl CompareAndSwap, operation: &Operation) -> Result<Outcome> {
    let mut revisions: Vec<(Key, Revision)> = Vec::new();
    for (done, Reversible { step, .. }) in operation.prepare.iter().enumerate() {
        if let Some(refused) = attempt(store, step, &mut revisions).await? {
            undo(store, &operation.prepare[..done], &mut revisions).await?;
            return Ok(Outcome::Refused(refused.into()));
        }
    }
    for (done, step) in operation.commit.iter().enumerate() {
        if let Some(refused) = attempt(store, step, &mut revisions).await? {
            if done == 0 {
                undo(store, &operation.prepare, &mut revisions).await?;
            }
            return Ok(Outcome::Refused(refused.into()));
        }
    }
    let mut unfinished = Vec::new();
    for step in &operation.finish {
        if let Some(refused) = attempt(store, step, &mut revisions).await? {
            revisions.retain(|(key, _)| *key != refused);
            unfinished.push(refused);
        }
    }
    Ok(Outcome::Done(Written::Each { revisions, unfinished }))
}

/// Undoes steps in reverse order. Entries that another client has changed since are left alone.
async fn undo(
    store: &impl CompareAndSwap,
    prepared: &[Reversible],
    revisions: &mut Vec<(Key, Revision)>,
) -> Result<()> {
    for Reversible { undo, .. } in prepared.iter().rev() {
        attempt(store, undo, revisions).await?;
    }
    Ok(())
}

/// Executes a step. Returns its key if the entry was not as expected.
async fn attempt(
    store: &impl CompareAndSwap,
    step: &Step,
    revisions: &mut Vec<(Key, Revision)>,
) -> Result<Option<Key>> {
    let written = |key: &Key| {
        revisions.iter().rev().find(|(known, _)| known == key).map(|(_, revision)| revision.clone())
    };
    let Some(change) = step.change(written) else { return Ok(Some(step.key().clone())) };
    match store.write(&change).await {
        Ok(revision) => {
            revisions.push((step.key().clone(), revision));
            Ok(None)
        }
        Err(error) if is_refusal(&error) => Ok(Some(step.key().clone())),
        Err(error) => Err(error),
    }
}

/// Returns whether the error means that the entry was not as expected.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::AlreadyExists { .. } | Error::DoesNotExist { .. } | Error::Conflict { .. })
}

impl CompareAndSwap for Client {
    async fn write(&self, change: &Change) -> Result<Revision> {
        match change {
            Change::Create { key, value } => Ok(self.create(key, value).await?.revision),
            Change::Update { key, value, revision } => Ok(self.update(key, value, revision).await?.revision),
            Change::Delete { key, revision } => Ok(self.delete(key, Some(revision)).await?.revision),
            Change::Keep { key, revision } => match self.get(key).await? {
                entry if entry.revision == *revision => Ok(entry.revision),
                _ => Err(Error::Conflict { id: key.to_string(), current: None }),
            },
        }
    }
}

impl Client {
    /// Executes an operation, in one transaction if the store supports it.
    pub async fn carry_out(&self, operation: Operation) -> Result<Outcome> {
        let Some(transactions) = self.transactions() else { return one_by_one(self, &operation).await };
        transactions.carry_out(&operation.fold()).await
    }
}

#[cfg(test)]
mod tests;
