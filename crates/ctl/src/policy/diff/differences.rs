//! Determines which ends a change can affect.

use super::subject::{PlanState, TrafficSubject};
use std::collections::BTreeSet;
use tortie_plan::{
    EndpointId, EndpointTier, PlannedRule, PolicyDirection, PolicyId, SetId, TierDefaultAction,
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
    pub fn concern(&self, subject: &TrafficSubject, direction: PolicyDirection) -> bool {
        let Some(endpoint) = &subject.endpoint else { return false };
        let Some((tiers, profiles)) = tiers_and_profiles(self.before, endpoint) else { return true };
        let Some((new_tiers, new_profiles)) = tiers_and_profiles(self.after, endpoint) else { return true };
        if !list_governing(tiers, direction).eq(list_governing(new_tiers, direction))
            || profiles != new_profiles
        {
            return true;
        }
        tiers.iter().any(|tier| self.tier_differs(tier, direction))
            || profiles.iter().any(|name| {
                let [before, after] = [self.before, self.after]
                    .map(|state| state.plan.profiles.get(name).map(|profile| profile.rules(direction)));
                self.rules_differ(before, after)
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
        let [before, after] = [self.before, self.after].map(|state| {
            let endpoint = state.plan.host_endpoints.get(name)?;
            let lists = [&endpoint.forward, &endpoint.untracked, &endpoint.pre_dnat];
            lists.iter().any(|tiers| !tiers.is_empty()).then_some(lists)
        });
        before != after
            || before.into_iter().flatten().flatten().any(|tier| {
                [PolicyDirection::Ingress, PolicyDirection::Egress]
                    .into_iter()
                    .any(|d| self.tier_differs(tier, d))
            })
    }

    fn tier_differs(&self, tier: &EndpointTier, direction: PolicyDirection) -> bool {
        tier.policies(direction).iter().any(|id| {
            let [before, after] = [self.before, self.after]
                .map(|state| state.plan.policies.get(id).map(|policy| policy.rules(direction)));
            self.rules_differ(before, after)
        })
    }

    fn rules_differ(&self, before: Option<&[PlannedRule]>, after: Option<&[PlannedRule]>) -> bool {
        before != after || before.into_iter().flatten().any(|rule| self.uses_changed_set(rule))
    }

    fn uses_changed_set(&self, rule: &PlannedRule) -> bool {
        [&rule.source, &rule.destination].into_iter().any(|side| {
            let named = side.named_ports.iter().chain(&side.not_named_ports).chain(&side.service);
            side.sets.iter().chain(&side.not_sets).chain(named).any(|set| self.sets.contains(set))
        })
    }
}

/// Returns the tiers that apply in one direction; tiers without policies for it are skipped.
fn list_governing(
    tiers: &[EndpointTier],
    direction: PolicyDirection,
) -> impl Iterator<Item = (&str, TierDefaultAction, &[PolicyId])> {
    let all = tiers.iter().map(move |tier| (tier.name.as_str(), tier.end, tier.policies(direction)));
    all.filter(|(_, _, policies)| !policies.is_empty())
}

fn tiers_and_profiles<'s>(
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
