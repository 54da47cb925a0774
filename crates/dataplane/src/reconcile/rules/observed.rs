//! The rules that the kernel has and that could be ours.

use super::super::Core;
use crate::kernel::RuleEntry;
use std::collections::BTreeSet;
use tortie_plan::RoutingRule;

#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub there: BTreeSet<RuleEntry>,
    /// Every rule that was wanted once is ours, whoever wrote it.
    pub ever_wanted: BTreeSet<RoutingRule>,
}

impl Core {
    /// Takes a fresh list of rules in.
    pub fn rules_are(&mut self, rules: Vec<RuleEntry>) {
        self.rules.there = rules.into_iter().collect();
    }
}
