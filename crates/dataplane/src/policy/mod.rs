//! Enforces the plan's policy in the kernel. Contains the interface that all policy engines share: they receive the
//! plan, make the kernel enforce it, and report failures, counters and sizes. Types of one engine stay in its own
//! module.

mod counters;
mod denied_flows;
mod log_group;
pub mod nft;

pub use counters::{CountedStage, CountedVerdict, CounterSubject, RuleCounter};
pub use denied_flows::DeniedFlows;
#[doc(hidden)]
pub use log_group::describe as describe_packet;
pub use log_group::{LoggedPacket, follow_log_group};
#[doc(hidden)]
pub use nft::describe_flow_message;
pub use nft::{guarded_endpoints, read_counters, remove_host_translation, remove_policy};

use crate::error::DataplaneResult;
use crate::failure::KernelFailure;
use crate::flow::FlowSource;
use crate::netns::Netns;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::BitOrAssign;
use std::time::Duration;
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate};

/// NFLOG group that receives copies of the packets that a rule logs, with the identity of the rule as their prefix.
pub const LOG_GROUP: u16 = 3;

/// Statistics about the enforced policy, for monitoring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Kernel rules; one policy rule may need several.
    pub rules: usize,
    pub sets: usize,
    /// Transactions that change the kernel's policy, and those of them that the kernel rejected.
    pub writes: u64,
    pub refused_writes: u64,
    /// Complete reads of the kernel's policy, and those of them that failed.
    pub reads: u64,
    pub failed_reads: u64,
    pub engine: EngineStats,
}

/// Statistics that only one engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineStats {
    Nftables { chains: usize, maps: usize },
}

impl Default for EngineStats {
    fn default() -> EngineStats {
        EngineStats::Nftables { chains: 0, maps: 0 }
    }
}

/// An endpoint that the kernel's policy guards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GuardedEndpoint {
    /// Name of its interface.
    Workload(String),
    /// Name of its interface; `None` for all interfaces.
    Host(Option<String>),
}

/// The interfaces of flows that bypass the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowInterfaces {
    /// Interfaces that packets arrive on.
    pub devices: BTreeSet<String>,
    /// Interfaces of workloads whose packets have to be counted or changed one by one.
    pub seen: BTreeSet<String>,
}

/// Parts of the kernel's policy that other programs have changed, or may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyEvent {
    /// Objects that the engine has written.
    pub own: bool,
    /// Objects of other programs that take part in the decision about packets.
    pub foreign: bool,
}

impl PolicyEvent {
    pub const EVERYTHING: PolicyEvent = PolicyEvent { own: true, foreign: true };
}

impl BitOrAssign for PolicyEvent {
    fn bitor_assign(&mut self, other: PolicyEvent) {
        self.own |= other.own;
        self.foreign |= other.foreign;
    }
}

/// An engine that makes the kernel enforce policy.
pub trait PolicyEngine: Send + Sync {
    fn configure(&mut self, settings: DataplaneSettings);

    fn replace(&mut self, plan: &NodePlan);

    fn apply(&mut self, update: &PlanUpdate);

    /// Makes the kernel enforce the plan, and returns the failures. Changes nothing before the first complete plan.
    fn converge(&mut self, now: Duration) -> BoxFuture<'_, Vec<KernelFailure>>;

    /// Waits until another program has changed the kernel's policy, or may have.
    fn next_event(&mut self) -> BoxFuture<'_, DataplaneResult<PolicyEvent>>;

    /// Marks kernel state as stale that another program may have changed.
    fn invalidate(&mut self, event: PolicyEvent);

    /// Returns whether [`PolicyEngine::set_interfaces`] has any effect.
    fn needs_interfaces(&self) -> bool;

    /// Sets the interfaces that do not belong to workloads, and their addresses.
    fn set_interfaces(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>);

    /// Returns whether [`PolicyEngine::set_flow_interfaces`] has any effect.
    fn offloads(&self) -> bool;

    fn set_flow_interfaces(&mut self, interfaces: FlowInterfaces);

    /// Returns whether the kernel enforces the complete plan, except for single objects that it rejected: endpoints that depend
    /// on those are closed.
    fn is_settled(&self) -> bool;

    /// Returns the reason if the kernel does not enforce the plan at all.
    fn not_enforced(&self) -> Option<KernelFailure>;

    /// Returns the single objects that the kernel rejects; endpoints that depend on them are closed.
    fn refused(&self) -> Vec<KernelFailure>;

    /// Returns the objects of other programs that may drop packets which policy allows, because the engine cannot
    /// prevent it.
    fn overruled(&self) -> Vec<KernelFailure>;

    /// Returns the reason why flows are not offloaded although the settings request it.
    fn not_offloaded(&self) -> Option<KernelFailure>;

    /// Returns the host endpoints of the plan with the interfaces of each; `None` means all interfaces.
    fn host_endpoints(&self) -> BTreeMap<String, Option<Vec<String>>>;

    fn stats(&self) -> PolicyStats;

    /// Returns the source of flow records of this engine, which [`PolicyEngine::converge`] starts and stops.
    fn flow_source(&mut self) -> &mut dyn FlowSource;
}

/// Opens the policy engine of a namespace. It changes nothing before it has a complete plan.
pub fn open_engine(netns: &Netns, settings: DataplaneSettings) -> DataplaneResult<Box<dyn PolicyEngine>> {
    Ok(Box::new(nft::NftablesEngine::open(netns, settings)?))
}
