//! The decisions of an evaluation, and their comparison with those of the kernel.

use super::hits::{cause_hit, other_hit, rule_hit, tier_end_hit};
use crate::proto::{Action, PolicyHit};
use tortie_plan::evaluate::{
    ConntrackState, EvaluationStage, EvaluationTrace, NodeVerdict, PathPlace, TraceStep, VerdictCause,
};
use tortie_plan::flow::{FlowCause, FlowDecision};
use tortie_plan::{EndpointToHostAction, NodePlan, PolicyDirection, PolicyId, RuleAction};

/// The sides of a flow: its source's node and its destination's node may both be this one.
pub const SIDES: [PolicyDirection; 2] = [PolicyDirection::Egress, PolicyDirection::Ingress];

/// One of the decisions about a packet, in the order in which the kernel makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecisionPlace {
    HostIngress,
    Egress,
    Ingress,
    HostEgress,
}

impl DecisionPlace {
    fn of_endpoint(direction: PolicyDirection) -> DecisionPlace {
        match direction {
            PolicyDirection::Egress => DecisionPlace::Egress,
            PolicyDirection::Ingress => DecisionPlace::Ingress,
        }
    }

    fn of_forwarding(direction: PolicyDirection) -> DecisionPlace {
        match direction {
            PolicyDirection::Egress => DecisionPlace::HostEgress,
            PolicyDirection::Ingress => DecisionPlace::HostIngress,
        }
    }

    /// Returns the side that reports the decision.
    fn side(self) -> PolicyDirection {
        match self {
            DecisionPlace::Egress | DecisionPlace::HostEgress => PolicyDirection::Egress,
            DecisionPlace::Ingress | DecisionPlace::HostIngress => PolicyDirection::Ingress,
        }
    }
}

/// Returns the decisions in the order in which the kernel makes them.
fn list_decisions(decision: &FlowDecision) -> [(DecisionPlace, Option<&FlowCause>); 4] {
    [
        (DecisionPlace::HostIngress, decision.host_ingress.as_ref()),
        (DecisionPlace::Egress, decision.egress.as_ref()),
        (DecisionPlace::Ingress, decision.ingress.as_ref()),
        (DecisionPlace::HostEgress, decision.host_egress.as_ref()),
    ]
}

/// The hits of each side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideHits {
    pub egress: Vec<PolicyHit>,
    pub ingress: Vec<PolicyHit>,
}

impl SideHits {
    pub fn of(&self, side: PolicyDirection) -> &[PolicyHit] {
        match side {
            PolicyDirection::Egress => &self.egress,
            PolicyDirection::Ingress => &self.ingress,
        }
    }

    pub fn side_mut(&mut self, side: PolicyDirection) -> &mut Vec<PolicyHit> {
        match side {
            PolicyDirection::Egress => &mut self.egress,
            PolicyDirection::Ingress => &mut self.ingress,
        }
    }

    /// Returns the hits of decisions of the kernel that the evaluation does not explain.
    pub fn of_kernel(decision: &FlowDecision, plan: &NodePlan) -> SideHits {
        let mut hits = SideHits::default();
        let denying = denying_place(decision);
        for (place, cause) in list_decisions(decision) {
            let Some(cause) = cause else { continue };
            hits.side_mut(place.side()).push(cause_hit(cause, denying != Some(place), plan));
        }
        hits
    }
}

/// Returns the decision that denied the packet: the last one.
fn denying_place(decision: &FlowDecision) -> Option<DecisionPlace> {
    let mut made = list_decisions(decision).into_iter().rev().filter(|(_, cause)| cause.is_some());
    made.next().map(|(place, _)| place).filter(|_| !decision.allowed)
}

/// Returns the verdict that a side reports, or `None` if it has none. A packet that the destination denies was allowed by
/// the source.
pub fn side_action(decision: &FlowDecision, side: PolicyDirection) -> Option<Action> {
    if denying_place(decision).is_some_and(|place| place.side() == side) {
        return Some(Action::Deny);
    }
    let has_decision =
        list_decisions(decision).iter().any(|(place, cause)| place.side() == side && cause.is_some());
    has_decision.then_some(Action::Allow)
}

/// The outcome of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluatedFlow {
    pub decision: FlowDecision,
    pub hits: SideHits,
    /// Whether the source and the destination are host endpoints of this node.
    pub host_source: bool,
    pub host_destination: bool,
}

