//! Keeps the desired table and the known state of the kernel's table, and computes the operations of the next
//! transaction from their differences.

#[cfg(test)]
mod tests;

use super::blame::RejectedObject;
use super::kernel::RejectionReason;
use super::message::TableOperation;
use super::rule::{NftAction, NftRule};
use super::table::{ChainHook, NftChain, NftElement, NftSet, NftTable, SetType};
use crate::failure::KernelObject;
use std::collections::{BTreeMap, BTreeSet};

/// The properties of a chain by which the kernel's copy is compared with the desired one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainFingerprint {
    pub hook: Option<ChainHook>,
    pub rules: Vec<u64>,
}

impl ChainFingerprint {
    fn new(chain: &NftChain) -> ChainFingerprint {
        ChainFingerprint { hook: chain.hook, rules: chain.rules.iter().map(NftRule::fingerprint).collect() }
    }
}

/// The table as it is in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelTable {
    /// Whether the table exists.
    pub there: bool,
    /// Whether the table has attributes that we would not give it.
    pub odd: bool,
    pub chains: BTreeMap<String, ChainFingerprint>,
    /// `None` for a set with attributes that we would not give it.
    pub sets: BTreeMap<String, Option<SetType>>,
}

#[derive(Debug, Default)]
pub struct TableDiff {
    wanted: NftTable,
    /// Number of rules and maps in `wanted`.
    rules: usize,
    maps: usize,
    seen: KernelTable,
    /// Chains and sets that may differ from the kernel's.
    chains: BTreeSet<String>,
    sets: BTreeSet<String>,
    /// Elements that may differ, and whether the kernel has them.
    elements: BTreeMap<String, BTreeMap<NftElement, bool>>,
    /// Chains and sets that the kernel rejected, and chains that refer to a rejected set.
    refused: BTreeMap<String, RejectedDefinition>,
    /// Rejected elements that concern a single workload: without them, the packets of that workload are dropped.
    refused_elements: BTreeMap<String, BTreeMap<NftElement, RejectionReason>>,
    /// Replacement for every chain that was rejected or that refers to a rejected set: it drops all packets.
    closed: NftChain,
}

/// The reason why a chain or set is not in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedDefinition {
    pub object: KernelObject,
    pub reason: RejectionReason,
}

impl TableDiff {
    pub fn new() -> TableDiff {
        let rule = NftRule::new(Vec::new(), vec![NftAction::Count, NftAction::Drop]);
        let closed =
            NftChain { hook: None, rules: vec![rule.says("the kernel refused what should be here")] };
        TableDiff { closed, ..TableDiff::default() }
    }

    pub fn put_chain(&mut self, name: String, chain: NftChain) {
        if self.wanted.chains.get(&name) != Some(&chain) {
            self.refused.remove(&name);
            self.chains.insert(name.clone());
            self.rules += chain.rules.len();
            let old = self.wanted.chains.insert(name, chain);
            self.rules -= old.map_or(0, |old| old.rules.len());
        }
    }

    pub fn drop_chain(&mut self, name: &str) {
        if let Some(old) = self.wanted.chains.remove(name) {
            self.rules -= old.rules.len();
            self.refused.remove(name);
            self.chains.insert(name.to_owned());
        }
    }

    /// Adds or replaces a chain; removes it if `chain` is `None`.
    pub fn set_chain(&mut self, name: String, chain: Option<NftChain>) {
        match chain {
            Some(chain) => self.put_chain(name, chain),
            None => self.drop_chain(&name),
        }
    }

    /// Adds a set; an existing set keeps its elements.
    pub fn put_set(&mut self, name: String, kind: SetType) {
        let mut elements = BTreeSet::new();
        if let Some(old) = self.wanted.sets.get_mut(&name) {
            elements = std::mem::take(&mut old.elements);
            self.maps -= usize::from(old.kind.is_map());
        }
        self.maps += usize::from(kind.is_map());
        self.sets.insert(name.clone());
        self.wanted.sets.insert(name, NftSet { kind, elements });
    }

    pub fn drop_set(&mut self, name: &str) {
        let Some(set) = self.wanted.sets.remove(name) else { return };
        self.maps -= usize::from(set.kind.is_map());
        let touched = self.elements.entry(name.to_owned()).or_default();
        set.elements.into_iter().for_each(|element| {
            touched.entry(element).or_insert(true);
        });
        self.refused.remove(name);
        self.refused_elements.remove(name);
        self.sets.insert(name.to_owned());
    }

