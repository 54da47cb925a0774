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
    /// What comes to this node from anybody but its peers.
    pub fn strangers(self) -> Vec<Rule> {
        let rule = |(kind, protocol): (&TunnelKind, &TunnelProtocol)| {
            let source = Field::Source(family(*kind));
            let unknown = self.peers(*kind).into_iter().map(|set| Match::lookup([source], set).not());
            let matches = wrapped(*kind, *protocol).into_iter().chain(unknown).collect();
            Rule::new(matches, vec![Action::Count, Action::Drop]).says("a tunnel of no known node")
        };
        self.tunnels.iter().map(rule).collect()
    }

    /// What comes to this node from its peers.
    pub fn input(self) -> Vec<Rule> {
        let tunnels = self.tunnels.iter();
        let rules =
            tunnels.map(|(kind, protocol)| self.of_peers(*kind, *protocol, Field::Source(family(*kind))));
        rules.flatten().collect()
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
        let rule = |set: String| {
            let matches = wrapped(kind, protocol).into_iter().chain([Match::lookup([field], set)]).collect();
            Rule::new(matches, vec![Action::Accept]).says("tunnels between nodes")
        };
        self.peers(kind).into_iter().map(rule).collect()
    }

    /// The kernel's sets that together have the peers of a tunnel.
    fn peers(self, kind: TunnelKind) -> Vec<String> {
        let id = kind.peers();
        let mut sets = Vec::new();
        if self.sets.kind(&id).is_some() {
            sets.push(names::set(&id, family(kind)));
        }
        if self.sets.has_nets(&id, family(kind)) {
            sets.push(names::nets(&id, family(kind)));
        }
        sets
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
