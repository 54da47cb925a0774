//! Rules for the encapsulated packets of the tunnels between nodes: accepted from and to known nodes, dropped from any
//! other source.

use super::super::flow::FlowSlot;
use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, interface};
use super::{KnownSets, flow};
use std::collections::BTreeMap;
use tortie_plan::flow::FlowCause;
use tortie_plan::{PolicySettings, TunnelDevice, TunnelKind, TunnelProtocol};

const UDP: u8 = 17;
const IPIP: u8 = 4;

/// Properties of a tunnel that rules depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelProperties {
    pub device: String,
    pub protocol: TunnelProtocol,
    /// Whether packets that the host sends through the tunnel get the device's own address.
    pub masquerades: bool,
}

impl From<&TunnelDevice> for TunnelProperties {
    fn from(device: &TunnelDevice) -> TunnelProperties {
        // A WireGuard device has no address if nodes use their own addresses.
        let wireguard = matches!(device.protocol, TunnelProtocol::Wireguard { .. });
        TunnelProperties {
            device: device.name.clone(),
            protocol: device.protocol,
            masquerades: !wireguard || device.address.is_some(),
        }
    }
}

/// The tunnels of the plan.
#[derive(Clone, Copy)]
pub struct TunnelRenderer<'s> {
    pub tunnels: &'s BTreeMap<TunnelKind, TunnelProperties>,
    pub sets: &'s KnownSets,
}

impl TunnelRenderer<'_> {
    fn iter(self) -> impl Iterator<Item = (TunnelKind, TunnelProtocol)> {
        self.tunnels.iter().map(|(kind, tunnel)| (*kind, tunnel.protocol))
    }

    /// Returns rules that drop tunnel packets from sources other than the peers. WireGuard authenticates its peers
    /// itself.
    pub fn strangers(self, settings: &PolicySettings) -> Vec<NftRule> {
        let mut rules = Vec::new();
        for (kind, protocol) in self.iter().filter(|(kind, _)| !kind.is_wireguard()) {
            let source = NftField::Source(family(kind));
            let unknown = self.peers(kind).into_iter().map(|set| NftMatch::lookup([source], set).not());
            let matches = wrapped(kind, protocol).into_iter().chain(unknown).collect();
            let drop = flow::drop_untracked(settings, FlowSlot::Ingress, &FlowCause::UnknownTunnel);
            rules.push(NftRule::new(matches, drop).says("a tunnel of no known node"));
        }
        rules
    }

    /// Returns rules that accept tunnel packets from the peers.
    pub fn input(self) -> Vec<NftRule> {
        let rules =
            self.iter().map(|(kind, protocol)| self.of_peers(kind, protocol, NftField::Source(family(kind))));
        rules.flatten().collect()
    }

    /// Returns rules that accept tunnel packets to the peers.
    pub fn output(self) -> Vec<NftRule> {
        let rules = self
            .iter()
            .map(|(kind, protocol)| self.of_peers(kind, protocol, NftField::Destination(family(kind))));
        rules.flatten().collect()
    }

    /// Returns rules that exempt VXLAN from connection tracking. The outer source port depends on the inner flow, so
    /// tracking would create a second entry for every flow.
    pub fn untracked(self) -> Vec<NftRule> {
        let mut rules = Vec::new();
        for (kind, protocol) in self.iter() {
            if matches!(protocol, TunnelProtocol::Vxlan { .. }) {
                let rule = NftRule::new(wrapped(kind, protocol), vec![NftAction::Untrack]);
                rules.push(rule.says("tunnels are not tracked"));
            }
        }
        rules
    }

    fn of_peers(self, kind: TunnelKind, protocol: TunnelProtocol, field: NftField) -> Vec<NftRule> {
        let mut peers: Vec<Option<NftMatch>> =
            self.peers(kind).into_iter().map(|set| Some(NftMatch::lookup([field], set))).collect();
        if kind.is_wireguard() {
            peers = vec![None];
        }
        let mut rules = Vec::new();
        for peer in peers {
            let matches = wrapped(kind, protocol).into_iter().chain(peer).collect();
            rules.push(NftRule::new(matches, vec![NftAction::Accept]).says("tunnels between nodes"));
        }
        rules
    }

    /// Returns rules that mark packets which arrive unencrypted, if encryption between nodes is enabled: the reverse
    /// path lookup for their source must not lead into the tunnel.
    pub fn open_arrivals(self) -> Vec<NftRule> {
        let devices = self
            .tunnels
            .values()
            .filter(|tunnel| matches!(tunnel.protocol, TunnelProtocol::Wireguard { .. }));
        let inside: Vec<NftMatch> = devices
            .map(|tunnel| tunnel.device.as_str())
            .chain(["lo"])
            .map(|name| NftMatch::is(NftField::InInterface, interface(name)).not())
            .collect();
        let mut rules = Vec::new();
        for (kind, protocol) in self.iter() {
            if let TunnelProtocol::Wireguard { mark, .. } = protocol {
                let matches = [vec![NftMatch::family(family(kind))], inside.clone()].concat();
                rules.push(NftRule::new(matches, vec![NftAction::SetMark(mark)]).says("not encrypted"));
            }
        }
        rules
    }

    /// Returns the kernel's sets that together contain the peers of a tunnel.
    fn peers(self, kind: TunnelKind) -> Vec<String> {
        kind.peers().map(|id| self.sets.kernel_sets(&id, family(kind))).unwrap_or_default()
    }
}

fn family(kind: TunnelKind) -> NftFamily {
    if kind.is_ipv4() { NftFamily::V4 } else { NftFamily::V6 }
}

fn wrapped(kind: TunnelKind, protocol: TunnelProtocol) -> Vec<NftMatch> {
    let family = NftMatch::family(family(kind));
    match protocol {
        TunnelProtocol::Vxlan { port, .. } | TunnelProtocol::Wireguard { port, .. } => vec![
            family,
            NftMatch::is(NftField::Protocol, [UDP]),
            NftMatch::is(NftField::DestinationPort, port.to_be_bytes()),
        ],
        TunnelProtocol::Ipip => vec![family, NftMatch::is(NftField::Protocol, [IPIP])],
    }
}
