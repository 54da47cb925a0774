//! What happens to a node, and what has to be done about it. Both are plain data, so that what happened can be written
//! down and replayed without a kernel.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_model::{FeedEvent, Key, Revision, Value};
use tortie_plan::{Plan, Settings, Update, WorkloadId};

/// Whoever waits for an answer, by number. The task keeps the channel that the answer goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WaiterId(pub u64);

/// Input of the [`Core`](super::Core). Every sequence of events is valid.
#[derive(Clone, Debug, PartialEq)]
// Nearly every event is a put: boxing it would cost an allocation each to make the rare ones smaller.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// From the datastore.
    Feed(FeedEvent),
    /// CNI has attached a workload: program it, and keep it whatever the datastore says.
    Attach {
        waiter: WaiterId,
        key: Key,
        value: Box<Value>,
        /// Written to the datastore just before the endpoint; news of it may still be on the way.
        profile: Option<String>,
    },
    /// CNI detaches a workload, whose endpoint it deletes from the datastore at this revision.
    Detach { waiter: WaiterId, key: Key, revision: Option<Revision> },
    /// A workload of the datastore is attached by CNI: keep it whatever the datastore says from now on.
    Hold { waiter: WaiterId, key: Key },
    /// BGP has chosen other routes.
    Learnt { routes: Vec<LearntRoute>, complete: bool },
    /// Machines that are on their way here have said that they run.
    Announced(Vec<WorkloadId>),
    /// The dataplane runs with the plan it was given.
    Started,
    /// The dataplane has applied a batch, but for these.
    Applied(Vec<Failure>),
    /// The dataplane has ended or does not start.
    Stopped(String),
    /// What was taken in shall take effect now.
    Turn,
}

/// A route that BGP has chosen, or chosen no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearntRoute {
    pub destination: IpNet,
    pub route: Option<NextHops>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextHops {
    pub next_hops: Vec<IpAddr>,
    pub metric: u32,
}

/// What the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    #[serde(with = "super::json::concerns")]
    pub concerns: Concerns,
    /// In words: `route 10.0.0.1/32`.
    pub object: String,
    pub reason: String,
}

/// Which workloads do not have what they should have because of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// Every workload of the node: the kernel cannot be read, or refuses the table that enforces policy.
    Everything,
    /// None for an object that belongs to the node alone.
    Workloads(BTreeSet<WorkloadId>),
}

/// Why a request is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the datastore has not been read completely yet")]
    NotInSync,
    #[error("the dataplane does not run: {0}")]
    Dataplane(String),
    #[error("the kernel refused {object}: {reason}")]
    Kernel { object: String, reason: String },
    #[error("the endpoint has no effect: {0}")]
    Endpoint(String),
}

/// Output of the [`Core`](super::Core), to be carried out in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start a dataplane, in the place of the one that runs, and give it the plan. Answered by [`Event::Started`] or
    /// [`Event::Stopped`].
    Start {
        settings: Box<Settings>,
        plan: Box<Plan>,
    },
    /// Have the dataplane make these changes, with other settings if some are given. Answered by [`Event::Applied`] or
    /// [`Event::Stopped`].
    Apply {
        settings: Option<Box<Settings>>,
        updates: Vec<Update>,
    },
    /// The kernel has this now: BGP may advertise it.
    Advertise(Vec<Update>),
    Answer {
        waiter: WaiterId,
        outcome: Result<(), Refusal>,
    },
}
