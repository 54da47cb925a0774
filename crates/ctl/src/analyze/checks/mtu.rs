//! Finds inconsistent MTUs, with which only full-size packets are lost.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use super::tiers::list_first;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use tortie_compute::{NodeParameters, ParameterEnvironment};

const TUNNEL_MTU_PARAMETERS: [&str; 5] =
    ["ipipMTU", "vxlanMTU", "vxlanMTUV6", "wireguardMTU", "wireguardMTUV6"];

/// Finds nodes whose tunnels have different configured MTUs.
pub fn find_differing_tunnel_mtus(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut nodes: BTreeMap<(&str, String), BTreeSet<String>> = BTreeMap::new();
    for (node, parameters) in subject.resolve_parameters() {
        for in_force in parameters.all() {
            if let Some(name) = TUNNEL_MTU_PARAMETERS.iter().find(|name| **name == in_force.parameter.key) {
                nodes.entry((name, in_force.value.clone())).or_default().insert(node.metadata.name.clone());
            }
        }
    }
    let mut findings = Vec::new();
    for name in TUNNEL_MTU_PARAMETERS {
        let values: Vec<(&String, &BTreeSet<String>)> = nodes
            .iter()
            .filter(|((parameter, _), _)| *parameter == name)
            .map(|((_, value), nodes)| (value, nodes))
            .collect();
        if values.len() > 1 {
            let reported: Vec<String> =
                values.iter().map(|(value, nodes)| format!("{value} on {}", list_first(nodes))).collect();
            findings.push(AnalysisFinding {
                object: "FelixConfiguration".to_owned(),
                check: "mtu-differs",
                reason: format!("{name} is {}", reported.join(", ")),
                advice: "Set the same MTU on all nodes, or leave it out: 0 means that it is found by itself."
                    .to_owned(),
            });
        }
    }
    findings
}

/// Finds workload interfaces of this host with a larger MTU than the host's own interfaces.
pub fn find_large_workload_mtus(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let parameters = NodeParameters::resolve(
        "",
        &BTreeMap::new(),
        subject.felix_configurations(),
        &ParameterEnvironment::default(),
    );
    let Ok(pattern) = Regex::new(&parameters.mtu_iface_pattern) else { return Vec::new() };
    let is_workload = |name: &str| name.starts_with("cali");
    let uplinks = subject.interfaces.iter().filter(|(name, _)| pattern.is_match(name) && !is_workload(name));
    let Some((uplink, most)) = uplinks.min_by_key(|(_, mtu)| *mtu) else { return Vec::new() };
    let larger: BTreeSet<String> = subject
        .interfaces
        .iter()
        .filter(|(name, mtu)| is_workload(name) && mtu > most)
        .map(|(name, mtu)| format!("{name} ({mtu})"))
        .collect();
    if larger.is_empty() {
        return Vec::new();
    }
    vec![AnalysisFinding {
        object: "this host".to_owned(),
        check: "mtu-too-large",
        reason: format!("workload interfaces have a larger MTU than {uplink} ({most}): {}", list_first(&larger)),
        advice: "Workloads get the MTU of the host's interface when they start: restart them, or set \"mtu\" in the \
                 CNI configuration."
            .to_owned(),
    }]
}
