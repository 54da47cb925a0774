//! Which ends a change can have an effect on at all.

use super::subject::{State, Subject};
use std::collections::BTreeSet;
use tortie_plan::{Direction, EndpointId, Rule, SetId, Side, Tier};

/// What differs between two states.
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

    /// Whether what a subject says in a direction may have changed.
    pub fn concerns(&self, subject: &Subject, direction: Direction) -> bool {
        let Some(endpoint) = &subject.endpoint else { return false };
        let (before, after) = (lists(self.before, endpoint), lists(self.after, endpoint));
        let (Some((tiers, profiles)), Some(after)) = (before, after) else { return true };
        if (tiers, profiles) != after {
            return true;
        }
        let policies = tiers.iter().flat_map(|tier| tier.policies(direction)).any(|id| {
            let rules = |state: &State<'s>| state.plan.policies.get(id).map(|policy| policy.rules(direction));
            self.differ(rules(self.before), rules(self.after))
        });
        policies
            || profiles.iter().any(|name| {
                let rules =
                    |state: &State<'s>| state.plan.profiles.get(name).map(|profile| profile.rules(direction));
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

fn lists<'s>(state: &State<'s>, endpoint: &EndpointId) -> Option<(&'s Vec<Tier>, &'s Vec<String>)> {
    match endpoint {
        EndpointId::Workload(id) => state.plan.guards.get(id).map(|guard| (&guard.tiers, &guard.profiles)),
        EndpointId::Host(name) => {
            state.plan.host_endpoints.get(name).map(|endpoint| (&endpoint.tiers, &endpoint.profiles))
        }
    }
}
