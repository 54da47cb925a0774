//! Finds selectors of policies and rules that match nothing.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::name;
use std::collections::BTreeSet;
use tortie_model::Resource;
use tortie_plan::{PolicyDirection, PolicyId, RuleIndex, RuleSide, SetId};

/// Finds policies that select no endpoint: the plan contains a policy only if it selects one.
pub fn find_unmatched_policies(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let in_force: BTreeSet<String> = subject.enforced.plan.policies.keys().map(name).collect();
    let all = subject
        .cluster
        .resources()
        .filter(|resource| matches!(resource, Resource::NetworkPolicy(_) | Resource::GlobalNetworkPolicy(_)));
    let idle = all.filter(|resource| !in_force.contains(&resource.identify()));
    idle.map(|resource| AnalysisFinding {
        object: resource.identify(),
        check: "policy-selects-nothing",
        reason: "its selector matches no endpoint".to_owned(),
        advice:
            "Compare the selector with the labels that `calicoctl get workloadendpoints -A -o yaml` shows; \
                 the policy is not enforced anywhere."
                .to_owned(),
    })
    .collect()
}

/// Finds rules that require membership in an empty set.
pub fn find_unmatched_rules(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let plan = &subject.enforced.plan;
    let empty = |id: &SetId| plan.sets.get(id).is_none_or(|set| set.members.is_empty());
    let mut findings = Vec::new();
    for (id, policy) in &plan.policies {
        for (direction, word) in [(PolicyDirection::Ingress, "ingress"), (PolicyDirection::Egress, "egress")]
        {
            for (position, rule) in policy.rules(direction).iter().enumerate() {
                for (side, end) in [(&rule.source, "source"), (&rule.destination, "destination")] {
                    let number = RuleIndex::at(position);
                    if side.sets.iter().any(empty) {
                        findings.push(build_finding(
                            id,
                            word,
                            number,
                            format!("the selector of its {end} matches nothing"),
                        ));
                    }
                    if only_named_ports(side) && side.named_ports.iter().all(empty) {
                        let why = format!("no endpoint has a port of the name that its {end} asks for");
                        findings.push(build_finding(id, word, number, why));
                    }
                }
            }
        }
    }
    findings
}

fn only_named_ports(side: &RuleSide) -> bool {
    !side.named_ports.is_empty() && side.ports.is_empty()
}

fn build_finding(id: &PolicyId, direction: &str, number: RuleIndex, why: String) -> AnalysisFinding {
    AnalysisFinding {
        object: name(id),
        check: "rule-matches-nothing",
        reason: format!("{direction} rule {number} never matches: {why}"),
        advice: "Compare it with the labels and ports of the endpoints, or with the network sets, that it is about; \
                 remove the rule if they are gone for good."
            .to_owned(),
    }
}
