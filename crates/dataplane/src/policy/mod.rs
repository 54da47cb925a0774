//! Enforcing the plan's policy. What the engines have in common is here: they take the plan, make the kernel judge by it,
//! and say what the kernel refused, what it counted and how much there is. Names of one engine stay in its own room.

mod counters;
mod denied_flows;
mod log_group;
pub(crate) mod nft;

pub use counters::{Counted, RuleCounter, Verdict, When};
pub(crate) use denied_flows::DeniedFlows;
#[cfg(fuzzing)]
pub use log_group::describe as describe_packet;
pub use log_group::{LoggedPacket, follow_log_group};
pub(crate) use nft::{Changed, Events};

use crate::error::Result;
use crate::failure::Failure;
use crate::netns::Netns;
use nft::Nftables;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::{Plan, Settings, Update};

/// Where copies of packets go that a rule logs, with the identity of the rule.
pub(crate) const LOG_GROUP: u16 = 3;

/// Numbers about what is enforced, for whoever watches over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Rules of the kernel; a rule of a policy may be several.
    pub rules: usize,
    pub sets: usize,
    /// Changes of the kernel's policy, and those of them that it refused.
    pub writes: u64,
    pub refused_writes: u64,
    /// How often the whole of the kernel's policy was read, and how often that failed.
    pub reads: u64,
    pub failed_reads: u64,
    pub engine: EngineStats,
}

/// What only one engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineStats {
    Nftables { chains: usize, maps: usize },
}

impl Default for EngineStats {
    fn default() -> EngineStats {
        EngineStats::Nftables { chains: 0, maps: 0 }
    }
}

/// The counters of all rules that the kernel has in a namespace. Whoever wrote them need not run.
pub async fn counters(netns: &Netns) -> Result<Vec<RuleCounter>> {
    nft::counters(netns).await
}

/// An endpoint that the kernel's policy guards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GuardedEndpoint {
    /// By its interface.
    Workload(String),
    /// By its interface; `None` for all interfaces.
    Host(Option<String>),
}

/// The endpoints that the kernel's policy guards in a namespace.
pub(crate) async fn guarded_endpoints(netns: &Netns) -> Result<BTreeSet<GuardedEndpoint>> {
    nft::guarded_endpoints(netns).await
}

/// Takes all policy away: nothing is enforced any more. For hosts that are no longer nodes.
pub async fn remove_policy(netns: &Netns) -> Result<()> {
    nft::remove(netns).await
}

/// Stops translating what the host itself sends, as earlier versions did, and returns the addresses that it concerned.
pub(crate) async fn remove_host_translation(netns: &Netns) -> Result<BTreeSet<IpAddr>> {
    nft::remove_host_translation(netns).await
}

/// The interfaces of connections that go past the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowInterfaces {
    /// Those that packets come in through.
    pub devices: BTreeSet<String>,
    /// Of workloads whose packets are counted or changed one by one.
    pub seen: BTreeSet<String>,
}

/// What makes the kernel enforce policy.
pub(crate) enum PolicyEngine {
    Nftables(Box<Nftables>),
}

impl PolicyEngine {
    /// Changes nothing yet. The events tell when others change the kernel's policy.
    pub fn open(netns: &Netns, settings: Settings) -> Result<(PolicyEngine, Events)> {
        let (nftables, events) = Nftables::open(netns, settings)?;
        Ok((PolicyEngine::Nftables(Box::new(nftables)), events))
    }

    pub fn configure(&mut self, settings: Settings) {
        match self {
            PolicyEngine::Nftables(engine) => engine.configure(settings),
        }
    }

    pub fn replace(&mut self, plan: &Plan) {
        match self {
            PolicyEngine::Nftables(engine) => engine.replace(plan),
        }
    }

    pub fn apply(&mut self, update: &Update) {
        match self {
            PolicyEngine::Nftables(engine) => engine.apply(update),
        }
    }

    /// Makes the kernel judge by the plan; returns what it does not.
    pub async fn converge(&mut self, now: Duration) -> Vec<Failure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.converge(now).await,
        }
    }

    /// Somebody else may have changed the kernel's policy.
    pub fn invalidate(&mut self, changed: Changed) {
        match self {
            PolicyEngine::Nftables(engine) => engine.invalidate(changed),
        }
    }

    /// What of others may drop packets that policy allows, because nothing of ours can stand there.
    pub fn overruled(&self) -> Vec<Failure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.overruled(),
        }
    }

    /// Says whether [`PolicyEngine::interfaces_are`] makes a difference.
    pub fn needs_interfaces(&self) -> bool {
        match self {
            PolicyEngine::Nftables(engine) => engine.needs_interfaces(),
        }
    }

    /// The interfaces that do not lead to workloads, and their addresses.
    pub fn interfaces_are(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) {
        match self {
            PolicyEngine::Nftables(engine) => engine.interfaces_are(interfaces),
        }
    }

    /// Says whether [`PolicyEngine::flow_interfaces_are`] makes a difference.
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

    /// Why connections do not go past the rules, although they should.
    pub fn not_offloaded(&self) -> Option<Failure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.not_offloaded(),
        }
    }

    pub fn stats(&self) -> PolicyStats {
        match self {
            PolicyEngine::Nftables(engine) => engine.stats(),
        }
    }

    /// Single objects that the kernel does not take; what depends on them is closed.
    pub fn refused(&self) -> Vec<Failure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.refused(),
        }
    }

    /// Why the kernel does not judge by the plan at all, if so.
    pub fn not_enforced(&self) -> Option<Failure> {
        match self {
            PolicyEngine::Nftables(engine) => engine.table_failure(),
        }
    }

    /// The host endpoints of the plan, and the interfaces that each is about; all of them if `None`.
    pub fn host_endpoints(&self) -> BTreeMap<String, Option<Vec<String>>> {
        match self {
            PolicyEngine::Nftables(engine) => engine.host_endpoints(),
        }
    }

    /// Whether the kernel judges by the whole plan, but for single objects that it refused: those are closed.
    pub fn is_settled(&self) -> bool {
        match self {
            PolicyEngine::Nftables(engine) => engine.is_settled(),
        }
    }
}