impl EvaluatedFlow {
    /// Returns the hits that explain the decision of the kernel, with which the evaluation agrees. A denial that depends on the
    /// state of the kernel is explained by its cause alone.
    pub fn explain(&self, kernel: &FlowDecision, plan: &NodePlan) -> SideHits {
        let is_equal = [
            (&kernel.host_ingress, &self.decision.host_ingress),
            (&kernel.egress, &self.decision.egress),
            (&kernel.ingress, &self.decision.ingress),
            (&kernel.host_egress, &self.decision.host_egress),
        ]
        .into_iter()
        .all(|(kernel, own)| kernel.is_none() || kernel == own);
        if !is_equal && is_denied_by_state(kernel) {
            SideHits::of_kernel(kernel, plan)
        } else {
            self.hits.clone()
        }
    }

    /// Reads the trace of an evaluation.
    pub fn read(
        trace: &EvaluationTrace<'_>,
        verdict: &NodeVerdict<'_>,
        from: PathPlace<'_>,
    ) -> EvaluatedFlow {
        let mut reader = TraceReader {
            flow: EvaluatedFlow {
                decision: FlowDecision { allowed: verdict.allowed, ..FlowDecision::default() },
                hits: SideHits::default(),
                host_source: false,
                host_destination: false,
            },
            direction: match from {
                PathPlace::Host => PolicyDirection::Egress,
                PathPlace::Interface(_) => PolicyDirection::Ingress,
            },
            place: DecisionPlace::Egress,
            last_policy: None,
        };
        reader.place = DecisionPlace::of_endpoint(reader.direction);
        trace.steps.iter().for_each(|step| reader.take(step));
        reader.flow
    }

    /// Returns whether the decisions that the kernel identifies equal those of the evaluation.
    pub fn agrees_with(&self, kernel: &FlowDecision) -> bool {
        let same = |(kernel, evaluated): (&Option<FlowCause>, &Option<FlowCause>)| match kernel {
            Some(cause) if is_policy_cause(cause) => evaluated.as_ref() == Some(cause),
            _ => true,
        };
        let own = &self.decision;
        is_denied_by_state(kernel)
            || kernel.allowed == own.allowed
                && [
                    (&kernel.host_ingress, &own.host_ingress),
                    (&kernel.egress, &own.egress),
                    (&kernel.ingress, &own.ingress),
                    (&kernel.host_egress, &own.host_egress),
                ]
                .into_iter()
                .all(same)
    }
}

/// Returns whether a cause belongs to a policy or a profile.
fn is_policy_cause(cause: &FlowCause) -> bool {
    matches!(
        cause,
        FlowCause::Rule(_)
            | FlowCause::TierEnd { .. }
            | FlowCause::NoProfile(_)
            | FlowCause::MissingProfile { .. }
    )
}

/// Returns whether the kernel denied a packet for another reason than policy, for example because the interface of a new
/// workload was not ready. The state that decides is not part of the plan.
fn is_denied_by_state(decision: &FlowDecision) -> bool {
    let denying = denying_place(decision);
    let mut decisions = list_decisions(decision).into_iter();
    let cause = decisions.find(|(place, _)| Some(*place) == denying).and_then(|(_, cause)| cause);
    cause.is_some_and(|cause| {
        !is_policy_cause(cause) && !matches!(cause, FlowCause::Mixed(_) | FlowCause::Unknown(_))
    })
}

/// Returns whether the kernel knows what decided.
pub fn is_identified(decision: &FlowDecision) -> bool {
    let unknown = |cause: &FlowCause| matches!(cause, FlowCause::Mixed(_) | FlowCause::Unknown(_));
    !list_decisions(decision).iter().any(|(_, cause)| cause.is_some_and(unknown))
}

/// Reads the steps of a trace in order.
struct TraceReader<'p> {
    flow: EvaluatedFlow,
    direction: PolicyDirection,
    place: DecisionPlace,
    /// The last enforced policy of the present tier.
    last_policy: Option<&'p PolicyId>,
}

