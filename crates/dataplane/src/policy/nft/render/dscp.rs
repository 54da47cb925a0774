//! Sets the DSCP that workloads have requested on packets that leave all IP pools.

use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule};
use super::super::table::{ChainHook, HookPoint, NftChain, NftElement, NftSet, SetType, address_bytes};
use super::entry::MANGLE_PRIORITY;
use super::nat::lookups;
use super::{KnownSets, names};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{ALL_POOLS_SET, SetId};

/// Chains and sets for source addresses with their DSCP values.
#[derive(Debug, Default)]
pub struct DscpChains {
    pub chains: Vec<(String, NftChain)>,
    pub sets: Vec<(String, NftSet)>,
}

/// Returns whether the chains refer to a set.
pub fn refers_to(id: &SetId) -> bool {
    &*id.0 == ALL_POOLS_SET
}

pub fn render(marked: impl Iterator<Item = (IpAddr, u8)>, pools: &KnownSets) -> DscpChains {
    let mut sources: BTreeMap<(u8, NftFamily), BTreeSet<NftElement>> = BTreeMap::new();
    for (address, dscp) in marked {
        let element = NftElement::key(address_bytes(address));
        sources.entry((dscp, NftFamily::from(address))).or_default().insert(element);
    }
    let mut marking = DscpChains::default();
    let mut rules = Vec::new();
    for ((dscp, family), elements) in sources {
        let set = names::marked(dscp, family);
        let inside = lookups(pools, &SetId::new(ALL_POOLS_SET), NftField::Destination(family), family);
        let mut matches =
            vec![NftMatch::family(family), NftMatch::lookup([NftField::Source(family)], set.clone())];
        matches.extend(inside.into_iter().map(NftMatch::not));
        let chain = names::marking(dscp, family);
        rules.push(NftRule::new(matches, vec![NftAction::Goto(chain.clone())]));
        let mark = vec![NftRule::new(Vec::new(), vec![NftAction::Count, NftAction::SetDscp(family, dscp)])];
        marking.chains.push((chain, NftChain { hook: None, rules: mark }));
        marking.sets.push((set, NftSet { kind: SetType::Addresses(family), elements }));
    }
    if !rules.is_empty() {
        let hook = Some(ChainHook::filter(HookPoint::Postrouting, MANGLE_PRIORITY));
        marking.chains.push(("marking".to_owned(), NftChain { hook, rules }));
    }
    marking
}
