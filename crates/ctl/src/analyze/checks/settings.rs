//! Finds settings that are malformed, have no effect in this implementation, or allow on one node traffic
//! that the cluster denies.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::tiers::list_first;
use std::collections::{BTreeMap, BTreeSet};

pub fn find_settings_without_effect(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (node, parameters) in subject.resolve_parameters() {
        for warning in parameters.warnings() {
            nodes.entry(warning.clone()).or_default().insert(node.metadata.name.clone());
        }
    }
    let advice =
        "docs/settings.md describes each parameter; `tortie settings` shows the values in force on a node.";
    let findings = nodes.into_iter().map(|(warning, nodes)| AnalysisFinding {
        object: "FelixConfiguration".to_owned(),
        check: "setting-without-effect",
        reason: format!("{warning} (on {})", list_first(&nodes)),
        advice: advice.to_owned(),
    });
    findings.collect()
}
