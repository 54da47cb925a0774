//! Outgoing NAT: connections from pools that request it get an address of the node when they leave all pools.
//!
//! Matching and translating are separate chains: if the kernel rejects the translation, only the packets concerned are
//! dropped.

use super::super::rule::{Action, Family, Field, Match, Rule, interface};
use super::super::table::{Chain, Hook, Point};
use super::tunnels::Tunnel;
use super::{Sets, names};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::{NAT_EXCLUSIONS, NAT_SOURCES, NatSettings, PortRange, SetId, TunnelKind, TunnelProtocol};

/// Behind the chains that translate services, at the common priority: connections whose source these have translated
/// are not evaluated again.
const PRIORITY: i32 = 110;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Address type of addresses of the host itself.
const LOCAL: u32 = 2;

/// Whether the chains refer to a set.
pub(crate) fn looks_into(id: &SetId) -> bool {
    [NAT_SOURCES, NAT_EXCLUSIONS].contains(&&*id.0)
}

/// Returns the chains for source translation. `nat-outgoing` exists even without rules: without any NAT chain, the
/// kernel would stop translating the packets of connections that it has translated so far. It begins with `first`.
pub(crate) fn chains(
    settings: &NatSettings,
    sets: &Sets,
    tunnels: &BTreeMap<TunnelKind, Tunnel>,
    first: Vec<Rule>,
) -> Vec<(String, Chain)> {
    let (mut rules, mut chains) = (first, Vec::new());
    let mut share = |name: String, rules| chains.push((name, Chain { hook: None, rules }));
    if !tunnels.is_empty() {
        let masquerade = tunnels.values().filter(|tunnel| tunnel.masquerades);
        rules.extend(masquerade.map(|tunnel| into_tunnel(&tunnel.device)));
        share(TUNNEL_CHAIN.to_owned(), tunnel_translations(tunnels));
    }
    let sources = SetId::new(NAT_SOURCES);
    if sets.kind(&sources).is_some() {
        for family in Family::BOTH {
            rules.extend(outgoing(settings, sets, &sources, family));
            share(chain_name(family), translations(settings, family));
        }
    }
    let hook = Some(Hook::nat(Point::Postrouting, PRIORITY));
    chains.push(("nat-outgoing".to_owned(), Chain { hook, rules }));
    chains
}

const TUNNEL_CHAIN: &str = "masquerade-tunnel";

/// Masquerades packets that the host sends through a tunnel with a source address other than the tunnel's: replies
/// would arrive outside the tunnel and be lost. This happens if the destination is rewritten after the source was
/// chosen.
fn into_tunnel(device: &str) -> Rule {
    let local = |field| Match::is(field, LOCAL.to_ne_bytes());
    let matches = vec![
        Match::is(Field::OutInterface, interface(device)),
        local(Field::SourceTypeThere).not(),
        local(Field::SourceType),
    ];
    Rule::new(matches, vec![Action::Goto(TUNNEL_CHAIN.to_owned())])
}

/// Returns the masquerade rules for tunnels. The source ports exclude the VXLAN port, whose packets would be taken for
/// tunnel packets; the larger side of the port range has enough ports.
fn tunnel_translations(tunnels: &BTreeMap<TunnelKind, Tunnel>) -> Vec<Rule> {
    let port = tunnels.values().find_map(|tunnel| match tunnel.protocol {
        TunnelProtocol::Vxlan { port, .. } => Some(port),
        TunnelProtocol::Ipip | TunnelProtocol::Wireguard { .. } => None,
    });
    let beside = port.map(|port| match port {
        0..=0x7fff => PortRange { first: port + 1, last: u16::MAX },
        _ => PortRange { first: 1, last: port - 1 },
    });
    let rule = |matches, ports| Rule::new(matches, vec![Action::Count, Action::Masquerade { ports }]);
    let udp = beside.map(|ports| rule(vec![Match::is(Field::Protocol, [UDP])], Some(ports)));
    udp.into_iter().chain([rule(Vec::new(), None)]).collect()
}

fn chain_name(family: Family) -> String {
    format!("masquerade-{}", family.digit())
}

/// Returns the rules that send packets which leave all pools to their translation.
fn outgoing(settings: &NatSettings, sets: &Sets, sources: &SetId, family: Family) -> Vec<Rule> {
    let excluded = lookups(sets, &SetId::new(NAT_EXCLUSIONS), Field::Destination(family), family);
    let mut leaves: Vec<Match> = excluded.into_iter().map(Match::not).collect();
    leaves.extend(settings.out_interface.as_deref().and_then(leaves_by));
    let from = |source| {
        let matches = [vec![Match::family(family), source], leaves.clone()].concat();
        Rule::new(matches, vec![Action::Goto(chain_name(family))])
    };
    lookups(sets, sources, Field::Source(family), family).into_iter().map(from).collect()
}

/// Returns the alternative lookups for an address in a set.
pub(super) fn lookups(sets: &Sets, id: &SetId, field: Field, family: Family) -> Vec<Match> {
    let exact = sets.kind(id).map(|_| Match::lookup([field], names::set(id, family)));
    let nets = sets.has_nets(id, family).then(|| Match::lookup([field], names::nets(id, family)));
    exact.into_iter().chain(nets).collect()
}

fn leaves_by(filter: &str) -> Option<Match> {
    match filter.strip_suffix('+') {
        Some("") => None,
        Some(beginning) => Some(Match::interface_begins(Field::OutInterface, beginning)),
        None => Some(Match::is(Field::OutInterface, interface(filter))),
    }
}

fn translations(settings: &NatSettings, family: Family) -> Vec<Rule> {
    let address = settings.address.filter(|_| family == Family::V4).map(IpAddr::V4);
    let translate = |ports| match address {
        Some(address) => Action::TranslateSource { address, ports },
        None => Action::Masquerade { ports },
    };
    let rule = |matches, ports| Rule::new(matches, vec![Action::Count, translate(ports)]);
    // Only these protocols have ports that can be chosen.
    let with_ports = [TCP, UDP].into_iter().filter(|_| settings.ports.is_some());
    let with_ports =
        with_ports.map(|protocol| rule(vec![Match::is(Field::Protocol, [protocol])], settings.ports));
    with_ports.chain([rule(Vec::new(), None)]).collect()
}
