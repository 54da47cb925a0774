//! Evaluates one endpoint in one direction: tiers, then profiles.

use super::cause::{Cause, Holder, RuleAt, Step, Trace};
use super::index::Index;
use super::packet::Packet;
use crate::endpoint::{HostEndpoint, Tier, TierEnd, WorkloadPolicy};
use crate::policy::{Action, Direction, PolicyId, Rule};
use crate::rule_id::RuleIndex;

/// One of the policy lists of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
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
pub enum Outcome {
    Allow,
    Deny,
    /// No policy decided; only in stages without profiles.
    NoMatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'p> {
    pub outcome: Outcome,
    pub cause: Cause<'p>,
}

/// The trace to record steps in, if the caller passed one.
pub(super) type Tracing<'t, 'p> = Option<&'t mut Trace<'p>>;

pub(super) fn note<'p>(trace: &mut Tracing<'_, 'p>, step: impl FnOnce() -> Step<'p>) {
    if let Some(trace) = trace {
        trace.steps.push(step());
    }
}

/// Result of evaluating a list of rules.
enum Said<'p> {
    Decided(Decision<'p>),
    Passed,
    Nothing,
}

impl<'p> Index<'p> {
    /// Evaluates the policies and profiles of a workload for a packet that opens a flow.
    pub fn workload(
        &self,
        workload_policy: &'p WorkloadPolicy,
        direction: Direction,
        packet: &Packet,
        trace: Option<&mut Trace<'p>>,
    ) -> Decision<'p> {
        self.decide(
            &workload_policy.tiers,
            Some(&workload_policy.profiles),
            Stage::Normal,
            direction,
            packet,
            trace,
        )
    }

    /// Evaluates one policy list of a host endpoint.
    pub fn host(
        &self,
        endpoint: &'p HostEndpoint,
        stage: Stage,
        direction: Direction,
        packet: &Packet,
        trace: Option<&mut Trace<'p>>,
    ) -> Decision<'p> {
        let (tiers, profiles) = match stage {
            Stage::Normal => (&endpoint.tiers, Some(&endpoint.profiles)),
            Stage::Forward => (&endpoint.forward, None),
            Stage::Untracked => (&endpoint.untracked, None),
            Stage::PreDnat => (&endpoint.pre_dnat, None),
        };
        self.decide(tiers, profiles, stage, direction, packet, trace)
    }

    fn decide(
        &self,
        tiers: &'p [Tier],
        profiles: Option<&'p Vec<String>>,
        stage: Stage,
        direction: Direction,
        packet: &Packet,
        mut trace: Tracing<'_, 'p>,
    ) -> Decision<'p> {
        for tier in tiers {
            if let Some(decision) = self.ask_tier(tier, stage, direction, packet, &mut trace) {
                return decision;
            }
        }
        match profiles {
            Some(profiles) => self.ask_profiles(profiles, direction, packet, &mut trace),
            None => Decision { outcome: Outcome::NoMatch, cause: Cause::NothingSaid },
        }
    }

    /// Evaluates one tier. Returns `None` if evaluation continues with the next tier.
    fn ask_tier(
        &self,
        tier: &'p Tier,
        stage: Stage,
        direction: Direction,
        packet: &Packet,
        trace: &mut Tracing<'_, 'p>,
    ) -> Option<Decision<'p>> {
        let mut enforced = false;
        for id in tier.policies(direction) {
            let holder = Holder::Policy { tier: &tier.name, id };
            let rules = self.rules_of(id, direction);
            if id.kind.is_staged() {
                note(trace, || {
                    let would = self.first(holder, direction, rules, packet);
                    Step::Staged { tier: &tier.name, id, would }
                });
                continue;
            }
            enforced = true;
            note(trace, || Step::Policy { tier: &tier.name, id });
            match self.ask(holder, direction, rules, packet, trace) {
                Said::Decided(decision) => return Some(decision),
                Said::Passed => return None,
                Said::Nothing => {}
            }
        }
        // Before connection tracking and DNAT, a tier in which no rule matches never denies.
        let end = match stage {
            Stage::Normal | Stage::Forward => tier.end,
            Stage::Untracked | Stage::PreDnat => TierEnd::Pass,
        };
        if enforced {
            note(trace, || Step::TierEnd { tier: &tier.name, end });
        }
        (enforced && end == TierEnd::Deny)
            .then_some(Decision { outcome: Outcome::Deny, cause: Cause::TierEnd(&tier.name) })
    }

    fn ask_profiles(
        &self,
        profiles: &'p [String],
        direction: Direction,
        packet: &Packet,
        trace: &mut Tracing<'_, 'p>,
    ) -> Decision<'p> {
        for name in profiles {
            let Some(profile) = self.plan.profiles.get(name) else {
                return Decision { outcome: Outcome::Deny, cause: Cause::MissingProfile(name) };
            };
            let rules = profile.rules(direction);
            let said = self.ask(Holder::Profile(name), direction, rules, packet, trace);
            if let Said::Decided(decision) = said {
                return decision;
            }
        }
        Decision { outcome: Outcome::Deny, cause: Cause::NoProfile }
    }

    fn ask(
        &self,
        holder: Holder<'p>,
        direction: Direction,
        rules: &'p [Rule],
        packet: &Packet,
        trace: &mut Tracing<'_, 'p>,
    ) -> Said<'p> {
        for (position, rule) in rules.iter().enumerate() {
            let at = RuleAt { holder, direction, index: RuleIndex::at(position), rule };
            note(trace, || Step::Rule { at, misses: self.misses(rule, packet) });
            let outcome = match rule.action {
                Action::Log => continue,
                _ if !self.matches(rule, packet) => continue,
                Action::Pass => return Said::Passed,
                Action::Allow => Outcome::Allow,
                Action::Deny => Outcome::Deny,
            };
            return Said::Decided(Decision { outcome, cause: Cause::Rule(at) });
        }
        Said::Nothing
    }

    /// Returns the rule that decides if the list is evaluated on its own.
    fn first(
        &self,
        holder: Holder<'p>,
        direction: Direction,
        rules: &'p [Rule],
        packet: &Packet,
    ) -> Option<RuleAt<'p>> {
        let (position, rule) = rules
            .iter()
            .enumerate()
            .find(|(_, rule)| rule.action != Action::Log && self.matches(rule, packet))?;
        Some(RuleAt { holder, direction, index: RuleIndex::at(position), rule })
    }

    /// Returns the rules of a policy. A policy that is not in the plan has none, but the end of its tier still
    /// applies.
    fn rules_of(&self, id: &PolicyId, direction: Direction) -> &'p [Rule] {
        self.plan.policies.get(id).map(|policy| policy.rules(direction)).unwrap_or_default()
    }
}