impl<'p> TraceReader<'p> {
    fn take(&mut self, step: &TraceStep<'p>) {
        match step {
            TraceStep::Workload { direction, .. } => {
                self.begin(*direction, DecisionPlace::of_endpoint(*direction));
            }
            TraceStep::Host { stage, direction, .. } => {
                let place = match stage {
                    EvaluationStage::Normal => DecisionPlace::of_endpoint(*direction),
                    EvaluationStage::Forward | EvaluationStage::Untracked | EvaluationStage::PreDnat => {
                        DecisionPlace::of_forwarding(*direction)
                    }
                };
                if *stage == EvaluationStage::Normal {
                    match direction {
                        PolicyDirection::Egress => self.flow.host_source = true,
                        PolicyDirection::Ingress => self.flow.host_destination = true,
                    }
                }
                self.begin(*direction, place);
            }
            TraceStep::Policy { id, .. } => self.last_policy = Some(id),
            TraceStep::Rule { at, misses } => {
                if misses.is_empty() && at.rule.action != RuleAction::Log {
                    self.push(rule_hit(at));
                }
            }
            TraceStep::Staged { .. } => {}
            TraceStep::TierEnd { tier, end } => {
                let hit = tier_end_hit(tier, *end, self.last_policy.take());
                self.push(hit);
            }
            TraceStep::Decided { allowed, cause } => self.decide(*allowed, cause),
        }
    }

    fn begin(&mut self, direction: PolicyDirection, place: DecisionPlace) {
        self.direction = direction;
        self.place = place;
        self.last_policy = None;
    }

    fn push(&mut self, hit: PolicyHit) {
        self.flow.hits.side_mut(self.place.side()).push(hit);
    }

    fn decide(&mut self, allowed: bool, cause: &VerdictCause<'p>) {
        let Some(cause) = own_cause(cause, self.direction) else { return };
        // The kernel records these at the destination.
        if matches!(cause, FlowCause::HostToWorkload | FlowCause::ClosedHost) {
            self.begin(PolicyDirection::Ingress, DecisionPlace::Ingress);
        }
        if !matches!(cause, FlowCause::Rule(_) | FlowCause::TierEnd { .. }) {
            self.push(other_hit(&cause, allowed));
        }
        let decision = &mut self.flow.decision;
        let place = match self.place {
            DecisionPlace::HostIngress => &mut decision.host_ingress,
            DecisionPlace::Egress => &mut decision.egress,
            DecisionPlace::Ingress => &mut decision.ingress,
            DecisionPlace::HostEgress => &mut decision.host_egress,
        };
        *place = Some(cause);
    }
}

/// Returns the cause with owned names, or `None` for verdicts that the kernel does not record.
fn own_cause(cause: &VerdictCause<'_>, direction: PolicyDirection) -> Option<FlowCause> {
    Some(match cause {
        VerdictCause::Rule(at) => FlowCause::Rule(at.id()),
        VerdictCause::TierEnd(tier) => FlowCause::TierEnd { tier: (*tier).to_owned(), direction },
        VerdictCause::NoProfile => FlowCause::NoProfile(direction),
        VerdictCause::MissingProfile(profile) => {
            FlowCause::MissingProfile { profile: (*profile).to_owned(), direction }
        }
        VerdictCause::Connection(ConntrackState::Invalid) => FlowCause::InvalidConnection,
        VerdictCause::Down => FlowCause::ClosedEndpoint,
        VerdictCause::UnknownWorkload => FlowCause::UnknownWorkload,
        VerdictCause::Spoofed => FlowCause::Spoofed,
        VerdictCause::Loopback => FlowCause::Loopback,
        VerdictCause::LinkLocal => FlowCause::LinkLocal,
        VerdictCause::Encapsulation => FlowCause::Encapsulation,
        VerdictCause::UnknownTunnel => FlowCause::UnknownTunnel,
        VerdictCause::EndpointToHost(EndpointToHostAction::Drop) => FlowCause::ClosedHost,
        VerdictCause::Failsafe => FlowCause::Failsafe,
        VerdictCause::HostToWorkload => FlowCause::HostToWorkload,
        VerdictCause::ServiceLoop => FlowCause::ServiceLoop,
        VerdictCause::NothingSaid
        | VerdictCause::Connection(_)
        | VerdictCause::Tunnel
        | VerdictCause::NeighbourDiscovery
        | VerdictCause::EndpointToHost(_)
        | VerdictCause::AcceptedBefore
        | VerdictCause::NoHostEndpoint
        | VerdictCause::NoForwardPolicy => return None,
    })
}
