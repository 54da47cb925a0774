//! Finds pods that no policy selects, so that only their profiles apply. Reported once per namespace.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::tiers::list_first;
use std::collections::{BTreeMap, BTreeSet};

pub fn find_unprotected_pods(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let plan = &subject.enforced.plan;
    let mut open: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, policy) in &plan.workload_policies {
        let policies = policy.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()));
        if policies.filter(|policy| !policy.kind.is_staged()).count() == 0 {
            let namespace = id.workload.split_once('/').map_or("", |(namespace, _)| namespace);
            open.entry(namespace.to_owned()).or_default().insert(id.workload.clone());
        }
    }
    let findings = open.into_iter().map(|(namespace, pods)| AnalysisFinding {
        object: format!("Namespace({namespace})"),
        check: "pods-without-policy",
        reason: format!("no policy selects {}", list_first(&pods)),
        advice: "Write a policy for them; until then their profiles decide, which usually allow everything."
            .to_owned(),
    });
    findings.collect()
}
