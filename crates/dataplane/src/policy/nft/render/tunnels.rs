//! Rules for the encapsulated packets of the tunnels between nodes: accepted from and to known nodes, dropped from any
//! other source.

use super::super::rule::{Action, Family, Field, Match, Rule, interface};
use super::{Sets, names};
use std::collections::BTreeMap;
use tortie_plan::{TunnelDevice, TunnelKind, TunnelProtocol};

const UDP: u8 = 17;
const IPIP: u8 = 4;

/// Properties of a tunnel that rules depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub device: String,
    pub protocol: TunnelProtocol,
    /// Whether packets that the host sends through the tunnel get the device's own address.
    pub masquerades: bool,
}

impl From<&TunnelDevice> for Tunnel {
    fn from(device: &TunnelDevice) -> Tunnel {
        // A WireGuard device has no address if nodes use their own addresses.
        let wireguard = matches!(device.protocol, TunnelProtocol::Wireguard { .. });
        Tunnel {
            device: device.name.clone(),
            protocol: device.protocol,
            masquerades: !wireguard || device.address.is_some(),
        }
    }
}

/// The tunnels of the plan.
#[derive(Clone, Copy)]
pub(crate) struct Tunnels<'s> {
    pub tunnels: &'s BTreeMap<TunnelKind, Tunnel>,
    pub sets: &'s Sets,
}

impl Tunnels<'_> {
    fn iter(self) -> impl Iterator<Item = (TunnelKind, TunnelProtocol)> {
        self.tunnels.iter().map(|(kind, tunnel)| (*kind, tunnel.protocol))
    }

    /// Returns rules that drop tunnel packets from sources other than the peers. WireGuard authenticates its peers
    /// itself.
    pub fn strangers(self) -> Vec<Rule> {
        let rule = |(kind, protocol): (TunnelKind, TunnelProtocol)| {
            let source = Field::Source(family(kind));
            let unknown = self.peers(kind).into_iter().map(|set| Match::lookup([source], set).not());
            let matches = wrapped(kind, protocol).into_iter().chain(unknown).collect();
            Rule::new(matches, vec![Action::Count, Action::Drop]).says("a tunnel of no known node")
        };
        self.iter().filter(|(kind, _)| !kind.is_wireguard()).map(rule).collect()
    }

    /// Returns rules that accept tunnel packets from the peers.
    pub fn input(self) -> Vec<Rule> {
        let rules =
            self.iter().map(|(kind, protocol)| self.of_peers(kind, protocol, Field::Source(family(kind))));
        rules.flatten().collect()
    }

    /// Returns rules that accept tunnel packets to the peers.
    pub fn output(self) -> Vec<Rule> {
        let rules = self
            .iter()
            .map(|(kind, protocol)| self.of_peers(kind, protocol, Field::Destination(family(kind))));
        rules.flatten().collect()
    }

    /// Returns rules that exempt VXLAN from connection tracking. The outer source port depends on the inner flow, so
    /// tracking would create a second entry for every flow.
    pub fn untracked(self) -> Vec<Rule> {
        let vxlan = self.iter().filter(|(_, protocol)| matches!(protocol, TunnelProtocol::Vxlan { .. }));
        let rule = |(kind, protocol): (TunnelKind, TunnelProtocol)| {
            Rule::new(wrapped(kind, protocol), vec![Action::Untrack]).says("tunnels are not tracked")
        };
        vxlan.map(rule).collect()
    }

    fn of_peers(self, kind: TunnelKind, protocol: TunnelProtocol, field: Field) -> Vec<Rule> {
        let rule = |peers: Option<Match>| {
            let matches = wrapped(kind, protocol).into_iter().chain(peers).collect();
            Rule::new(matches, vec![Action::Accept]).says("tunnels between nodes")
        };
        if kind.is_wireguard() {
            return vec![rule(None)];
        }
        let sets = self.peers(kind).into_iter();
        sets.map(|set| rule(Some(Match::lookup([field], set)))).collect()
    }

    /// Returns rules that mark packets which arrive unencrypted, if encryption between nodes is enabled: the reverse
    /// path lookup for their source must not lead into the tunnel.
    pub fn open_arrivals(self) -> Vec<Rule> {
        let marks = self.tunnels.iter().filter_map(|(kind, tunnel)| match tunnel.protocol {
            TunnelProtocol::Wireguard { mark, .. } => Some((*kind, mark)),
            TunnelProtocol::Vxlan { .. } | TunnelProtocol::Ipip => None,
        });
        let devices = self
            .tunnels
            .values()
            .filter(|tunnel| matches!(tunnel.protocol, TunnelProtocol::Wireguard { .. }));
        let inside: Vec<Match> = devices
            .map(|tunnel| tunnel.device.as_str())
            .chain(["lo"])
            .map(|name| Match::is(Field::InInterface, interface(name)).not())
            .collect();
        let rule = |(kind, mark): (TunnelKind, u32)| {
            let matches = [vec![Match::family(family(kind))], inside.clone()].concat();
            Rule::new(matches, vec![Action::SetMark(mark)]).says("not encrypted")
        };
        marks.map(rule).collect()
    }

    /// Returns the kernel's sets that together contain the peers of a tunnel.
    fn peers(self, kind: TunnelKind) -> Vec<String> {
        let Some(id) = kind.peers() else { return Vec::new() };
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
        TunnelProtocol::Vxlan { port, .. } | TunnelProtocol::Wireguard { port, .. } => vec![
            family,
            Match::is(Field::Protocol, [UDP]),
            Match::is(Field::DestinationPort, port.to_be_bytes()),
        ],
        TunnelProtocol::Ipip => vec![family, Match::is(Field::Protocol, [IPIP])],
    }
}
