//! Enforces the plan's policy in the kernel. Contains the interface that all policy engines share: they receive the
//! plan, make the kernel enforce it, and report failures, counters and sizes. Types of one engine stay in its own
//! module.

mod counters;
mod denied_flows;
mod log_group;
pub(crate) mod nft;

pub use counters::{CountedStage, CountedVerdict, CounterSubject, RuleCounter};
pub(crate) use denied_flows::DeniedFlows;
#[doc(hidden)]
pub use log_group::describe as describe_packet;
pub use log_group::{LoggedPacket, follow_log_group};
pub(crate) use nft::{ChangedTables, TableEventStream};

use crate::error::DataplaneResult;
use crate::failure::KernelFailure;
use crate::netns::Netns;
use nft::NftablesEngine;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate};

/// NFLOG group that receives copies of the packets that a rule logs, with the identity of the rule as their prefix.
pub(crate) const LOG_GROUP: u16 = 3;

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

/// Returns the counters of all policy rules in a namespace. The node that wrote them need not be running.
pub async fn counters(netns: &Netns) -> DataplaneResult<Vec<RuleCounter>> {
    nft::counters(netns).await
}

/// An endpoint that the kernel's policy guards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GuardedEndpoint {
    /// Name of its interface.
    Workload(String),
    /// Name of its interface; `None` for all interfaces.
    Host(Option<String>),
}

/// Returns the endpoints that the kernel's policy guards in a namespace.
pub(crate) async fn guarded_endpoints(netns: &Netns) -> DataplaneResult<BTreeSet<GuardedEndpoint>> {
    nft::guarded_endpoints(netns).await
}

/// Removes all policy, so that nothing is enforced any more. For hosts that are no longer nodes.
pub async fn remove_policy(netns: &Netns) -> DataplaneResult<()> {
    nft::remove(netns).await
}

/// Removes the translation of packets that the host itself sends, which older versions wrote, and returns the addresses
/// that it concerned.
pub(crate) async fn remove_host_translation(netns: &Netns) -> DataplaneResult<BTreeSet<IpAddr>> {
    nft::remove_host_translation(netns).await
}

/// The interfaces of flows that bypass the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowInterfaces {
    /// Interfaces that packets arrive on.
    pub devices: BTreeSet<String>,
    /// Interfaces of workloads whose packets have to be counted or changed one by one.
    pub seen: BTreeSet<String>,
}

/// The engine that makes the kernel enforce policy.
pub(crate) enum PolicyEngine {
    Nftables(Box<NftablesEngine>),
}

impl PolicyEngine {
    /// Opens the engine and changes nothing yet. The events report when other programs change the kernel's policy.
    pub fn open(
        netns: &Netns,
        settings: DataplaneSettings,
    ) -> DataplaneResult<(PolicyEngine, TableEventStream)> {
        let (nftables, events) = NftablesEngine::open(netns, settings)?;
        Ok((PolicyEngine::Nftables(Box::new(nftables)), events))
    }

    pub fn configure(&mut self, settings: DataplaneSettings) {
        match self {
            PolicyEngine::Nftables(engine) => engine.configure(settings),
        }
    }

    pub fn replace(&mut self, plan: &NodePlan) {
        match self {
            PolicyEngine::Nftables(engine) => engine.replace(plan),
        }
    }

    pub fn apply(&mut self, update: &PlanUpdate) {
        match self {
            PolicyEngine::Nftables(engine) => engine.apply(update),
        }
    }

    /// Makes the kernel enforce the plan, and returns the failures.
    pub async fn converge(&mut self, now: Duration) -> Vec<KernelFailure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.converge(now).await,
        }
    }

    /// Marks kernel state as stale that another program may have changed.
    pub fn invalidate(&mut self, changed: ChangedTables) {
        match self {
            PolicyEngine::Nftables(engine) => engine.invalidate(changed),
        }
    }

    /// Returns the chains of other programs that may drop packets which policy allows, because we cannot insert a rule
    /// there.
    pub fn overruled(&self) -> Vec<KernelFailure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.overruled(),
        }
    }

    /// Whether [`PolicyEngine::interfaces_are`] has any effect.
    pub fn needs_interfaces(&self) -> bool {
        match self {
            PolicyEngine::Nftables(engine) => engine.needs_interfaces(),
        }
    }

    /// Sets the interfaces that do not belong to workloads, and their addresses.
    pub fn interfaces_are(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) {
        match self {
            PolicyEngine::Nftables(engine) => engine.interfaces_are(interfaces),
        }
    }

    /// Whether [`PolicyEngine::flow_interfaces_are`] has any effect.
    pub fn offloads(&self) -> bool {
        match self {
            PolicyEngine::Nftables(engine) => engine.offloads(),
        }
    }

    pub fn flow_interfaces_are(&mut self, interfaces: FlowInterfaces) {
        match self {
            PolicyEngine::Nftables(engine) => engine.flow_interfaces_are(interfaces),
        }
    }

    /// Returns the reason why flows are not offloaded although the settings request it.
    pub fn not_offloaded(&self) -> Option<KernelFailure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.not_offloaded(),
        }
    }

    pub fn stats(&self) -> PolicyStats {
        match self {
            PolicyEngine::Nftables(engine) => engine.stats(),
        }
    }

    /// Returns the single objects that the kernel rejects; chains that depend on them drop all packets.
    pub fn refused(&self) -> Vec<KernelFailure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.refused(),
        }
    }

    /// Returns the reason if the kernel does not enforce the plan at all.
    pub fn not_enforced(&self) -> Option<KernelFailure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.table_failure(),
        }
    }

    /// Returns the host endpoints of the plan with the interfaces of each; `None` means all interfaces.
    pub fn host_endpoints(&self) -> BTreeMap<String, Option<Vec<String>>> {
        match self {
            PolicyEngine::Nftables(engine) => engine.host_endpoints(),
        }
    }

    /// Whether the kernel enforces the complete plan, except for single objects that it rejected: chains that depend on
    /// those drop all packets.
    pub fn is_settled(&self) -> bool {
        match self {
            PolicyEngine::Nftables(engine) => engine.is_settled(),
        }
    }
}
