//! Builds rules from ports grouped by protocol, merged into the fewest possible ranges.

use crate::kinds::{Action, EntityRule, Rule, RuleMetadata};
use crate::scalar::{Port, Protocol};
use std::collections::BTreeMap;

/// The ports of each protocol that a rule matches. `None` means any protocol, an empty list means all ports.
pub type PortsByProtocol = Vec<(Option<Protocol>, Vec<Port>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleDirection {
    /// The peers are sources; the ports belong to the selected pods.
    Ingress,
    /// The peers are destinations, and the ports belong to them.
    Egress,
}

/// Returns one rule per protocol and peer.
pub fn rules(
    action: &Action,
    metadata: Option<&RuleMetadata>,
    protocols: &PortsByProtocol,
    peers: &[EntityRule],
    towards: RuleDirection,
) -> Vec<Rule> {
    let mut rules = Vec::with_capacity(protocols.len() * peers.len());
    for (protocol, ports) in protocols {
        for peer in peers {
            let mut rule = Rule {
                action: action.clone(),
                protocol: protocol.clone(),
                metadata: metadata.cloned(),
                ..Rule::default()
            };
            match towards {
                RuleDirection::Egress => {
                    rule.destination = EntityRule { ports: ports.clone(), ..peer.clone() }
                }
                RuleDirection::Ingress => {
                    rule.source = peer.clone();
                    rule.destination.ports = ports.clone();
                }
            }
            rules.push(rule);
        }
    }
    rules
}

/// Returns the ports of each protocol; `None` means all ports.
pub fn ports_by_protocol(protocols: BTreeMap<&str, Option<Vec<Port>>>) -> PortsByProtocol {
    let entries = protocols.into_iter();
    entries.map(|(name, ports)| (Some(Protocol::from(name)), merged(ports.unwrap_or_default()))).collect()
}

/// Returns the named ports followed by the fewest ranges that contain the same port numbers.
fn merged(ports: Vec<Port>) -> Vec<Port> {
    let mut names = Vec::new();
    let mut ranges = Vec::new();
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
