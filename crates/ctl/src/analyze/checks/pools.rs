//! Finds pools from which no node can assign addresses.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use tortie_model::Resource;
use tortie_model::selector::Selector;

pub fn find_unusable_pools(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut findings = Vec::new();
    for resource in subject.cluster.resources() {
        let Resource::IPPool(pool) = resource else { continue };
        let spec = &pool.spec;
        if spec.disabled || spec.node_selector.is_empty() {
            continue;
        }
        let Ok(selector) = Selector::parse(&spec.node_selector) else { continue };
        if !subject.cluster.nodes().any(|node| selector.matches(&node.metadata.labels)) {
            findings.push(AnalysisFinding {
                object: resource.identify(),
                check: "pool-without-nodes",
                reason: format!("its nodeSelector ({}) matches no node, so no addresses are assigned from it", spec.node_selector),
                advice: "Compare it with the labels that `calicoctl get nodes -o yaml` shows, or disable the pool."
                    .to_owned(),
            });
        }
    }
    findings
}
