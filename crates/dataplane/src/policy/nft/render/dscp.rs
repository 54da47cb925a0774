//! Sets the DSCP that workloads have requested on packets that leave all IP pools.

use super::super::rule::{Action, Family, Field, Match, Rule};
use super::super::table::{Chain, Element, Hook, Point, SetType};
use super::entry::MANGLE;
use super::nat::lookups;
use super::{Sets, names};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{POOLS, SetId};

/// Chains and sets for source addresses with their DSCP values.
#[derive(Debug, Default)]
pub(crate) struct Marking {
    pub chains: Vec<(String, Chain)>,
    pub sets: Vec<(String, SetType, BTreeSet<Element>)>,
}

/// Whether the chains refer to a set.
pub(crate) fn looks_into(id: &SetId) -> bool {
    &*id.0 == POOLS
}

pub(crate) fn render(marked: impl Iterator<Item = (IpAddr, u8)>, pools: &Sets) -> Marking {
    let mut sources: BTreeMap<(u8, Family), BTreeSet<Element>> = BTreeMap::new();
    for (address, dscp) in marked {
        let bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        sources.entry((dscp, Family::of(address))).or_default().insert(Element::key(bytes));
    }
    let mut marking = Marking::default();
    let mut rules = Vec::new();
    for ((dscp, family), elements) in sources {
        let set = names::marked(dscp, family);
        let inside = lookups(pools, &SetId::new(POOLS), Field::Destination(family), family);
        let mut matches = vec![Match::family(family), Match::lookup([Field::Source(family)], set.clone())];
        matches.extend(inside.into_iter().map(Match::not));
        let chain = names::marking(dscp, family);
        rules.push(Rule::new(matches, vec![Action::Goto(chain.clone())]));
        let mark = vec![Rule::new(Vec::new(), vec![Action::Count, Action::SetDscp(family, dscp)])];
        marking.chains.push((chain, Chain { hook: None, rules: mark }));
        marking.sets.push((set, SetType::Addresses(family), elements));
    }
    if !rules.is_empty() {
        let hook = Some(Hook::filter(Point::Postrouting, MANGLE));
        marking.chains.push(("marking".to_owned(), Chain { hook, rules }));
    }
    marking
}
