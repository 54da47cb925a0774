//! Finds BGP peers whose sessions are never established: no node matches, or a filter or the password is
//! missing.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use tortie_model::kinds::BGPPeerSpec;
use tortie_model::selector::Selector;
use tortie_model::{Kind, Resource};

pub fn find_peer_mistakes(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut findings = Vec::new();
    for resource in subject.cluster.resources() {
        let Resource::BGPPeer(peer) = resource else { continue };
        let mut add = |check, reason: String, advice: &str| {
            findings.push(AnalysisFinding {
                object: resource.identify(),
                check,
                reason,
                advice: advice.to_owned(),
            });
        };
        let spec = &peer.spec;
        if let Some(reason) = explain_missing_node(subject, spec) {
            add(
                "peer-without-node",
                reason,
                "Name a node that exists, or correct the selector; no session is made until then.",
            );
        }
        if !spec.peer_selector.is_empty() && !matches_a_node(subject, &spec.peer_selector) {
            let reason = format!("its peerSelector ({}) matches no node", spec.peer_selector);
            add(
                "peer-without-node",
                reason,
                "Compare it with the labels that `calicoctl get nodes -o yaml` shows.",
            );
        }
        for filter in spec.filters.iter().filter(|name| !subject.cluster.has(Kind::BGPFilter, name)) {
            let reason = format!("it names BGPFilter {filter}, which does not exist");
            add("filter-missing", reason, "Create the filter, or remove its name from the peer.");
        }
        if let Some(path) = find_missing_secret(subject, spec) {
            let reason = format!("its password is missing: {path} does not exist");
            add(
                "secret-missing",
                reason,
                "Write the password into that file on every node that has the peer.",
            );
        }
    }
    findings
}

fn explain_missing_node(subject: &AnalyzedCluster, spec: &BGPPeerSpec) -> Option<String> {
    if !spec.node.is_empty() && !subject.cluster.has(Kind::Node, &spec.node) {
        return Some(format!("it is for node {}, which does not exist", spec.node));
    }
    (!spec.node_selector.is_empty() && !matches_a_node(subject, &spec.node_selector))
        .then(|| format!("its nodeSelector ({}) matches no node", spec.node_selector))
}

fn matches_a_node(subject: &AnalyzedCluster, selector: &str) -> bool {
    // Selectors are validated when the object is written, so an unparsable one is ignored here.
    Selector::parse(selector)
        .map_or(true, |selector| subject.cluster.nodes().any(|node| selector.matches(&node.metadata.labels)))
}

fn find_missing_secret(subject: &AnalyzedCluster, spec: &BGPPeerSpec) -> Option<String> {
    let reference = spec.password.as_ref()?.secret_key_ref.as_ref()?;
    let path = subject.secrets.as_ref()?.join(&reference.name).join(&reference.key);
    (!path.exists()).then(|| path.display().to_string())
}
