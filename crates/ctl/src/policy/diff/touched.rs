//! Determines which ends a change can affect.

use super::subject::{PlanState, TrafficSubject};
use std::collections::BTreeSet;
use tortie_plan::{
    EndpointId, EndpointTier, PlannedRule, PolicyDirection, PolicyId, RuleSide, SetId, TierDefaultAction,
};

/// The differences between two states.
pub struct PlanDifferences<'s> {
    before: &'s PlanState<'s>,
    after: &'s PlanState<'s>,
    sets: BTreeSet<&'s SetId>,
}

impl<'s> PlanDifferences<'s> {
    pub fn new(before: &'s PlanState<'s>, after: &'s PlanState<'s>) -> PlanDifferences<'s> {
        let names = before.plan.sets.keys().chain(after.plan.sets.keys());
        let sets = names.filter(|id| before.plan.sets.get(*id) != after.plan.sets.get(*id)).collect();
        PlanDifferences { before, after, sets }
    }

    /// Returns whether the verdicts of a subject in a direction may have changed.
    pub fn concerns(&self, subject: &TrafficSubject, direction: PolicyDirection) -> bool {
        let Some(endpoint) = &subject.endpoint else { return false };
        let (before, after) = (lists(self.before, endpoint), lists(self.after, endpoint));
        let (Some((tiers, profiles)), Some((other, others))) = (before, after) else { return true };
        if !governing(tiers, direction).eq(governing(other, direction)) || profiles != others {
            return true;
        }
        tiers.iter().any(|tier| self.tier_differs(tier, direction))
            || profiles.iter().any(|name| {
                let rules = |state: &PlanState<'s>| {
                    state.plan.profiles.get(name).map(|profile| profile.rules(direction))
                };
                self.differ(rules(self.before), rules(self.after))
            })
    }

    /// Returns the host endpoints whose forward, untracked or pre-DNAT policies change; these are not
    /// compared.
    pub fn unseen(&self) -> Vec<String> {
        let all = [self.before, self.after].into_iter().flat_map(|state| state.plan.host_endpoints.keys());
        let names: BTreeSet<&String> = all.collect();
        names.into_iter().filter(|name| self.changes_unseen(name)).cloned().collect()
    }

    fn changes_unseen(&self, name: &str) -> bool {
        let lists = |state: &PlanState<'s>| {
            let endpoint = state.plan.host_endpoints.get(name);
            endpoint
                .map(|e| [&e.forward, &e.untracked, &e.pre_dnat])
                .filter(|lists| lists.iter().any(|l| !l.is_empty()))
        };
        let (before, after) = (lists(self.before), lists(self.after));
        before != after
            || before.into_iter().flatten().flatten().any(|tier| {
                [PolicyDirection::Ingress, PolicyDirection::Egress]
                    .into_iter()
                    .any(|d| self.tier_differs(tier, d))
            })
    }

    fn tier_differs(&self, tier: &EndpointTier, direction: PolicyDirection) -> bool {
        tier.policies(direction).iter().any(|id| {
            let rules =
                |state: &PlanState<'s>| state.plan.policies.get(id).map(|policy| policy.rules(direction));
            self.differ(rules(self.before), rules(self.after))
        })
    }

    fn differ(&self, before: Option<&[PlannedRule]>, after: Option<&[PlannedRule]>) -> bool {
        before != after || before.into_iter().flatten().any(|rule| self.uses_changed_set(rule))
    }

    fn uses_changed_set(&self, rule: &PlannedRule) -> bool {
        let uses = |side: &RuleSide| {
            let named = side.named_ports.iter().chain(&side.not_named_ports).chain(&side.service);
            side.sets.iter().chain(&side.not_sets).chain(named).any(|set| self.sets.contains(set))
        };
        uses(&rule.source) || uses(&rule.destination)
    }
}

/// Returns the tiers that apply in one direction; tiers without policies for it are skipped.
fn governing(
    tiers: &[EndpointTier],
    direction: PolicyDirection,
) -> impl Iterator<Item = (&str, TierDefaultAction, &[PolicyId])> {
    let said = tiers.iter().map(move |tier| (tier.name.as_str(), tier.end, tier.policies(direction)));
    said.filter(|(_, _, policies)| !policies.is_empty())
}

fn lists<'s>(
    state: &PlanState<'s>,
    endpoint: &EndpointId,
) -> Option<(&'s Vec<EndpointTier>, &'s Vec<String>)> {
    match endpoint {
        EndpointId::Workload(id) => state
            .plan
            .workload_policies
            .get(id)
            .map(|workload_policy| (&workload_policy.tiers, &workload_policy.profiles)),
        EndpointId::Host(name) => {
            state.plan.host_endpoints.get(name).map(|endpoint| (&endpoint.tiers, &endpoint.profiles))
        }
    }
}
