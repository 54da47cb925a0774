//! Finds rules with HTTP conditions in clusters whose proxies receive no policy: the rules match nothing, or everything
//! on their ports. In other clusters, only the nodes know which workloads have a proxy; their health page reports the
//! workloads without one.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::name;
use tortie_model::Resource;
use tortie_plan::{PolicyDirection, RuleIndex};

pub fn find_rules_without_proxy(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut findings = Vec::new();
    if has_policy_sync(subject) {
        return findings;
    }
    for (id, policy) in &subject.enforced.plan.policies {
        for direction in [PolicyDirection::Ingress, PolicyDirection::Egress] {
            for (position, rule) in policy.rules(direction).iter().enumerate() {
                let Some(http) = &rule.http else { continue };
                let effect = if http.matches_without_proxy {
                    "it applies to whole connections, whatever the request"
                } else {
                    "it matches only on workloads with a proxy, so nothing"
                };
                findings.push(AnalysisFinding {
                    object: name(id),
                    check: "http-without-proxy",
                    reason: format!(
                        "{direction} rule {}: no proxy receives its http conditions; {effect}",
                        RuleIndex::at(position)
                    ),
                    advice: "Set policySyncPathPrefix in FelixConfiguration and give the workloads proxies, or remove http \
                             from the rule if whole connections may pass; FelixConfiguration httpRulesWithoutProxy sets \
                             what happens without a proxy (docs/policy.md)."
                        .to_owned(),
                });
            }
        }
    }
    findings
}

/// Returns whether some nodes send policy to proxies.
fn has_policy_sync(subject: &AnalyzedCluster) -> bool {
    subject.cluster.resources().any(|resource| match resource {
        Resource::FelixConfiguration(configuration) => !configuration.spec.policy_sync_path_prefix.is_empty(),
        _ => false,
    })
}
