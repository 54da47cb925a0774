//! Who waits for the kernel: each is answered exactly once.

use super::event::{Concerns, Failure, Refusal, WaiterId};
use std::collections::BTreeMap;
use std::time::Duration;
use tortie_model::Key;
use tortie_plan::WorkloadId;

/// How long news of a profile that was just written may take. Without it the endpoint is wired but denied.
const PROFILE_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Waiter {
    pub wanted: Wanted,
    since: Duration,
    /// What is waited for is part of the batch that the dataplane works on.
    in_batch: bool,
}

#[derive(Clone, Debug)]
pub enum Wanted {
    Attached {
        key: Key,
        /// None if no workload can be made of the endpoint.
        workload: Option<WorkloadId>,
        profile: Option<String>,
    },
    Detached,
}

#[derive(Debug, Default)]
pub struct Waiters(BTreeMap<WaiterId, Waiter>);

impl Waiters {
    pub fn contains(&self, id: WaiterId) -> bool {
        self.0.contains_key(&id)
    }

    pub fn insert(&mut self, id: WaiterId, wanted: Wanted, now: Duration) {
        self.0.insert(id, Waiter { wanted, since: now, in_batch: false });
    }

    pub fn remove(&mut self, id: WaiterId) {
        self.0.remove(&id);
    }

    /// Those that the next batch can satisfy: nothing that they need is still on the way.
    pub fn ready(&self, now: Duration, has_profile: impl Fn(&str) -> bool) -> Vec<(WaiterId, Wanted)> {
        let ready = |waiter: &Waiter| match &waiter.wanted {
            Wanted::Attached { profile: Some(profile), .. } => {
                has_profile(profile) || now.saturating_sub(waiter.since) > PROFILE_PATIENCE
            }
            _ => true,
        };
        let ready = self.0.iter().filter(|(_, waiter)| ready(waiter));
        ready.map(|(id, waiter)| (*id, waiter.wanted.clone())).collect()
    }

    pub fn put_in_batch(&mut self, id: WaiterId) {
        if let Some(waiter) = self.0.get_mut(&id) {
            waiter.in_batch = true;
        }
    }

    /// Takes out all.
    pub fn drain(&mut self) -> Vec<WaiterId> {
        std::mem::take(&mut self.0).into_keys().collect()
    }

    /// Takes out those of the batch, each with what became of it.
    pub fn finish(&mut self, failures: &[Failure]) -> Vec<(WaiterId, Result<(), Refusal>)> {
        let done = self.0.extract_if(.., |_, waiter| waiter.in_batch);
        done.map(|(id, waiter)| (id, outcome(&waiter.wanted, failures))).collect()
    }
}

/// A workload that goes takes its routes and rules with it, also those that the kernel does not give up at once; so only
/// whoever attaches hears of failures.
fn outcome(wanted: &Wanted, failures: &[Failure]) -> Result<(), Refusal> {
    let Wanted::Attached { workload, .. } = wanted else { return Ok(()) };
    let concerns = |failure: &&Failure| match &failure.concerns {
        Concerns::Everything => true,
        Concerns::Workloads(ids) => workload.as_ref().is_some_and(|id| ids.contains(id)),
    };
    match failures.iter().find(concerns) {
        Some(Failure { object, reason, .. }) => {
            Err(Refusal::Kernel { object: object.clone(), reason: reason.clone() })
        }
        None => Ok(()),
    }
}
