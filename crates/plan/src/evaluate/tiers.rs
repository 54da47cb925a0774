//! Evaluates one endpoint in one direction: tiers, then profiles.

use super::cause::{EvaluationTrace, RuleHolder, RulePosition, TraceStep, VerdictCause};
use super::index::EvaluationIndex;
use super::matching::RuleSubject;
use super::packet::Packet;
use super::request::RequestContext;
use crate::endpoint::{EndpointTier, HostEndpointPolicy, TierDefaultAction, WorkloadPolicy};
use crate::policy::{PlannedRule, PolicyDirection, PolicyId, RuleAction};
use crate::rule_id::RuleIndex;

/// One of the policy lists of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EvaluationStage {
    /// Packets that start or end at the endpoint.
    Normal,
    /// Packets that the host forwards.
    Forward,
    /// All packets, before connection tracking.
    Untracked,
    /// All packets, before DNAT.
    PreDnat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyOutcome {
    Allow,
    Deny,
    /// No policy decided; only in stages without profiles.
    NoMatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyDecision<'p> {
    pub outcome: PolicyOutcome,
    pub cause: VerdictCause<'p>,
}

/// The trace to record steps in, if the caller passed one.
pub(super) type TraceSink<'t, 'p> = Option<&'t mut EvaluationTrace<'p>>;

/// Records a step if the caller passed a trace.
pub(super) fn record_step<'p>(trace: &mut TraceSink<'_, 'p>, step: impl FnOnce() -> TraceStep<'p>) {
    if let Some(trace) = trace {
        trace.steps.push(step());
    }
}

/// Result of evaluating a list of rules.
enum RulesResult<'p> {
    Decided(PolicyDecision<'p>),
    /// A rule with the action Pass matched: evaluation continues with the next tier.
    Passed,
    NoMatch,
}

