//! Counters of the rules of one policy or profile.

use std::sync::atomic::{AtomicU64, Ordering};
use tortie_plan::{PlannedRule, PolicyDirection, RuleIndex};

/// Number of checks that each rule decided. It survives as long as the rules of its owner do not change.
#[derive(Debug, Default)]
pub struct OwnerCounters {
    ingress: Box<[AtomicU64]>,
    egress: Box<[AtomicU64]>,
}

impl OwnerCounters {
    pub fn new(ingress: &[PlannedRule], egress: &[PlannedRule]) -> OwnerCounters {
        OwnerCounters { ingress: zeros(ingress.len()), egress: zeros(egress.len()) }
    }

    pub fn count(&self, direction: PolicyDirection, index: RuleIndex) {
        if let Some(counter) = self.rules(direction).get(index.position()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counters that are not zero.
    pub fn counted(&self) -> impl Iterator<Item = (PolicyDirection, RuleIndex, u64)> {
        [PolicyDirection::Ingress, PolicyDirection::Egress].into_iter().flat_map(move |direction| {
            let rules = self.rules(direction).iter().enumerate();
            rules.filter_map(move |(position, counter)| match counter.load(Ordering::Relaxed) {
                0 => None,
                count => Some((direction, RuleIndex::at(position), count)),
            })
        })
    }

    fn rules(&self, direction: PolicyDirection) -> &[AtomicU64] {
        match direction {
            PolicyDirection::Ingress => &self.ingress,
            PolicyDirection::Egress => &self.egress,
        }
    }
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    std::iter::repeat_with(AtomicU64::default).take(count).collect()
}
