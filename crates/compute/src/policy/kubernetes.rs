//! Kubernetes policies as policies of ours.

use std::collections::BTreeMap;
use tortie_model::kinds::{
    Action, EntityRule, KubernetesPeer, KubernetesPort, KubernetesProtocol, LabelOperator, LabelSelector,
    Rule, StagedKubernetesNetworkPolicySpec,
};
use tortie_model::scalar::{Port, Protocol, StringEnum};

pub(super) const ORDER: f64 = 1000.0;
const PODS_ONLY: &str = "projectcalico.org/orchestrator == 'k8s'";

/// Which pods of its namespace a policy is about.
pub(super) fn selector(spec: &StagedKubernetesNetworkPolicySpec) -> String {
    of_pods(&spec.pod_selector)
}

pub(super) fn ingress(spec: &StagedKubernetesNetworkPolicySpec) -> Vec<Rule> {
    spec.ingress.iter().flat_map(|rule| expand(&rule.ports, &rule.from, false)).collect()
}

pub(super) fn egress(spec: &StagedKubernetesNetworkPolicySpec) -> Vec<Rule> {
    spec.egress.iter().flat_map(|rule| expand(&rule.ports, &rule.to, true)).collect()
}

/// One rule for each protocol and each peer.
fn expand(ports: &[KubernetesPort], peers: &[KubernetesPeer], egress: bool) -> Vec<Rule> {
    // Ports that cannot be read take their rule with them, not the policy.
    let Some(protocols) = by_protocol(ports) else { return Vec::new() };
    let everybody = [EntityRule::default()];
    let peers: Vec<EntityRule> = peers.iter().map(entity).collect();
    let peers = if peers.is_empty() { &everybody[..] } else { &peers[..] };
    let mut rules = Vec::new();
    for (protocol, ports) in protocols {
        for peer in peers {
            let mut rule = Rule { action: Action::Allow, protocol: protocol.clone(), ..Rule::default() };
            if egress {
                rule.destination = EntityRule { ports: ports.clone(), ..peer.clone() };
            } else {
                rule.source = peer.clone();
                rule.destination.ports = ports.clone();
            }
            rules.push(rule);
        }
    }
    rules
}

/// The ports of each protocol, protocols in the order of their names; no ports mean all of them.
fn by_protocol(ports: &[KubernetesPort]) -> Option<Vec<(Option<Protocol>, Vec<Port>)>> {
    if ports.is_empty() {
        return Some(vec![(None, Vec::new())]);
    }
    let mut protocols: BTreeMap<&str, Option<Vec<Port>>> = BTreeMap::new();
    for port in ports {
        let name = port.protocol.as_ref().filter(|p| !p.is_unset()).map_or("TCP", KubernetesProtocol::as_str);
        let listed = protocols.entry(name).or_insert_with(|| Some(Vec::new()));
        match (&port.port, port.end_port) {
            (None, _) => *listed = None,
            (Some(Port::Number(first)), Some(last)) => {
                let range = Port::range(*first, u16::try_from(last).ok()?).ok()?;
                listed.as_mut().into_iter().for_each(|ports| ports.push(range.clone()));
            }
            (Some(port), _) => listed.as_mut().into_iter().for_each(|ports| ports.push(port.clone())),
        }
    }
    let named = |(name, ports): (&str, Option<Vec<Port>>)| {
        (Some(Protocol::from(name)), merged(ports.unwrap_or_default()))
    };
    Some(protocols.into_iter().map(named).collect())
}

/// Names first, then the fewest ranges that hold the same numbers.
fn merged(ports: Vec<Port>) -> Vec<Port> {
    let (mut names, mut ranges) = (Vec::new(), Vec::new());
    for port in ports {
        match port.bounds() {
            Some(bounds) => ranges.push(bounds),
            None => names.push(port),
        }
    }
    ranges.sort_unstable();
    let mut joined: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if u32::from(first) <= u32::from(*end) + 1 => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    names.extend(joined.into_iter().filter_map(|(first, last)| Port::range(first, last).ok()));
    names
}

fn entity(peer: &KubernetesPeer) -> EntityRule {
    if let Some(block) = &peer.ip_block {
        return EntityRule {
            nets: vec![block.cidr.clone()],
            not_nets: block.except.clone(),
            ..EntityRule::default()
        };
    }
    let namespace_selector = match &peer.namespace_selector {
        None => String::new(),
        Some(selector) => match clauses(selector) {
            clauses if clauses.is_empty() => "all()".to_owned(),
            clauses => clauses.join(" && "),
        },
    };
    let pods = peer.pod_selector.clone().unwrap_or_default();
    EntityRule { selector: of_pods(&pods), namespace_selector, ..EntityRule::default() }
}

fn of_pods(selector: &LabelSelector) -> String {
    let mut all = vec![PODS_ONLY.to_owned()];
    all.extend(clauses(selector));
    all.join(" && ")
}

fn clauses(selector: &LabelSelector) -> Vec<String> {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key} == '{value}'"));
    let expressions = selector.match_expressions.iter().map(|requirement| {
        let key = &requirement.key;
        let values: Vec<String> = requirement.values.iter().map(|value| format!("'{value}'")).collect();
        let values = values.join(", ");
        match requirement.operator {
            LabelOperator::In => format!("{key} in {{ {values} }}"),
            LabelOperator::NotIn => format!("{key} not in {{ {values} }}"),
            LabelOperator::Exists => format!("has({key})"),
            // Validation lets no other operator through.
            LabelOperator::DoesNotExist | LabelOperator::Unknown(_) => format!("! has({key})"),
        }
    });
    labels.chain(expressions).collect()
}