impl<'p> EvaluationIndex<'p> {
    /// Evaluates the policies and profiles of a workload for a packet that opens a flow, as the kernel does.
    pub fn workload(
        &self,
        workload_policy: &'p WorkloadPolicy,
        direction: PolicyDirection,
        packet: &Packet,
        trace: Option<&mut EvaluationTrace<'p>>,
    ) -> PolicyDecision<'p> {
        let subject = RuleSubject::connection(packet, workload_policy.http_proxy);
        self.evaluate_workload(workload_policy, direction, &subject, trace)
    }

    /// Evaluates the policies and profiles of a workload for a request that its proxy has received, as the proxy does.
    /// `packet` has the addresses and ports of the connection.
    pub fn request(
        &self,
        workload_policy: &'p WorkloadPolicy,
        direction: PolicyDirection,
        packet: &Packet,
        request: &RequestContext<'_>,
        trace: Option<&mut EvaluationTrace<'p>>,
    ) -> PolicyDecision<'p> {
        let subject = RuleSubject { packet, http_proxy: true, request: Some(request) };
        self.evaluate_workload(workload_policy, direction, &subject, trace)
    }

    fn evaluate_workload(
        &self,
        workload_policy: &'p WorkloadPolicy,
        direction: PolicyDirection,
        subject: &RuleSubject<'_>,
        trace: TraceSink<'_, 'p>,
    ) -> PolicyDecision<'p> {
        let profiles = Some(&workload_policy.profiles);
        self.evaluate_tiers(
            &workload_policy.tiers,
            profiles,
            EvaluationStage::Normal,
            direction,
            subject,
            trace,
        )
    }

    /// Evaluates one policy list of a host endpoint.
    pub fn host(
        &self,
        endpoint: &'p HostEndpointPolicy,
        stage: EvaluationStage,
        direction: PolicyDirection,
        packet: &Packet,
        trace: Option<&mut EvaluationTrace<'p>>,
    ) -> PolicyDecision<'p> {
        let (tiers, profiles) = match stage {
            EvaluationStage::Normal => (&endpoint.tiers, Some(&endpoint.profiles)),
            EvaluationStage::Forward => (&endpoint.forward, None),
            EvaluationStage::Untracked => (&endpoint.untracked, None),
            EvaluationStage::PreDnat => (&endpoint.pre_dnat, None),
        };
        // A host endpoint has no proxy.
        let subject = RuleSubject::connection(packet, false);
        self.evaluate_tiers(tiers, profiles, stage, direction, &subject, trace)
    }

    /// Evaluates the tiers in order, then the profiles if there are any.
    fn evaluate_tiers(
        &self,
        tiers: &'p [EndpointTier],
        profiles: Option<&'p Vec<String>>,
        stage: EvaluationStage,
        direction: PolicyDirection,
        subject: &RuleSubject<'_>,
        mut trace: TraceSink<'_, 'p>,
    ) -> PolicyDecision<'p> {
        for tier in tiers {
            if let Some(decision) = self.evaluate_tier(tier, stage, direction, subject, &mut trace) {
                return decision;
            }
        }
        match profiles {
            Some(profiles) => self.evaluate_profiles(profiles, direction, subject, &mut trace),
            None => PolicyDecision { outcome: PolicyOutcome::NoMatch, cause: VerdictCause::NothingSaid },
        }
    }

    /// Evaluates one tier. Returns `None` if evaluation continues with the next tier.
    fn evaluate_tier(
        &self,
        tier: &'p EndpointTier,
        stage: EvaluationStage,
        direction: PolicyDirection,
        subject: &RuleSubject<'_>,
        trace: &mut TraceSink<'_, 'p>,
    ) -> Option<PolicyDecision<'p>> {
        let mut enforced = false;
        for id in tier.policies(direction) {
            let holder = RuleHolder::Policy { tier: &tier.name, id };
            let rules = self.rules_of(id, direction);
            if id.kind.is_staged() && !self.enforces_staged {
                record_step(trace, || {
                    let would = self.find_deciding_rule(holder, direction, rules, subject);
                    TraceStep::Staged { tier: &tier.name, id, would }
                });
                continue;
            }
            enforced = true;
            record_step(trace, || TraceStep::Policy { tier: &tier.name, id });
            match self.evaluate_rules(holder, direction, rules, subject, trace) {
                RulesResult::Decided(decision) => return Some(decision),
                RulesResult::Passed => return None,
                RulesResult::NoMatch => {}
            }
        }
        // Before connection tracking and DNAT, a tier in which no rule matches never denies.
        let end = match stage {
            EvaluationStage::Normal | EvaluationStage::Forward => tier.end,
            EvaluationStage::Untracked | EvaluationStage::PreDnat => TierDefaultAction::Pass,
        };
        if enforced {
            record_step(trace, || TraceStep::TierEnd { tier: &tier.name, end });
        }
        (enforced && end == TierDefaultAction::Deny).then_some(PolicyDecision {
            outcome: PolicyOutcome::Deny,
            cause: VerdictCause::TierEnd(&tier.name),
        })
    }

    /// Evaluates the profiles in order. Denies the packet if no rule matches.
    fn evaluate_profiles(
        &self,
        profiles: &'p [String],
        direction: PolicyDirection,
        subject: &RuleSubject<'_>,
        trace: &mut TraceSink<'_, 'p>,
    ) -> PolicyDecision<'p> {
        for name in profiles {
            let Some(profile) = self.profiles.get(name) else {
                return PolicyDecision {
                    outcome: PolicyOutcome::Deny,
                    cause: VerdictCause::MissingProfile(name),
                };
            };
            let rules = profile.rules(direction);
            let result = self.evaluate_rules(RuleHolder::Profile(name), direction, rules, subject, trace);
            if let RulesResult::Decided(decision) = result {
                return decision;
            }
        }
        PolicyDecision { outcome: PolicyOutcome::Deny, cause: VerdictCause::NoProfile }
    }

    /// Evaluates the rules of one policy or profile in order, and records them in the trace.
    fn evaluate_rules(
        &self,
        holder: RuleHolder<'p>,
        direction: PolicyDirection,
        rules: &'p [PlannedRule],
        subject: &RuleSubject<'_>,
        trace: &mut TraceSink<'_, 'p>,
    ) -> RulesResult<'p> {
        let namespace = holder.namespace();
        for (position, rule) in rules.iter().enumerate() {
            let at = RulePosition { holder, direction, index: RuleIndex::at(position), rule };
            record_step(trace, || TraceStep::Rule { at, misses: self.misses(rule, namespace, subject) });
            let outcome = match rule.action {
                RuleAction::Log => continue,
                _ if !self.matches(rule, namespace, subject) => continue,
                RuleAction::Pass => return RulesResult::Passed,
                RuleAction::Allow => PolicyOutcome::Allow,
                RuleAction::Deny => PolicyOutcome::Deny,
            };
            return RulesResult::Decided(PolicyDecision { outcome, cause: VerdictCause::Rule(at) });
        }
        RulesResult::NoMatch
    }

    /// Returns the first rule that decides about the packet: the first that matches and does not only log.
    fn find_deciding_rule(
        &self,
        holder: RuleHolder<'p>,
        direction: PolicyDirection,
        rules: &'p [PlannedRule],
        subject: &RuleSubject<'_>,
    ) -> Option<RulePosition<'p>> {
        let namespace = holder.namespace();
        let (position, rule) = rules
            .iter()
            .enumerate()
            .find(|(_, rule)| rule.action != RuleAction::Log && self.matches(rule, namespace, subject))?;
        Some(RulePosition { holder, direction, index: RuleIndex::at(position), rule })
    }

    /// Returns the rules of a policy. A policy that is not in the plan has none, but the end of its tier still
    /// applies.
    fn rules_of(&self, id: &PolicyId, direction: PolicyDirection) -> &'p [PlannedRule] {
        self.policies.get(id).map(|policy| policy.rules(direction)).unwrap_or_default()
    }
}
