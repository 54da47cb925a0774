//! Finds rules with HTTP conditions on endpoints without a proxy: they match nothing, or everything on their ports.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::name;
use tortie_plan::{PolicyDirection, RuleIndex};

pub fn rules_without_proxy(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut findings = Vec::new();
    for (id, policy) in &subject.enforced.plan.policies {
        for direction in [PolicyDirection::Ingress, PolicyDirection::Egress] {
            for (position, rule) in policy.rules(direction).iter().enumerate() {
                let Some(http) = &rule.http else { continue };
                let effect = if http.matches_without_proxy {
                    "it applies to whole connections, whatever the request"
                } else {
                    "it matches nothing"
                };
                findings.push(AnalysisFinding {
                    object: name(id),
                    check: "http-without-proxy",
                    reason: format!(
                        "{direction} rule {}: no proxy enforces its http conditions; {effect}",
                        RuleIndex::at(position)
                    ),
                    advice: "Remove http from the rule if whole connections may pass; \
                             FelixConfiguration httpRulesWithoutProxy sets what happens without a proxy (docs/policy.md)."
                        .to_owned(),
                });
            }
        }
    }
    findings
}
