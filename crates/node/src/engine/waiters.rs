//! Requests that wait for the kernel. Each is answered exactly once.

use super::event::{ApplyFailure, FailureScope, RequestRefusal, WaiterId};
use std::collections::BTreeMap;
use std::time::Duration;
use tortie_model::StoreKey;
use tortie_plan::WorkloadId;

/// Maximum wait for a profile that was written just before the endpoint. Without it the endpoint is programmed, but
/// its traffic is denied.
const PROFILE_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct WaitingRequest {
    pub wanted: AwaitedOutcome,
    since: Duration,
    /// Whether the request is part of the batch that the dataplane is applying.
    in_batch: bool,
}

#[derive(Clone, Debug)]
pub enum AwaitedOutcome {
    Attached {
        key: StoreKey,
        /// `None` if the endpoint is not a valid workload.
        workload: Option<WorkloadId>,
        profile: Option<String>,
    },
    Detached,
}

#[derive(Debug, Default)]
pub struct WaitingRequests(BTreeMap<WaiterId, WaitingRequest>);

impl WaitingRequests {
    pub fn contains(&self, id: WaiterId) -> bool {
        self.0.contains_key(&id)
    }

    pub fn insert(&mut self, id: WaiterId, wanted: AwaitedOutcome, now: Duration) {
        self.0.insert(id, WaitingRequest { wanted, since: now, in_batch: false });
    }

    pub fn remove(&mut self, id: WaiterId) {
        self.0.remove(&id);
    }

    /// Returns the requests that the next batch can satisfy, that is, those that do not wait for a profile.
    pub fn ready(
        &self,
        now: Duration,
        has_profile: impl Fn(&str) -> bool,
    ) -> Vec<(WaiterId, AwaitedOutcome)> {
        let ready = self.0.iter().filter(|(_, waiter)| match &waiter.wanted {
            AwaitedOutcome::Attached { profile: Some(profile), .. } => {
                has_profile(profile) || now.saturating_sub(waiter.since) > PROFILE_WAIT_TIMEOUT
            }
            _ => true,
        });
        ready.map(|(id, waiter)| (*id, waiter.wanted.clone())).collect()
    }

    pub fn put_in_batch(&mut self, id: WaiterId) {
        if let Some(waiter) = self.0.get_mut(&id) {
            waiter.in_batch = true;
        }
    }

    /// Removes and returns all requests.
    pub fn drain(&mut self) -> Vec<WaiterId> {
        std::mem::take(&mut self.0).into_keys().collect()
    }

    /// Removes the requests of the batch and returns each with its outcome.
    pub fn finish(&mut self, failures: &[ApplyFailure]) -> Vec<(WaiterId, Result<(), RequestRefusal>)> {
        let done = self.0.extract_if(.., |_, waiter| waiter.in_batch);
        done.map(|(id, waiter)| (id, evaluate_outcome(&waiter.wanted, failures))).collect()
    }
}

/// Returns the outcome of a request. Failures concern only attach requests: the routes and rules of a removed
/// workload are removed with it, possibly after a retry.
fn evaluate_outcome(wanted: &AwaitedOutcome, failures: &[ApplyFailure]) -> Result<(), RequestRefusal> {
    let AwaitedOutcome::Attached { workload, .. } = wanted else { return Ok(()) };
    let failure = failures.iter().find(|failure| match &failure.concerns {
        FailureScope::Everything => true,
        FailureScope::Workloads(ids) => workload.as_ref().is_some_and(|id| ids.contains(id)),
    });
    match failure {
        Some(ApplyFailure { object, reason, .. }) => {
            Err(RequestRefusal::Kernel { object: object.clone(), reason: reason.clone() })
        }
        None => Ok(()),
    }
}
