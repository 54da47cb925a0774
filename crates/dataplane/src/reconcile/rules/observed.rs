//! The rules in the kernel that may be ours.

use super::super::DataplaneCore;
use crate::kernel::RuleEntry;
use std::collections::BTreeSet;
use tortie_plan::RoutingRule;

#[derive(Debug, Default)]
pub(crate) struct ObservedRules {
    pub there: BTreeSet<RuleEntry>,
    /// Every rule that was desired once is considered ours, whichever program wrote it.
    pub ever_wanted: BTreeSet<RoutingRule>,
}

impl DataplaneCore {
    /// Replaces the known rules.
    pub fn rules_are(&mut self, rules: Vec<RuleEntry>) {
        self.rules.there = rules.into_iter().collect();
    }
}