    pub fn insert(&mut self, name: &str, element: NftElement) {
        let Some(set) = self.wanted.sets.get_mut(name) else { return };
        if set.elements.insert(element.clone()) {
            touch(&mut self.elements, name).entry(element).or_insert(false);
        }
    }

    pub fn remove(&mut self, name: &str, element: &NftElement) {
        let Some(set) = self.wanted.sets.get_mut(name) else { return };
        if set.elements.remove(element) {
            let refused = self.refused_elements.get_mut(name).and_then(|refused| refused.remove(element));
            touch(&mut self.elements, name).entry(element.clone()).or_insert(refused.is_none());
        }
    }

    /// Adds an element to a set, or removes it.
    pub fn put_element(&mut self, name: &str, element: NftElement, present: bool) {
        if present {
            self.insert(name, element);
        } else {
            self.remove(name, &element);
        }
    }

    /// Replaces all elements of a set.
    pub fn replace_elements(&mut self, name: &str, wanted: BTreeSet<NftElement>) {
        let Some(set) = self.wanted.sets.get(name) else { return };
        let old: Vec<NftElement> = set.elements.difference(&wanted).cloned().collect();
        old.iter().for_each(|element| self.remove(name, element));
        wanted.into_iter().for_each(|element| self.insert(name, element));
    }

    pub fn has_elements(&self, name: &str) -> bool {
        self.wanted.sets.get(name).is_some_and(|set| !set.elements.is_empty())
    }

    /// Returns the elements of a set in order, starting at `first`.
    pub fn elements_from(&self, name: &str, first: &NftElement) -> impl Iterator<Item = &NftElement> {
        self.wanted.sets.get(name).into_iter().flat_map(|set| set.elements.range(first.clone()..))
    }

    pub fn wanted(&self) -> &NftTable {
        &self.wanted
    }

    /// Replaces the known kernel state with one that was just read.
    pub fn observe(&mut self, seen: KernelTable, mut elements: BTreeMap<String, BTreeSet<NftElement>>) {
        self.chains = self.wanted.chains.keys().chain(seen.chains.keys()).cloned().collect();
        self.sets = self.wanted.sets.keys().chain(seen.sets.keys()).cloned().collect();
        self.elements.clear();
        for (name, set) in &self.wanted.sets {
            let there = elements.remove(name).unwrap_or_default();
            let missing = set.elements.difference(&there).map(|element| (element.clone(), false));
            let excess = there.difference(&set.elements).map(|element| (element.clone(), true));
            let touched: BTreeMap<NftElement, bool> = missing.chain(excess).collect();
            if !touched.is_empty() {
                self.elements.insert(name.clone(), touched);
            }
        }
        // A set that is about to be deleted may be added again before that; the kernel's copy then still has its
        // elements.
        for (name, there) in elements {
            self.elements.insert(name, there.into_iter().map(|element| (element, true)).collect());
        }
        self.seen = seen;
    }

    /// Schedules another attempt for everything that was rejected.
    pub fn retry_refused(&mut self) {
        for name in std::mem::take(&mut self.refused).into_keys() {
            self.chains.insert(name.clone());
            self.sets.insert(name);
        }
        for (name, refused) in std::mem::take(&mut self.refused_elements) {
            let touched = self.elements.entry(name).or_default();
            refused.into_keys().for_each(|element| {
                touched.entry(element).or_insert(false);
            });
        }
    }

    pub fn refused(&self) -> &BTreeMap<String, RejectedDefinition> {
        &self.refused
    }

    /// Returns the rejected elements that concern single workloads: set, its type, element and reason.
    pub fn refused_elements(&self) -> impl Iterator<Item = (&str, SetType, &NftElement, &RejectionReason)> {
        self.refused_elements.iter().flat_map(|(name, refused)| {
            let kind = self.wanted.sets.get(name).map(|set| set.kind);
            refused.iter().filter_map(move |(element, reason)| Some((name.as_str(), kind?, element, reason)))
        })
    }

    /// Returns the number of chains, sets and workload elements that the kernel rejects.
    pub fn refused_count(&self) -> usize {
        self.refused.len() + self.refused_elements.values().map(BTreeMap::len).sum::<usize>()
    }

    /// Returns the desired number of chains and rules.
    pub fn chain_counts(&self) -> (usize, usize) {
        (self.wanted.chains.len(), self.rules)
    }

    /// Returns the desired number of sets and maps.
    pub fn set_counts(&self) -> (usize, usize) {
        (self.wanted.sets.len() - self.maps, self.maps)
    }

