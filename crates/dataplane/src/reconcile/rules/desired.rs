//! The routing rules of the plan, unless the settings forbid writing routes.

use super::super::DataplaneCore;
use std::collections::BTreeSet;
use tortie_plan::RoutingRule;

impl DataplaneCore {
    pub(in crate::reconcile) fn wanted_rules(&self) -> BTreeSet<RoutingRule> {
        let ours = |rule: &&RoutingRule| rule.is_ipv4 || self.settings.ipv6;
        let rules = self.plan.routing_rules().iter().filter(ours).copied();
        if self.settings.program_routes { rules.collect() } else { BTreeSet::new() }
    }
}
