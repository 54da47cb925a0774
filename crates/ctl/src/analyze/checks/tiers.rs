//! Finds tiers whose default action denies traffic before a later tier is evaluated.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{PolicyDirection, RuleAction, TierDefaultAction};

pub fn find_hidden_tiers(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let plan = &subject.enforced.plan;
    let mut endpoints: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (endpoint, tiers) in subject.tiers() {
        for direction in [PolicyDirection::Ingress, PolicyDirection::Egress] {
            let mut governing =
                tiers.iter().filter(|tier| tier.policies(direction).iter().any(|id| !id.kind.is_staged()));
            while let Some(tier) = governing.next() {
                let rules = tier.policies(direction).iter().filter_map(|id| plan.policies.get(id));
                let passes = rules
                    .flat_map(|policy| policy.rules(direction))
                    .any(|rule| rule.action == RuleAction::Pass);
                if passes || tier.end == TierDefaultAction::Pass {
                    continue;
                }
                if let Some(later) = governing.next() {
                    endpoints
                        .entry((tier.name.clone(), later.name.clone()))
                        .or_default()
                        .insert(endpoint.clone());
                }
                break;
            }
        }
    }
    let findings = endpoints.into_iter().map(|((tier, later), endpoints)| AnalysisFinding {
        object: format!("Tier({tier})"),
        check: "tier-hides-later",
        reason: format!(
            "it ends with a deny, so policies of tier {later} are never evaluated for {}",
            list_first(&endpoints)
        ),
        advice: "Give the tier defaultAction: Pass, or end its policies with a rule of action Pass."
            .to_owned(),
    });
    findings.collect()
}

/// Lists the first few names.
pub(super) fn list_first(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