    /// Excludes a rejected object from the table, and closes the chains that refer to it. Returns whether that changes
    /// anything.
    pub fn refuse(&mut self, culprit: &RejectedObject) -> bool {
        let RejectedObject { name, object, reason, element, .. } = culprit;
        if let Some(element) = element {
            return self.refuse_element(name, element, reason);
        }
        let is_set = self.wanted.sets.contains_key(name);
        let entered = self.wanted.chains.get(name).is_some_and(|chain| chain.hook.is_some());
        if entered || !(is_set || self.wanted.chains.contains_key(name)) || self.refused.contains_key(name) {
            return false;
        }
        self.refused
            .insert(name.clone(), RejectedDefinition { object: object.clone(), reason: reason.clone() });
        self.chains.insert(name.clone());
        if is_set {
            self.sets.insert(name.clone());
            let users: Vec<String> = self.users(name).map(str::to_owned).collect();
            // A base chain must not be closed: without a set that it uses, the table cannot work.
            let essential = users
                .iter()
                .any(|user| self.wanted.chains.get(user).is_some_and(|chain| chain.hook.is_some()));
            if essential {
                self.refused.remove(name);
                return false;
            }
            for user in users {
                let object = KernelObject::Chain { name: user.clone() };
                let reason =
                    RejectionReason { errno: reason.errno, text: format!("set {name}: {}", reason.text) };
                self.refused.entry(user.clone()).or_insert(RejectedDefinition { object, reason });
                self.chains.insert(user);
            }
        }
        true
    }

    fn refuse_element(&mut self, set: &str, element: &NftElement, reason: &RejectionReason) -> bool {
        if !self.wanted.sets.get(set).is_some_and(|set| set.elements.contains(element)) {
            return false;
        }
        let refused = self.refused_elements.entry(set.to_owned()).or_default();
        refused.insert(element.clone(), reason.clone()).is_none()
    }

    /// Returns the elements that the kernel's set should have now, without the rejected ones.
    fn accepted<'t>(&'t self, name: &str, set: &'t NftSet) -> impl Iterator<Item = &'t NftElement> {
        let refused = self.refused_elements.get(name);
        set.elements
            .iter()
            .filter(move |element| refused.is_none_or(|refused| !refused.contains_key(*element)))
    }

    /// Returns the chains with a rule that refers to a set.
    pub fn users(&self, set: &str) -> impl Iterator<Item = &str> {
        let chains = self.wanted.chains.iter();
        let users = chains.filter(move |(_, chain)| chain.rules.iter().any(|rule| rule.refers_to(set)));
        users.map(|(name, _)| name.as_str())
    }

    fn chain(&self, name: &str) -> Option<&NftChain> {
        let chain = self.wanted.chains.get(name)?;
        Some(if self.refused.contains_key(name) { &self.closed } else { chain })
    }

    fn set(&self, name: &str) -> Option<&NftSet> {
        self.wanted.sets.get(name).filter(|_| !self.refused.contains_key(name))
    }

