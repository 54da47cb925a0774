//! Computes the missing rules and our surplus ones.

use super::super::DataplaneCore;
use crate::kernel::RuleEntry;

impl DataplaneCore {
    /// Returns the missing rules. They are written after the routes of their table.
    pub fn missing_rules(&mut self) -> Vec<RuleEntry> {
        let wanted = self.wanted_rules();
        self.rules.ever_wanted.extend(wanted.iter().copied());
        let there = |rule| self.rules.there.iter().any(|entry| entry.rule == rule);
        let protocol = self.own_protocol();
        wanted.into_iter().filter(|rule| !there(*rule)).map(|rule| RuleEntry { rule, protocol }).collect()
    }

    /// Returns our rules that are no longer needed. They are removed before the routes of their table.
    pub fn unwanted_rules(&self) -> Vec<RuleEntry> {
        let wanted = self.wanted_rules();
        let ours = |entry: &&RuleEntry| {
            entry.protocol == self.own_protocol() || self.rules.ever_wanted.contains(&entry.rule)
        };
        let there = self.rules.there.iter().filter(|_| self.in_sync && self.settings.program_routes);
        there.filter(ours).filter(|entry| !wanted.contains(&entry.rule)).copied().collect()
    }

    pub fn rule_is(&mut self, entry: RuleEntry, present: bool) {
        self.rule_errors.remove(&entry.rule);
        if present {
            self.rules.there.insert(entry);
        } else {
            self.rules.there.remove(&entry);
        }
    }

    pub fn rule_failed(&mut self, entry: RuleEntry, reason: String) {
        self.rule_errors.insert(entry.rule, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelSnapshot;
    use regex::Regex;
    use std::time::Duration;
    use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate, RoutingRule, RoutingTable};

    fn rule(priority: u32) -> RoutingRule {
        RoutingRule { is_ipv4: true, priority, mark: 0x20_0000, table: RoutingTable(1) }
    }

    fn entry(priority: u32, protocol: u8) -> RuleEntry {
        RuleEntry { rule: rule(priority), protocol }
    }

    fn core(rules: Vec<RuleEntry>) -> DataplaneCore {
        let snapshot = KernelSnapshot { rules, ..KernelSnapshot::default() };
        DataplaneCore::new(
            DataplaneSettings::default(),
            Regex::new("^eth").unwrap(),
            1,
            snapshot,
            Duration::ZERO,
        )
    }

    fn plan(rules: &[u32]) -> NodePlan {
        NodePlan { routing_rules: rules.iter().copied().map(rule).collect(), ..NodePlan::default() }
    }

    #[test]
    fn ours_come_and_go_and_others_stay() {
        let mut core = core(vec![entry(50, 80), entry(60, 4)]);
        assert_eq!(core.unwanted_rules(), [], "before the first plan");
        core.replace(plan(&[99]));
        assert_eq!(core.missing_rules(), [entry(99, 80)]);
        assert_eq!(core.unwanted_rules(), [entry(50, 80)], "an old one of ours");
        core.rule_is(entry(99, 80), true);
        core.rule_is(entry(50, 80), false);
        assert_eq!((core.missing_rules(), core.unwanted_rules()), (vec![], vec![]));
        core.apply(PlanUpdate::RoutingRules([rule(98)].into()));
        assert_eq!((core.missing_rules(), core.unwanted_rules()), (vec![entry(98, 80)], vec![entry(99, 80)]));
    }

    #[test]
    fn one_that_somebody_else_wrote_before_us_is_used_and_goes_with_the_need_for_it() {
        let mut core = core(vec![entry(99, 0)]);
        core.replace(plan(&[99]));
        assert_eq!((core.missing_rules(), core.unwanted_rules()), (vec![], vec![]));
        core.replace(plan(&[]));
        assert_eq!(core.unwanted_rules(), [entry(99, 0)]);
    }
}
