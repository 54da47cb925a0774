//! Finds configured modes of the network that are not in force: pools without routes between nodes, missing tunnels and
//! encryption. Only a node knows whether it runs BGP and which devices its kernel supports, so the checks read the warnings
//! and the keys that nodes publish.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::tiers::list_first;
use std::collections::{BTreeMap, BTreeSet};
use tortie_model::kinds::NetworkWarning;

/// Checks of reports of nodes. They do not apply to a change that the nodes have not received yet.
pub const NODE_REPORTED_CHECKS: [&str; 2] = [NOT_IN_FORCE_CHECK, NOT_ENCRYPTING_CHECK];
const NOT_IN_FORCE_CHECK: &str = "network-not-in-force";
const NOT_ENCRYPTING_CHECK: &str = "wireguard-not-in-force";

/// Reports the warnings that nodes publish in their Node objects, once for all nodes with the same warning.
pub fn find_modes_not_in_force(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut nodes: BTreeMap<NetworkWarning, BTreeSet<String>> = BTreeMap::new();
    for node in subject.cluster.nodes() {
        for warning in node.network_warnings() {
            nodes.entry(warning).or_default().insert(node.metadata.name.clone());
        }
    }
    let findings = nodes.into_iter().map(|(warning, nodes)| AnalysisFinding {
        object: warning.object,
        check: NOT_IN_FORCE_CHECK,
        reason: format!("{} (on {})", warning.reason, list_first(&nodes)),
        advice: format!("{}.", capitalize(&warning.advice)),
    });
    findings.collect()
}

/// Finds nodes that should encrypt but have published no public key, so that all nodes send them clear text.
pub fn find_nodes_not_encrypting(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut nodes: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (node, parameters) in subject.resolve_parameters() {
        let settings = [
            ("wireguardEnabled", parameters.wireguard_enabled, &node.status.wireguard_public_key),
            ("wireguardEnabledV6", parameters.wireguard_enabled_v6, &node.status.wireguard_public_key_v6),
        ];
        for (setting, _, _) in settings.into_iter().filter(|(_, enabled, key)| *enabled && key.is_empty()) {
            nodes.entry(setting).or_default().insert(node.metadata.name.clone());
        }
    }
    let advice =
        "Packets to and from them are sent in clear text; `tortie health` on such a node shows the reason.";
    let findings = nodes.into_iter().map(|(setting, nodes)| AnalysisFinding {
        object: "FelixConfiguration".to_owned(),
        check: NOT_ENCRYPTING_CHECK,
        reason: format!("{setting} is set, but these nodes do not encrypt: {}", list_first(&nodes)),
        advice: advice.to_owned(),
    });
    findings.collect()
}

fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