    /// Returns operations that need their own transaction before the rest: new sets of ranges. The kernel activates
    /// their elements a moment after the rules of the same transaction, so they are filled before any rule refers to
    /// them.
    pub fn preparations(&self) -> Vec<TableOperation<'_>> {
        let mut plan = OrderedOperations::default();
        if !self.must_start_over() {
            self.new_ranges()
                .for_each(|(name, set)| plan.add_set(name, set.kind, self.accepted(name, set).collect()));
        }
        if !plan.first.is_empty() && !self.seen.there {
            plan.first.insert(0, TableOperation::AddTable);
        }
        plan.in_order()
    }

    fn new_ranges(&self) -> impl Iterator<Item = (&String, &NftSet)> {
        let new = self.sets.iter().filter(|name| !self.seen.sets.contains_key(*name));
        new.filter_map(|name| Some((name, self.set(name)?))).filter(|(_, set)| set.kind.is_ranges())
    }

    /// Records that the kernel has accepted the preparations.
    pub fn prepared(&mut self) {
        let new: Vec<(String, SetType)> =
            self.new_ranges().map(|(name, set)| (name.clone(), set.kind)).collect();
        self.seen.there = true;
        for (name, kind) in new {
            self.elements.remove(&name);
            self.seen.sets.insert(name, Some(kind));
        }
    }

    /// Whether a map from ports to policies has to be removed. Packets that are evaluated by the rules of the previous
    /// transaction would no longer find its elements, because the kernel deactivates them at once. So no object is
    /// removed in the transaction that replaces the rules, but in the next one.
    pub fn retires_maps(&self) -> bool {
        let mut retired = self.sets.iter().filter(|name| self.set(name).is_none());
        let is_map = |name: &String| self.seen.sets.get(name) == Some(&Some(SetType::PortChains));
        retired.any(is_map) && !self.must_start_over()
    }

    /// Returns the operations that are due, in an order that the kernel accepts: objects are added before they are
    /// referenced, and removed after the last reference. Excludes removals if a map retires.
    pub fn operations(&self) -> Vec<TableOperation<'_>> {
        if self.must_start_over() {
            return self.everything();
        }
        let mut plan = if self.retires_maps() { OrderedOperations::default() } else { self.plan_removals() };
        if !self.seen.there {
            plan.first.push(TableOperation::AddTable);
        }
        for name in &self.chains {
            match (self.chain(name), self.seen.chains.get(name)) {
                (None, _) => {}
                (Some(chain), None) => plan.add_chain(name, chain),
                (Some(chain), Some(fingerprint)) if ChainFingerprint::new(chain) == *fingerprint => {}
                (Some(chain), Some(_)) => plan.refill_chain(name, chain),
            }
        }
        for name in &self.sets {
            if let Some(set) = self.set(name)
                && !self.seen.sets.contains_key(name)
            {
                plan.add_set(name, set.kind, self.accepted(name, set).collect());
            }
        }
        for (name, touched) in &self.elements {
            let Some(set) = self.set(name).filter(|_| self.seen.sets.contains_key(name)) else { continue };
            let differing = |there: bool| -> Vec<&NftElement> {
                let refused = self.refused_elements.get(name);
                let now = |element: &NftElement| {
                    set.elements.contains(element)
                        && refused.is_none_or(|refused| !refused.contains_key(element))
                };
                let differing =
                    touched.iter().filter(|(element, was)| **was == there && now(element) != there);
                differing.map(|(element, _)| element).collect()
            };
            plan.change_elements(name, set.kind, differing(true), differing(false));
        }
        plan.in_order()
    }

    /// Returns the operations that remove the objects which are no longer desired.
    pub fn removals(&self) -> Vec<TableOperation<'_>> {
        self.plan_removals().in_order()
    }

    fn plan_removals(&self) -> OrderedOperations<'_> {
        let mut plan = OrderedOperations::default();
        for name in self.surplus_chains() {
            plan.remove_chain(name);
        }
        plan.last.extend(self.surplus_sets().map(|name| TableOperation::DeleteSet { name }));
        plan
    }

    fn surplus_chains(&self) -> impl Iterator<Item = &String> {
        let there = self.chains.iter().filter(|name| self.seen.chains.contains_key(*name));
        there.filter(|name| self.chain(name).is_none())
    }

    fn surplus_sets(&self) -> impl Iterator<Item = &String> {
        let there = self.sets.iter().filter(|name| self.seen.sets.contains_key(*name));
        there.filter(|name| self.set(name).is_none())
    }

    /// Records that the kernel has accepted the removals.
    pub fn removed(&mut self) {
        for name in self.surplus_chains().cloned().collect::<Vec<_>>() {
            self.chains.remove(&name);
            self.seen.chains.remove(&name);
        }
        for name in self.surplus_sets().cloned().collect::<Vec<_>>() {
            self.sets.remove(&name);
            self.elements.remove(&name);
            self.seen.sets.remove(&name);
        }
    }

    /// Returns whether the kernel has an object under one of our names that cannot be changed into the desired one.
    fn must_start_over(&self) -> bool {
        let hooks_differ = self.chains.iter().any(|name| {
            let pair = self.chain(name).zip(self.seen.chains.get(name));
            pair.is_some_and(|(chain, fingerprint)| chain.hook != fingerprint.hook)
        });
        let sets_differ = self.sets.iter().any(|name| {
            let pair = self.set(name).zip(self.seen.sets.get(name));
            pair.is_some_and(|(set, seen)| *seen != Some(set.kind))
        });
        self.seen.odd || hooks_differ || sets_differ
    }

    fn everything(&self) -> Vec<TableOperation<'_>> {
        let mut plan = OrderedOperations::default();
        // Adding an existing table has no effect, so this works whether the table exists or not.
        plan.first.extend([TableOperation::AddTable, TableOperation::DeleteTable, TableOperation::AddTable]);
        for name in self.wanted.chains.keys() {
            if let Some(chain) = self.chain(name) {
                plan.add_chain(name, chain);
            }
        }
        for name in self.wanted.sets.keys() {
            if let Some(set) = self.set(name) {
                plan.add_set(name, set.kind, self.accepted(name, set).collect());
            }
        }
        plan.in_order()
    }

    /// Records that the kernel has accepted the operations.
    pub fn done(&mut self) {
        let mut kept_chains = BTreeSet::new();
        let mut kept_sets = BTreeSet::new();
        if self.retires_maps() {
            kept_chains.extend(self.surplus_chains().cloned());
            kept_sets.extend(self.surplus_sets().cloned());
        }
        if self.must_start_over() {
            let chains = self.wanted.chains.keys().chain(self.seen.chains.keys());
            let sets = self.wanted.sets.keys().chain(self.seen.sets.keys());
            (self.chains, self.sets) = (chains.cloned().collect(), sets.cloned().collect());
        }
        self.seen.there = true;
        self.seen.odd = false;
        for name in std::mem::replace(&mut self.chains, kept_chains.clone()) {
            if kept_chains.contains(&name) {
                continue;
            }
            match self.chain(&name).map(ChainFingerprint::new) {
                Some(fingerprint) => self.seen.chains.insert(name, fingerprint),
                None => self.seen.chains.remove(&name),
            };
        }
        for name in std::mem::replace(&mut self.sets, kept_sets.clone()) {
            if kept_sets.contains(&name) {
                continue;
            }
            match self.set(&name).map(|set| set.kind) {
                Some(kind) => self.seen.sets.insert(name, Some(kind)),
                None => self.seen.sets.remove(&name),
            };
        }
        self.elements.retain(|name, _| kept_sets.contains(name));
    }
}

