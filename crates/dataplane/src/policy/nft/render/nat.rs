//! Outgoing NAT: connections from pools that ask for it get an address of the node when they leave all pools.
//!
//! Which packets those are, and what is done to them, are different chains: where the kernel refuses to translate, the
//! packets concerned go nowhere, and no others suffer.

use super::super::rule::{Action, Family, Field, Match, Rule, interface};
use super::super::table::{Chain, Hook, Point};
use super::tunnels::Tunnel;
use super::{Sets, names};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::{NAT_EXCLUSIONS, NAT_SOURCES, NatSettings, PortRange, SetId, TunnelKind, TunnelProtocol};

/// Behind those who translate services, at the usual place for it: what they have given a source is not asked again.
const PRIORITY: i32 = 110;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// An address of the host itself.
const LOCAL: u32 = 2;

/// Whether the chains look into a set.
pub(crate) fn looks_into(id: &SetId) -> bool {
    [NAT_SOURCES, NAT_EXCLUSIONS].contains(&&*id.0)
}

/// The chains that translate. The kernel enters `nat-outgoing` whether or not it has rules: without any chain of the
/// kind it would no longer translate the packets of connections that it has translated so far. It begins with `first`.
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

/// What the host sends through a tunnel by another address than the tunnel's: an answer to that would come back
/// outside the tunnel, where nobody waits for it. It is so where the destination is rewritten after the source was chosen.
fn into_tunnel(device: &str) -> Rule {
    let local = |field| Match::is(field, LOCAL.to_ne_bytes());
    let matches = vec![
        Match::is(Field::OutInterface, interface(device)),
        local(Field::SourceTypeThere).not(),
        local(Field::SourceType),
    ];
    Rule::new(matches, vec![Action::Goto(TUNNEL_CHAIN.to_owned())])
}

/// By any port but that at which packets are taken for those of a tunnel: on its wider side there is room enough.
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

/// Leads what leaves all pools to its translation.
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

/// The ways in which an address can be in a set.
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
    // Only these have ports that can be chosen.
    let with_ports = [TCP, UDP].into_iter().filter(|_| settings.ports.is_some());
    let with_ports =
        with_ports.map(|protocol| rule(vec![Match::is(Field::Protocol, [protocol])], settings.ports));
    with_ports.chain([rule(Vec::new(), None)]).collect()
}
