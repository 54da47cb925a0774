//! Finds rules and policies that are never evaluated, because an earlier one decides every packet.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::{ends_everything, name};
use std::collections::BTreeMap;
use tortie_plan::{PolicyDirection, PolicyId, RuleIndex};

const DIRECTIONS: [(PolicyDirection, &str); 2] =
    [(PolicyDirection::Ingress, "ingress"), (PolicyDirection::Egress, "egress")];

pub fn find_unreachable_rules(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut findings = Vec::new();
    for (id, policy) in &subject.enforced.plan.policies {
        for (direction, word) in DIRECTIONS {
            let rules = policy.rules(direction);
            let Some(last) = rules.iter().position(ends_everything) else { continue };
            let hidden = rules.len() - last - 1;
            if hidden > 0 {
                let decides = RuleIndex::at(last);
                findings.push(AnalysisFinding {
                    object: name(id),
                    check: "rule-never-reached",
                    reason: format!(
                        "{word} rule {decides} matches everything; rules after it are never evaluated: {hidden}"
                    ),
                    advice: format!("Move rule {decides} to the end, or remove what follows it."),
                });
            }
        }
    }
    findings
}

/// Finds policies that are evaluated for none of their endpoints, because an earlier policy of the tier
/// decides every packet.
pub fn find_unreachable_policies(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let plan = &subject.enforced.plan;
    // The policy that hides each policy; `None` as soon as it is evaluated for one endpoint.
    let mut hidden: BTreeMap<(&PolicyId, &str), Option<&PolicyId>> = BTreeMap::new();
    for (_, tiers) in subject.tiers() {
        for (tier, (direction, word)) in
            tiers.iter().flat_map(|tier| DIRECTIONS.map(|direction| (tier, direction)))
        {
            let mut decided: Option<&PolicyId> = None;
            for id in tier.policies(direction).iter().filter(|id| !id.kind.is_staged()) {
                let by = hidden.entry((id, word)).or_insert(decided);
                if decided.is_none() {
                    *by = None;
                    let rules =
                        plan.policies.get(id).map(|policy| policy.rules(direction)).unwrap_or_default();
                    decided = rules.iter().any(ends_everything).then_some(id);
                }
            }
        }
    }
    let findings = hidden.into_iter().filter_map(|((id, word), by)| {
        let rules = plan.policies.get(id)?;
        let direction = if word == "ingress" { PolicyDirection::Ingress } else { PolicyDirection::Egress };
        if rules.rules(direction).is_empty() {
            return None;
        }
        let by = name(by?);
        Some(AnalysisFinding {
            object: name(id),
            check: "policy-never-reached",
            reason: format!(
                "its {word} rules are never evaluated: {by} comes before it and decides about every packet"
            ),
            advice: format!("Give it a lower order than {by}, or remove it."),
        })
    });
    findings.collect()
}
