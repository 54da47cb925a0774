//! Sets the DSCP that workloads have requested on packets that leave all IP pools, and the DSCP of new connections
//! between workloads of Istio's ambient mesh.

use super::super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule, state};
use super::super::table::{ChainHook, HookPoint, NftChain, NftElement, NftSet, SetType, address_bytes};
use super::entry::MANGLE_PRIORITY;
use super::nat::lookups;
use super::{KnownSets, WorkloadInterfaces, names};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{ALL_POOLS_SET, AMBIENT_WORKLOADS_SET, SetId};

const TCP: u8 = 6;

/// The mark of new connections between workloads of the ambient mesh.
#[derive(Clone, Copy, Debug)]
pub struct AmbientMarking<'s> {
    /// `None` if they are not marked.
    pub dscp: Option<u8>,
    pub workloads: WorkloadInterfaces<'s>,
}

/// Chains that set a DSCP, and the sets of source addresses whose packets get one.
#[derive(Debug, Default)]
pub struct DscpChains {
    pub chains: Vec<(String, NftChain)>,
    pub sets: Vec<(String, NftSet)>,
    /// The rules of the base chain.
    rules: Vec<NftRule>,
}

/// Returns whether the chains refer to a set.
pub fn refers_to(id: &SetId) -> bool {
    [ALL_POOLS_SET, AMBIENT_WORKLOADS_SET].contains(&&*id.0)
}

/// Renders the chains. `marked` are source addresses with the DSCP that their workload has requested.
pub fn render(
    marked: impl Iterator<Item = (IpAddr, u8)>,
    ambient: AmbientMarking<'_>,
    known: &KnownSets,
) -> DscpChains {
    let mut marking = DscpChains::default();
    if let Some(dscp) = ambient.dscp {
        for family in NftFamily::BOTH {
            marking.add_ambient(dscp, family, ambient.workloads, known);
        }
    }
    let mut sources: BTreeMap<(u8, NftFamily), BTreeSet<NftElement>> = BTreeMap::new();
    for (address, dscp) in marked {
        let element = NftElement::key(address_bytes(address));
        sources.entry((dscp, NftFamily::from(address))).or_default().insert(element);
    }
    for ((dscp, family), elements) in sources {
        marking.add_sources(dscp, family, elements, known);
    }
    if !marking.rules.is_empty() {
        let hook = Some(ChainHook::filter(HookPoint::Postrouting, MANGLE_PRIORITY));
        let rules = std::mem::take(&mut marking.rules);
        marking.chains.push(("marking".to_owned(), NftChain { hook, rules }));
    }
    marking
}

impl DscpChains {
    /// Adds rules for the first packets of TCP connections from a workload of the mesh to one on this node. Without
    /// the set of these workloads no rule is added.
    fn add_ambient(
        &mut self,
        dscp: u8,
        family: NftFamily,
        workloads: WorkloadInterfaces<'_>,
        known: &KnownSets,
    ) {
        let set = SetId::new(AMBIENT_WORKLOADS_SET);
        for source in lookups(known, &set, NftField::Source(family), family) {
            for destination in lookups(known, &set, NftField::Destination(family), family) {
                for workload in workloads.conditions(NftField::OutInterface) {
                    let matches = vec![
                        workload,
                        NftMatch::family(family),
                        NftMatch::is(NftField::Protocol, [TCP]),
                        NftMatch::connection(state::NEW),
                        source.clone(),
                        destination.clone(),
                    ];
                    self.add_rule(matches, dscp, family);
                }
            }
        }
    }

    /// Adds a rule for packets from these sources that leave all pools.
    fn add_sources(
        &mut self,
        dscp: u8,
        family: NftFamily,
        elements: BTreeSet<NftElement>,
        known: &KnownSets,
    ) {
        let set = names::marked(dscp, family);
        let inside = lookups(known, &SetId::new(ALL_POOLS_SET), NftField::Destination(family), family);
        let mut matches =
            vec![NftMatch::family(family), NftMatch::lookup([NftField::Source(family)], set.clone())];
        matches.extend(inside.into_iter().map(NftMatch::not));
        self.add_rule(matches, dscp, family);
        self.sets.push((set, NftSet { kind: SetType::Addresses(family), elements }));
    }

    /// Adds a rule, and the chain that sets the DSCP. Rules with the same DSCP share it.
    fn add_rule(&mut self, matches: Vec<NftMatch>, dscp: u8, family: NftFamily) {
        let chain = names::marking(dscp, family);
        self.rules.push(NftRule::new(matches, vec![NftAction::Goto(chain.clone())]));
        let mark = vec![NftRule::new(Vec::new(), vec![NftAction::Count, NftAction::SetDscp(family, dscp)])];
        self.chains.push((chain, NftChain { hook: None, rules: mark }));
    }
}