fn touch<'e>(
    elements: &'e mut BTreeMap<String, BTreeMap<NftElement, bool>>,
    name: &str,
) -> &'e mut BTreeMap<NftElement, bool> {
    if !elements.contains_key(name) {
        elements.insert(name.to_owned(), BTreeMap::new());
    }
    elements.entry(name.to_owned()).or_default()
}

/// Operations grouped by their order in the transaction.
#[derive(Default)]
struct OrderedOperations<'t> {
    first: Vec<TableOperation<'t>>,
    flushes: Vec<TableOperation<'t>>,
    removals: Vec<TableOperation<'t>>,
    elements: Vec<TableOperation<'t>>,
    rules: Vec<TableOperation<'t>>,
    last: Vec<TableOperation<'t>>,
}

impl<'t> OrderedOperations<'t> {
    fn add_chain(&mut self, name: &'t str, chain: &'t NftChain) {
        self.first.push(TableOperation::AddChain { name, hook: chain.hook });
        self.fill(name, chain);
    }

    fn refill_chain(&mut self, name: &'t str, chain: &'t NftChain) {
        self.flushes.push(TableOperation::FlushChain { name });
        self.fill(name, chain);
    }

    fn fill(&mut self, chain: &'t str, with: &'t NftChain) {
        self.rules.extend(with.rules.iter().map(|rule| TableOperation::AddRule { chain, rule }));
    }

    fn remove_chain(&mut self, name: &'t str) {
        self.flushes.push(TableOperation::FlushChain { name });
        self.last.push(TableOperation::DeleteChain { name });
    }

    fn add_set(&mut self, name: &'t str, kind: SetType, elements: Vec<&'t NftElement>) {
        self.first.push(TableOperation::AddSet { name, kind });
        self.change_elements(name, kind, Vec::new(), elements);
    }

    fn change_elements(
        &mut self,
        set: &'t str,
        kind: SetType,
        gone: Vec<&'t NftElement>,
        new: Vec<&'t NftElement>,
    ) {
        if !gone.is_empty() {
            self.removals.push(TableOperation::DeleteElements { set, kind, elements: gone });
        }
        if !new.is_empty() {
            self.elements.push(TableOperation::AddElements { set, kind, elements: new });
        }
    }

    fn in_order(mut self) -> Vec<TableOperation<'t>> {
        // Delete sets before chains: a map that is deleted still refers to chains that are deleted with it.
        self.last.sort_by_key(|operation| matches!(operation, TableOperation::DeleteChain { .. }));
        let stages = [self.first, self.flushes, self.removals, self.elements, self.rules, self.last];
        stages.into_iter().flatten().collect()
    }
}
