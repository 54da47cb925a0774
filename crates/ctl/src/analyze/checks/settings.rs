//! Finds settings that are malformed, have no effect in this implementation, or allow on one node traffic
//! that the cluster denies.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::tiers::some;
use std::collections::{BTreeMap, BTreeSet};
use tortie_compute::{NodeParameters, ParameterEnvironment};
use tortie_model::Resource;

pub fn without_effect(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let all: Vec<_> = subject
        .cluster
        .resources()
        .filter_map(|resource| match resource {
            Resource::FelixConfiguration(configuration) => Some(&**configuration),
            _ => None,
        })
        .collect();
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in subject.cluster.nodes() {
        let meta = &node.metadata;
        let resolved = NodeParameters::resolve(
            &meta.name,
            &meta.labels,
            all.iter().copied(),
            &ParameterEnvironment::default(),
        );
        for warning in resolved.warnings() {
            nodes.entry(warning.clone()).or_default().insert(meta.name.clone());
        }
    }
    let finding = |(warning, nodes): (String, BTreeSet<String>)| {
        AnalysisFinding {
        object: "FelixConfiguration".to_owned(),
        check: "setting-without-effect",
        reason: format!("{warning} (on {})", some(&nodes)),
        advice: "See docs/settings.md for what each parameter does; `tortie settings` shows the values in force on a node."
            .to_owned(),
    }
    };
    nodes.into_iter().map(finding).collect()
}
