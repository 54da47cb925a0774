//! Outgoing NAT: connections from pools that ask for it get an address of the node when they leave all pools.
//!
//! Which packets those are, and what is done to them, are different chains: where the kernel refuses to translate, the
//! packets concerned go nowhere, and no others suffer.

use super::super::rule::{Action, Family, Field, Match, Rule, interface};
use super::super::table::{Chain, Hook, Point};
use super::{Sets, names};
use std::net::IpAddr;
use tortie_plan::{NAT_EXCLUSIONS, NAT_SOURCES, NatSettings, SetId};

/// Behind those who translate services, at the usual place for it: what they have given a source is not asked again.
const PRIORITY: i32 = 110;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Whether the chains look into a set.
pub(crate) fn looks_into(id: &SetId) -> bool {
    [NAT_SOURCES, NAT_EXCLUSIONS].contains(&&*id.0)
}

/// The chains that translate, where there is anything to translate.
pub(crate) fn chains(settings: &NatSettings, sets: &Sets) -> Vec<(String, Chain)> {
    let sources = SetId::new(NAT_SOURCES);
    if sets.kind(&sources).is_none() {
        return Vec::new();
    }
    let rules =
        Family::BOTH.into_iter().flat_map(|family| outgoing(settings, sets, &sources, family)).collect();
    let entered = Chain { hook: Some(Hook::nat(Point::Postrouting, PRIORITY)), rules };
    let translating = Family::BOTH.map(|family| {
        let rules = translations(settings, family);
        (chain_name(family), Chain { hook: None, rules })
    });
    translating.into_iter().chain([("nat-outgoing".to_owned(), entered)]).collect()
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
fn lookups(sets: &Sets, id: &SetId, field: Field, family: Family) -> Vec<Match> {
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
