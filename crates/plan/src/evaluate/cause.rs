//! Causes of verdicts, and the trace of an evaluation.

use super::matching::RuleCriterion;
use super::packet::ConntrackState;
use super::tiers::EvaluationStage;
use crate::endpoint::TierDefaultAction;
use crate::policy::{PlannedRule, PolicyDirection, PolicyId};
use crate::rule_id::{RuleId, RuleIndex, RuleOwner};
use crate::settings::EndpointToHostAction;
use crate::workload::WorkloadId;

/// The policy or profile that a rule belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleHolder<'p> {
    Policy { tier: &'p str, id: &'p PolicyId },
    Profile(&'p str),
}

/// A rule and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RulePosition<'p> {
    pub holder: RuleHolder<'p>,
    pub direction: PolicyDirection,
    pub index: RuleIndex,
    pub rule: &'p PlannedRule,
}

impl RulePosition<'_> {
    /// Returns the identity of the rule in counters and logs.
    pub fn id(&self) -> RuleId {
        RuleId { owner: self.holder.owner(), direction: self.direction, index: self.index }
    }
}

impl<'p> RuleHolder<'p> {
    /// Returns the namespace of the policy. It is empty for global policies and profiles.
    pub(super) fn namespace(self) -> &'p str {
        match self {
            RuleHolder::Policy { id, .. } => &id.namespace,
            RuleHolder::Profile(_) => "",
        }
    }

    pub fn owner(&self) -> RuleOwner {
        match self {
            RuleHolder::Policy { id, .. } => RuleOwner::Policy((*id).clone()),
            RuleHolder::Profile(name) => RuleOwner::Profile((*name).to_owned()),
        }
    }
}

/// The cause of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictCause<'p> {
    Rule(RulePosition<'p>),
    /// No rule matched in a tier that has a policy for this direction.
    TierEnd(&'p str),
    /// No rule of a profile matched, or the endpoint has no profile.
    NoProfile,
    /// The endpoint references a profile that is not in the plan.
    MissingProfile(&'p str),
    /// No policy matched, and there is no default action.
    NothingSaid,
    /// Connection tracking alone: packets of known flows pass, invalid packets do not.
    Connection(ConntrackState),
    Down,
    UnknownWorkload,
    Spoofed,
    /// Traffic between a workload and the loopback of its host.
    Loopback,
    /// Packets to link-local addresses are not forwarded.
    LinkLocal,
    /// VXLAN or IP in IP sent by a workload.
    Encapsulation,
    /// Packets of a tunnel between this node and a known node.
    Tunnel,
    /// VXLAN or IP in IP sent to this node by an unknown node.
    UnknownTunnel,
    /// Neighbour discovery between a workload and the host.
    NeighbourDiscovery,
    /// The setting for traffic to the host that the workload's policy allows.
    EndpointToHost(EndpointToHostAction),
    Failsafe,
    /// An earlier stage of the host endpoint has accepted the packet.
    AcceptedBefore,
    /// The interface has no host endpoint.
    NoHostEndpoint,
    /// The host reaches its own workloads regardless of their policies.
    HostToWorkload,
    /// The host endpoint has no policies for forwarded packets.
    NoForwardPolicy,
    /// The packet is forwarded to an address in a service range that no service has.
    ServiceLoop,
}

/// One step of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceStep<'p> {
    /// The following steps concern this workload.
    Workload {
        id: &'p WorkloadId,
        direction: PolicyDirection,
    },
    /// The following steps concern this host endpoint.
    Host {
        name: &'p str,
        stage: EvaluationStage,
        direction: PolicyDirection,
    },
    /// An enforced policy; its rules follow.
    Policy {
        tier: &'p str,
        id: &'p PolicyId,
    },
    /// A rule and the criteria that the packet does not meet. An empty list means that the rule matched.
    Rule {
        at: RulePosition<'p>,
        misses: Vec<RuleCriterion<'p>>,
    },
    /// A staged policy, which was skipped, and the rule that would decide if the policy were enforced.
    Staged {
        tier: &'p str,
        id: &'p PolicyId,
        would: Option<RulePosition<'p>>,
    },
    TierEnd {
        tier: &'p str,
        end: TierDefaultAction,
    },
    /// The verdict of one endpoint.
    Decided {
        allowed: bool,
        cause: VerdictCause<'p>,
    },
}

/// All steps of an evaluation, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluationTrace<'p> {
    pub steps: Vec<TraceStep<'p>>,
}
