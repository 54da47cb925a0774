//! Packets of the tunnels between nodes: they pass between nodes that are known, and are not taken from anybody else.

use super::super::rule::{Action, Family, Field, Match, Rule};
use super::{Sets, names};
use std::collections::BTreeMap;
use tortie_plan::{TunnelKind, TunnelProtocol};

const UDP: u8 = 17;
const IPIP: u8 = 4;

/// The tunnels of the plan.
#[derive(Clone, Copy)]
pub(crate) struct Tunnels<'s> {
    pub tunnels: &'s BTreeMap<TunnelKind, TunnelProtocol>,
    pub sets: &'s Sets,
}

impl Tunnels<'_> {
    /// What comes to this node: only from its peers.
    pub fn input(self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (kind, protocol) in self.tunnels {
            rules.extend(self.of_peers(*kind, *protocol, Field::Source(family(*kind))));
            let stranger = vec![Action::Count, Action::Drop];
            rules.push(Rule::new(wrapped(*kind, *protocol), stranger).says("a tunnel of no known node"));
        }
        rules
    }

    /// What this node sends to its peers.
    pub fn output(self) -> Vec<Rule> {
        let tunnels = self.tunnels.iter();
        let rules = tunnels
            .map(|(kind, protocol)| self.of_peers(*kind, *protocol, Field::Destination(family(*kind))));
        rules.flatten().collect()
    }

    /// Each packet has a source port of its own flow: to track them would be to track every flow twice.
    pub fn untracked(self) -> Vec<Rule> {
        let vxlan = self.tunnels.iter().filter(|(_, protocol)| **protocol != TunnelProtocol::Ipip);
        let rule = |(kind, protocol): (&TunnelKind, &TunnelProtocol)| {
            Rule::new(wrapped(*kind, *protocol), vec![Action::Untrack]).says("tunnels are not tracked")
        };
        vxlan.map(rule).collect()
    }

    fn of_peers(self, kind: TunnelKind, protocol: TunnelProtocol, field: Field) -> Vec<Rule> {
        let id = kind.peers();
        let mut sets = Vec::new();
        if self.sets.kind(&id).is_some() {
            sets.push(names::set(&id, family(kind)));
        }
        if self.sets.has_nets(&id, family(kind)) {
            sets.push(names::nets(&id, family(kind)));
        }
        let rule = |set: String| {
            let matches = wrapped(kind, protocol).into_iter().chain([Match::lookup([field], set)]).collect();
            Rule::new(matches, vec![Action::Accept]).says("tunnels between nodes")
        };
        sets.into_iter().map(rule).collect()
    }
}

fn family(kind: TunnelKind) -> Family {
    if kind.is_ipv4() { Family::V4 } else { Family::V6 }
}

fn wrapped(kind: TunnelKind, protocol: TunnelProtocol) -> Vec<Match> {
    let family = Match::family(family(kind));
    match protocol {
        TunnelProtocol::Vxlan { port, .. } => vec![
            family,
            Match::is(Field::Protocol, [UDP]),
            Match::is(Field::DestinationPort, port.to_be_bytes()),
        ],
        TunnelProtocol::Ipip => vec![family, Match::is(Field::Protocol, [IPIP])],
    }
}
