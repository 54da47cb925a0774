//! Determines which ends a change can affect.

use super::subject::{State, Subject};
use std::collections::BTreeSet;
use tortie_plan::{Direction, EndpointId, PolicyId, Rule, SetId, Side, Tier, TierEnd};

/// The differences between two states.
pub struct Touched<'s> {
    before: &'s State<'s>,
    after: &'s State<'s>,
    sets: BTreeSet<&'s SetId>,
}

impl<'s> Touched<'s> {
    pub fn new(before: &'s State<'s>, after: &'s State<'s>) -> Touched<'s> {
        let names = before.plan.sets.keys().chain(after.plan.sets.keys());
        let sets = names.filter(|id| before.plan.sets.get(*id) != after.plan.sets.get(*id)).collect();
        Touched { before, after, sets }
    }

    /// Returns whether the verdicts of a subject in a direction may have changed.
    pub fn concerns(&self, subject: &Subject, direction: Direction) -> bool {
        let Some(endpoint) = &subject.endpoint else { return false };
        let (before, after) = (lists(self.before, endpoint), lists(self.after, endpoint));
        let (Some((tiers, profiles)), Some((other, others))) = (before, after) else { return true };
        if !governing(tiers, direction).eq(governing(other, direction)) || profiles != others {
            return true;
        }
        tiers.iter().any(|tier| self.tier_differs(tier, direction))
            || profiles.iter().any(|name| {
                let rules =
                    |state: &State<'s>| state.plan.profiles.get(name).map(|profile| profile.rules(direction));
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
        let lists = |state: &State<'s>| {
            let endpoint = state.plan.host_endpoints.get(name);
            endpoint
                .map(|e| [&e.forward, &e.untracked, &e.pre_dnat])
                .filter(|lists| lists.iter().any(|l| !l.is_empty()))
        };
        let (before, after) = (lists(self.before), lists(self.after));
        before != after
            || before.into_iter().flatten().flatten().any(|tier| {
                [Direction::Ingress, Direction::Egress].into_iter().any(|d| self.tier_differs(tier, d))
            })
    }

    fn tier_differs(&self, tier: &Tier, direction: Direction) -> bool {
        tier.policies(direction).iter().any(|id| {
            let rules = |state: &State<'s>| state.plan.policies.get(id).map(|policy| policy.rules(direction));
            self.differ(rules(self.before), rules(self.after))
        })
    }

    fn differ(&self, before: Option<&[Rule]>, after: Option<&[Rule]>) -> bool {
        before != after || before.into_iter().flatten().any(|rule| self.uses_changed_set(rule))
    }

    fn uses_changed_set(&self, rule: &Rule) -> bool {
        let uses = |side: &Side| {
            let named = side.named_ports.iter().chain(&side.not_named_ports).chain(&side.service);
            side.sets.iter().chain(&side.not_sets).chain(named).any(|set| self.sets.contains(set))
        };
        uses(&rule.source) || uses(&rule.destination)
    }
}

/// Returns the tiers that apply in one direction; tiers without policies for it are skipped.
fn governing(tiers: &[Tier], direction: Direction) -> impl Iterator<Item = (&str, TierEnd, &[PolicyId])> {
    let said = tiers.iter().map(move |tier| (tier.name.as_str(), tier.end, tier.policies(direction)));
    said.filter(|(_, _, policies)| !policies.is_empty())
}

fn lists<'s>(state: &State<'s>, endpoint: &EndpointId) -> Option<(&'s Vec<Tier>, &'s Vec<String>)> {
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
