//! The address sets of the plan. Exact members become elements at once; nets are merged into ranges when they are
//! rendered.

use super::super::diff::TableDiff;
use super::super::ranges;
use super::super::render::{KnownSet, KnownSets, names};
use super::super::rule::NftFamily;
use super::super::table::{NftElement, SetType, address_bytes, join};
use super::put;
use std::collections::BTreeSet;
use tortie_plan::{SetId, SetKind, SetMember};

#[derive(Default)]
pub struct AddressSets {
    known: KnownSets,
    /// Sets whose nets have to be rendered again.
    stale: BTreeSet<SetId>,
}

impl AddressSets {
    pub fn known(&self) -> &KnownSets {
        &self.known
    }

    /// Adds an empty set, or removes a set with its members. Returns whether the rules that refer to it are stale.
    pub fn put(&mut self, id: &SetId, kind: Option<SetKind>, diff: &mut TableDiff) -> bool {
        for family in NftFamily::BOTH {
            let name = names::set(id, family);
            diff.drop_set(&name);
            match kind {
                Some(SetKind::Nets) => diff.put_set(name, SetType::Addresses(family)),
                Some(SetKind::Ports) => diff.put_set(name, SetType::Ports(family)),
                None => {}
            }
        }
        let old = put(&mut self.known.0, id, kind.map(|kind| KnownSet { kind, nets: BTreeSet::new() }));
        // Render its nets again, even if the set has none.
        self.stale.insert(id.clone());
        old.map(|old| old.kind) != kind
    }

    /// Adds members to a set, or removes them from it.
    pub fn put_members<'m>(
        &mut self,
        id: &SetId,
        members: impl IntoIterator<Item = &'m SetMember>,
        present: bool,
        diff: &mut TableDiff,
    ) {
        let Some(set) = self.known.0.get_mut(id) else { return };
        let [v4, v6] = NftFamily::BOTH.map(|family| names::set(id, family));
        for member in members {
            let (address, key) = match member {
                SetMember::Net(net) if net.prefix_len() < net.max_prefix_len() => {
                    if present {
                        set.nets.insert(*net);
                    } else {
                        set.nets.remove(net);
                    }
                    self.stale.insert(id.clone());
                    continue;
                }
                SetMember::Net(net) => (net.addr(), address_bytes(net.addr())),
                SetMember::Port { address, protocol, port } => {
                    (*address, join(&[&address_bytes(*address), &[*protocol], &port.to_be_bytes()]))
                }
            };
            let name = if address.is_ipv4() { &v4 } else { &v6 };
            diff.put_element(name, NftElement::key(key), present);
        }
    }

    /// Renders the nets of changed sets. Returns the sets that got their first net or lost their last one: the rules
    /// that refer to them are stale.
    pub fn render(&mut self, diff: &mut TableDiff) -> BTreeSet<SetId> {
        let empty = BTreeSet::new();
        let mut reshaped = BTreeSet::new();
        for id in std::mem::take(&mut self.stale) {
            let nets = self.known.0.get(&id).map_or(&empty, |set| &set.nets);
            for family in NftFamily::BOTH {
                let name = names::nets(&id, family);
                let ranges = ranges::from_nets(nets, family);
                if diff.wanted().sets.contains_key(&name) == ranges.is_empty() {
                    reshaped.insert(id.clone());
                }
                if ranges.is_empty() {
                    diff.drop_set(&name);
                    continue;
                }
                diff.put_set(name.clone(), SetType::Nets(family));
                let elements = ranges.into_iter().map(|(first, last)| NftElement::range(first, last));
                diff.replace_elements(&name, elements.collect());
            }
        }
        reshaped
    }
}
