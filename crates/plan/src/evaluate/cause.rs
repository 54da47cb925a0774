//! Why a packet fared as it did.

use super::matching::Criterion;
use super::packet::Connection;
use super::tiers::Stage;
use crate::endpoint::TierEnd;
use crate::policy::{Direction, PolicyId, Rule};
use crate::rule_id::{RuleId, RuleIndex, RuleOwner};
use crate::settings::EndpointToHost;
use crate::workload::WorkloadId;

/// Whose rule it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder<'p> {
    Policy { tier: &'p str, id: &'p PolicyId },
    Profile(&'p str),
}

/// One rule, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleAt<'p> {
    pub holder: Holder<'p>,
    pub direction: Direction,
    pub index: RuleIndex,
    pub rule: &'p Rule,
}

impl RuleAt<'_> {
    /// What counters and logs name it by.
    pub fn id(&self) -> RuleId {
        RuleId { owner: self.holder.owner(), direction: self.direction, index: self.index }
    }
}

impl Holder<'_> {
    pub fn owner(&self) -> RuleOwner {
        match self {
            Holder::Policy { id, .. } => RuleOwner::Policy((*id).clone()),
            Holder::Profile(name) => RuleOwner::Profile((*name).to_owned()),
        }
    }
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause<'p> {
    Rule(RuleAt<'p>),
    /// The end of a tier in which a policy governs this direction and no rule matched.
    TierEnd(&'p str),
    /// No rule of a profile matched, or the endpoint has no profile.
    NoProfile,
    /// The endpoint names a profile that is not in the plan.
    MissingProfile(&'p str),
    /// No policy said anything, and nothing follows from that.
    NothingSaid,
    /// Connection tracking alone: known flows pass, invalid packets do not.
    Connection(Connection),
    Down,
    UnknownWorkload,
    Spoofed,
    /// A workload to or from the loopback of its host.
    Loopback,
    /// Addresses of one link are not forwarded to.
    LinkLocal,
    /// VXLAN or IP in IP out of a workload.
    Encapsulation,
    /// Of a tunnel between this node and one that is known.
    Tunnel,
    /// VXLAN or IP in IP to this node from one that is not known.
    UnknownTunnel,
    /// A workload asks the host for its neighbours.
    NeighbourDiscovery,
    /// What becomes of what a workload's policy lets through to the host.
    EndpointToHost(EndpointToHost),
    Failsafe,
    /// An earlier stage of the host endpoint has accepted it.
    AcceptedBefore,
    /// The interface has no host endpoint.
    NoHostEndpoint,
    /// The host reaches its own workloads, whatever their policies say.
    HostToWorkload,
    /// The host endpoint says nothing about what is forwarded.
    NoForwardPolicy,
    /// Forwarded to an address of services that no service has.
    ServiceLoop,
}

/// What was looked at, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'p> {
    /// From here on it is about this workload.
    Workload {
        id: &'p WorkloadId,
        direction: Direction,
    },
    /// From here on it is about this host endpoint.
    Host {
        name: &'p str,
        stage: Stage,
        direction: Direction,
    },
    /// A policy that is enforced; its rules follow.
    Policy {
        tier: &'p str,
        id: &'p PolicyId,
    },
    /// A rule and what it asks for in vain. With nothing missing, it matched.
    Rule {
        at: RuleAt<'p>,
        misses: Vec<Criterion<'p>>,
    },
    /// A staged policy was passed over; this is the rule that would have decided, if it were enforced.
    Staged {
        tier: &'p str,
        id: &'p PolicyId,
        would: Option<RuleAt<'p>>,
    },
    TierEnd {
        tier: &'p str,
        end: TierEnd,
    },
    /// The end of what concerns one endpoint.
    Decided {
        allowed: bool,
        cause: Cause<'p>,
    },
}

/// Everything that was looked at on the way to a verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace<'p> {
    pub steps: Vec<Step<'p>>,
}
