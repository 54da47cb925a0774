//! Outgoing NAT: connections from pools that request it get an address of the node when they leave all pools.
//!
//! Matching and translating are separate chains: if the kernel rejects the translation, only the packets concerned are
//! dropped.

use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, interface};
use super::super::table::{ChainHook, HookPoint, NftChain};
use super::KnownSets;
use super::tunnels::TunnelProperties;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::{
    NAT_EXCLUSIONS_SET, NAT_SOURCES_SET, NatSettings, PortInterval, SetId, TunnelKind, TunnelProtocol,
};

/// Behind the chains that translate services, at the common priority: connections whose source these have translated
/// are not evaluated again.
const OUTGOING_NAT_PRIORITY: i32 = 110;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Address type of addresses of the host itself.
const ADDRESS_TYPE_LOCAL: u32 = 2;

/// Returns whether the chains refer to a set.
pub fn refers_to(id: &SetId) -> bool {
    [NAT_SOURCES_SET, NAT_EXCLUSIONS_SET].contains(&&*id.0)
}

/// Returns the chains for source translation. `nat-outgoing` exists even without rules: without any NAT chain, the
/// kernel would stop translating the packets of connections that it has translated so far. It begins with `first`.
pub fn chains(
    settings: &NatSettings,
    sets: &KnownSets,
    tunnels: &BTreeMap<TunnelKind, TunnelProperties>,
    first: Vec<NftRule>,
) -> Vec<(String, NftChain)> {
    let mut rules = first;
    let mut chains = Vec::new();
    if !tunnels.is_empty() {
        let masquerade = tunnels.values().filter(|tunnel| tunnel.masquerades);
        rules.extend(masquerade.map(|tunnel| into_tunnel(&tunnel.device)));
        let translations = NftChain { hook: None, rules: tunnel_translations(tunnels) };
        chains.push((TUNNEL_CHAIN.to_owned(), translations));
    }
    let sources = SetId::new(NAT_SOURCES_SET);
    if sets.kind(&sources).is_some() {
        for family in NftFamily::BOTH {
            rules.extend(outgoing(settings, sets, &sources, family));
            let translations = NftChain { hook: None, rules: translations(settings, family) };
            chains.push((chain_name(family), translations));
        }
    }
    let hook = Some(ChainHook::nat(HookPoint::Postrouting, OUTGOING_NAT_PRIORITY));
    chains.push(("nat-outgoing".to_owned(), NftChain { hook, rules }));
    chains
}

const TUNNEL_CHAIN: &str = "masquerade-tunnel";

/// Masquerades packets that the host sends through a tunnel with a source address other than the tunnel's: replies
/// would arrive outside the tunnel and be lost. This happens if the destination is rewritten after the source was
/// chosen.
fn into_tunnel(device: &str) -> NftRule {
    let local = ADDRESS_TYPE_LOCAL.to_ne_bytes();
    let matches = vec![
        NftMatch::is(NftField::OutInterface, interface(device)),
        NftMatch::is(NftField::SourceTypeThere, local).not(),
        NftMatch::is(NftField::SourceType, local),
    ];
    NftRule::new(matches, vec![NftAction::Goto(TUNNEL_CHAIN.to_owned())])
}

/// Returns the masquerade rules for tunnels. The source ports exclude the VXLAN port, whose packets would be taken for
/// tunnel packets; the larger side of the port range has enough ports.
fn tunnel_translations(tunnels: &BTreeMap<TunnelKind, TunnelProperties>) -> Vec<NftRule> {
    let port = tunnels.values().find_map(|tunnel| match tunnel.protocol {
        TunnelProtocol::Vxlan { port, .. } => Some(port),
        TunnelProtocol::Ipip | TunnelProtocol::Wireguard { .. } => None,
    });
    let beside = port.map(|port| match port {
        0..=0x7fff => PortInterval { first: port + 1, last: u16::MAX },
        _ => PortInterval { first: 1, last: port - 1 },
    });
    let mut rules = Vec::new();
    if beside.is_some() {
        let udp = vec![NftMatch::is(NftField::Protocol, [UDP])];
        rules.push(NftRule::new(udp, vec![NftAction::Count, NftAction::Masquerade { ports: beside }]));
    }
    rules.push(NftRule::new(Vec::new(), vec![NftAction::Count, NftAction::Masquerade { ports: None }]));
    rules
}

fn chain_name(family: NftFamily) -> String {
    format!("masquerade-{}", family.digit())
}

/// Returns the rules that send packets which leave all pools to their translation.
fn outgoing(settings: &NatSettings, sets: &KnownSets, sources: &SetId, family: NftFamily) -> Vec<NftRule> {
    let excluded = lookups(sets, &SetId::new(NAT_EXCLUSIONS_SET), NftField::Destination(family), family);
    let mut leaves: Vec<NftMatch> = excluded.into_iter().map(NftMatch::not).collect();
    leaves.extend(settings.out_interface.as_deref().and_then(leaves_by));
    let mut rules = Vec::new();
    for source in lookups(sets, sources, NftField::Source(family), family) {
        let matches = [vec![NftMatch::family(family), source], leaves.clone()].concat();
        rules.push(NftRule::new(matches, vec![NftAction::Goto(chain_name(family))]));
    }
    rules
}

/// Returns the alternative lookups for an address in a set.
pub(super) fn lookups(sets: &KnownSets, id: &SetId, field: NftField, family: NftFamily) -> Vec<NftMatch> {
    sets.kernel_sets(id, family).into_iter().map(|set| NftMatch::lookup([field], set)).collect()
}

fn leaves_by(filter: &str) -> Option<NftMatch> {
    match filter.strip_suffix('+') {
        Some("") => None,
        Some(beginning) => Some(NftMatch::interface_begins(NftField::OutInterface, beginning)),
        None => Some(NftMatch::is(NftField::OutInterface, interface(filter))),
    }
}

fn translations(settings: &NatSettings, family: NftFamily) -> Vec<NftRule> {
    let address = settings.address.filter(|_| family == NftFamily::V4).map(IpAddr::V4);
    let mut alternatives = Vec::new();
    if settings.ports.is_some() {
        // Only these protocols have ports that can be chosen.
        alternatives.push((vec![NftMatch::is(NftField::Protocol, [TCP])], settings.ports));
        alternatives.push((vec![NftMatch::is(NftField::Protocol, [UDP])], settings.ports));
    }
    alternatives.push((Vec::new(), None));
    let mut rules = Vec::new();
    for (matches, ports) in alternatives {
        let translate = match address {
            Some(address) => NftAction::TranslateSource { address, ports },
            None => NftAction::Masquerade { ports },
        };
        rules.push(NftRule::new(matches, vec![NftAction::Count, translate]));
    }
    rules
}
