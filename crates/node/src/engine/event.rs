//! The input events and output actions of the core. Both are plain data, so that events can be recorded and replayed
//! without a kernel.

use super::consumers::PlanChange;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_model::{FeedEvent, Revision, StoreKey, StoreValue};
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate, WorkloadId};

/// Identifies a request that waits for an answer. The engine holds the channel for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WaiterId(pub u64);

/// Input of the [`Core`](super::Core). Every sequence of events is valid.
#[derive(Clone, Debug, PartialEq)]
// Nearly every event is a put: boxing it would cost an allocation each to make the rare ones smaller.
#[allow(clippy::large_enum_variant)]
pub enum EngineEvent {
    /// An event of the datastore.
    Feed(FeedEvent),
    /// CNI has attached a workload: program it, and keep it even if the datastore deletes it.
    Attach {
        waiter: WaiterId,
        key: StoreKey,
        value: Box<StoreValue>,
        /// A profile that was written to the datastore just before the endpoint. The feed may not have delivered it
        /// yet.
        profile: Option<String>,
    },
    /// CNI detaches a workload, whose endpoint it deletes from the datastore at this revision.
    Detach { waiter: WaiterId, key: StoreKey, revision: Option<Revision> },
    /// CNI has adopted a workload of the datastore: keep it even if the datastore deletes it from now on.
    Hold { waiter: WaiterId, key: StoreKey },
    /// BGP has selected or withdrawn routes.
    Learnt { routes: Vec<LearntRoute>, complete: bool },
    /// Virtual machines in live migration to this node have announced themselves.
    Announced(Vec<WorkloadId>),
    /// Proxies of workloads have become ready to enforce HTTP conditions, or no longer are.
    HttpProxies(Vec<HttpProxyChange>),
    /// The dataplane runs and has applied the initial plan.
    Started,
    /// The dataplane has applied a batch except for these failures.
    Applied(Vec<ApplyFailure>),
    /// The dataplane has ended or could not be started.
    Stopped(String),
    /// End of a batch of events: compute the changes and send them to the dataplane.
    Turn,
}

/// A report about the proxy of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpProxyChange {
    #[serde(with = "super::json::WorkloadIdFields")]
    pub workload: WorkloadId,
    /// It receives the policy of the workload and is in sync.
    pub live: bool,
}

/// A route that BGP has selected, or None after its withdrawal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearntRoute {
    pub destination: IpNet,
    pub route: Option<LearntNextHops>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearntNextHops {
    pub next_hops: Vec<IpAddr>,
    pub metric: u32,
}

/// An object that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyFailure {
    #[serde(with = "super::json::concerns")]
    pub concerns: FailureScope,
    /// Description of the object, for example `route 10.0.0.1/32`.
    pub object: String,
    pub reason: String,
}

/// The workloads that are incomplete because of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// Every workload of the node: the kernel cannot be read, or it refuses the table that enforces policy.
    Everything,
    /// These workloads. Empty for an object that does not belong to a workload.
    Workloads(BTreeSet<WorkloadId>),
}

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestRefusal {
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EngineAction {
    /// Start a dataplane with this plan, and stop the one that runs. Followed by [`EngineEvent::Started`] or
    /// [`EngineEvent::Stopped`].
    Start {
        settings: Box<DataplaneSettings>,
        plan: Box<NodePlan>,
    },
    /// Apply these updates, and new settings if given. Followed by [`EngineEvent::Applied`] or [`EngineEvent::Stopped`].
    Apply {
        settings: Option<Box<DataplaneSettings>>,
        updates: Vec<PlanUpdate>,
    },
    /// Send a change of the plan to a consumer, which is at its stage.
    Publish {
        consumer: &'static str,
        change: PlanChange,
    },
    Answer {
        waiter: WaiterId,
        outcome: Result<(), RequestRefusal>,
    },
}
