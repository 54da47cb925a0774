//! All policies of the cluster, and those that are in force on this node.

use super::archive::RuleArchive;
use super::chunked::{ChunkedVec, IdAllocator};
use super::convert::{ConvertedRules, RuleConverter};
use super::hash_index::HashIndex;
use super::id_set::IdSet;
use super::ids::{ClassId, PolicySlot, RulesId, SelectorId, Symbol};
use super::locals::{AppliedTiers, TierPolicies};
use super::matcher::SelectorMatcher;
use super::order::{PolicyOrder, PolicySortKey};
use super::parsed::{ParsedPolicy, ParsedStage, PolicyHeader};
use super::profiles::SetUsage;
use super::sets::NeededSet;
use super::symbols::SymbolTable;
use crate::changes::PlanChanges;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::kinds::{self, BUILT_IN_TIERS, TierAction};
use tortie_model::{Kind, StoreKey};
use tortie_plan::{PlanUpdate, PlannedPolicy, PolicyId, PolicyKind, TierDefaultAction};

/// One policy. There may be a hundred thousand of these, nearly all without effect on this node.
#[derive(Debug)]
struct PolicyRecord {
    key: PolicyKey,
    /// Its ID, if it is not the one that follows from its key.
    renamed: Option<Box<PolicyId>>,
    head: PolicyHeader,
    selector: SelectorId,
    rules: Option<RulesId>,
    /// The policy in the plan.
    in_plan: Option<Arc<PlannedPolicyState>>,
    /// Added or rewritten since the last flush.
    fresh: bool,
    /// Deleted since the last flush; its slot is not reused before that flush.
    gone: bool,
}

/// The key of a policy, in symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PolicyKey {
    kind: Kind,
    namespace: Symbol,
    name: Symbol,
}

/// A policy in the plan. Policies with the same rules, selector, tier and namespace share it.
#[derive(Debug)]
struct PlannedPolicyState {
    policy: Arc<PlannedPolicy>,
    needs: Box<[Arc<NeededSet>]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct TierSettings {
    order: f64,
    end: TierDefaultAction,
}

/// Changes of one flush of the table.
#[derive(Debug)]
pub(super) struct PolicyChanges {
    pub changes: PlanChanges,
    pub usage: SetUsage,
    /// The caller passes these to [`PolicyTable::forget`] once their IDs are no longer needed.
    pub gone: Vec<PolicySlot>,
}

#[derive(Debug, Default)]
pub(super) struct PolicyTable {
    slots: ChunkedVec<PolicySlot, Option<PolicyRecord>>,
    ids: IdAllocator<PolicySlot>,
    by_name: HashIndex<PolicySlot>,
    /// Policies by selector.
    of_selector: ChunkedVec<SelectorId, IdSet<PolicySlot>>,
    /// Policies in force, by tier.
    of_tier: HashMap<String, IdSet<PolicySlot>>,
    tiers: BTreeMap<String, TierSettings>,
    order: PolicyOrder,
    changed: BTreeSet<PolicySlot>,
    live: usize,
    active: usize,
    /// Enforced policies in force with rules that only an HTTP proxy could enforce.
    pub unproxied: BTreeSet<PolicySlot>,
    /// Reasons why policies could not be converted.
    pub problems: BTreeMap<StoreKey, String>,
}

impl PlannedPolicyState {
    fn new(tier: &str, selector: String, converted: ConvertedRules) -> PlannedPolicyState {
        let ConvertedRules { ingress, egress, needs, .. } = converted;
        PlannedPolicyState {
            policy: Arc::new(PlannedPolicy { tier: tier.to_owned(), selector, ingress, egress }),
            needs,
        }
    }
}

impl PolicyKey {
    fn find(symbols: &SymbolTable, key: &StoreKey) -> Option<PolicyKey> {
        let StoreKey::Resource { kind, namespace, name } = key else { return None };
        PolicyKey::find_parts(symbols, *kind, namespace, name)
    }

    fn find_parts(symbols: &SymbolTable, kind: Kind, namespace: &str, name: &str) -> Option<PolicyKey> {
        Some(PolicyKey { kind, namespace: symbols.find(namespace)?, name: symbols.find(name)? })
    }

    fn hold(symbols: &mut SymbolTable, key: &StoreKey) -> Option<PolicyKey> {
        let StoreKey::Resource { kind, namespace, name } = key else { return None };
        Some(PolicyKey { kind: *kind, namespace: symbols.hold(namespace), name: symbols.hold(name) })
    }

    fn release(self, symbols: &mut SymbolTable) {
        symbols.release(self.namespace);
        symbols.release(self.name);
    }

    fn key(self, symbols: &SymbolTable) -> StoreKey {
        StoreKey::resource(self.kind, symbols.text(self.namespace), symbols.text(self.name))
    }
}

impl PolicyRecord {
    fn id(&self, symbols: &SymbolTable) -> PolicyId {
        let PolicyKey { kind, namespace, name } = self.key;
        self.renamed.as_deref().cloned().unwrap_or_else(|| PolicyId {
            kind: usual_kind(kind).unwrap_or(PolicyKind::NetworkPolicy),
            namespace: symbols.text(namespace).to_owned(),
            name: symbols.text(name).to_owned(),
        })
    }
}

/// Returns the policy kind of a kind of resource, unless the policy's name implies another; `None` if it is not a
/// policy.
fn usual_kind(kind: Kind) -> Option<PolicyKind> {
    Some(match kind {
        Kind::NetworkPolicy => PolicyKind::NetworkPolicy,
        Kind::GlobalNetworkPolicy => PolicyKind::GlobalNetworkPolicy,
        Kind::StagedNetworkPolicy => PolicyKind::StagedNetworkPolicy,
        Kind::StagedGlobalNetworkPolicy => PolicyKind::StagedGlobalNetworkPolicy,
        Kind::StagedKubernetesNetworkPolicy => PolicyKind::StagedKubernetesNetworkPolicy,
        _ => return None,
    })
}

/// Returns whether the ID of a policy is the one that follows from its key.
fn is_usual(key: &StoreKey, id: &PolicyId) -> bool {
    let StoreKey::Resource { kind, namespace, name } = key else { return false };
    usual_kind(*kind) == Some(id.kind) && id.namespace == *namespace && id.name == *name
}

impl PolicyTable {
    /// Returns the number of all policies and of those in force.
    pub fn totals(&self) -> (usize, usize) {
        (self.live, self.active)
    }

    pub fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Converts the rules of all policies in force again at the next flush.
    pub fn convert_again(&mut self) {
        for slot in self.of_tier.values().flat_map(IdSet::iter) {
            self.changed.insert(slot);
            if let Some(Some(record)) = self.slots.get_mut(slot) {
                record.fresh = true;
            }
        }
    }

    fn slot(&self, name: PolicyKey) -> Option<PolicySlot> {
        let hash = self.by_name.hash(&name);
        self.by_name.find(hash, |slot| self.get(slot).is_some_and(|record| record.key == name))
    }

    /// Removes a deleted record from the index by name: its name belongs to another record now, or to none.
    fn unname(&mut self, slot: PolicySlot) {
        let Some(name) = self.get(slot).map(|record| record.key) else { return };
        self.by_name.remove(self.by_name.hash(&name), slot);
    }

    /// Adds or replaces a policy. Returns the classes whose endpoints are affected.
    pub fn put(
        &mut self,
        symbols: &mut SymbolTable,
        local_matches: &mut SelectorMatcher,
        archive: &mut RuleArchive,
        key: &StoreKey,
        parsed: ParsedPolicy,
    ) -> Vec<ClassId> {
        let mut concerned = self.namesake_changed(symbols, local_matches, key);
        let known = PolicyKey::find(symbols, key).and_then(|name| self.slot(name));
        let same =
            known.and_then(|slot| self.get(slot)).is_some_and(|record| record.id(symbols) == parsed.id);
        if !same {
            concerned.extend(self.remove(symbols, local_matches, key));
            known.into_iter().for_each(|slot| self.unname(slot));
        }
        let selector = local_matches.hold(symbols, &parsed.selector);
        self.problems.remove(key);
        match known.filter(|_| same) {
            Some(slot) => {
                concerned.extend(self.rewrite(symbols, local_matches, archive, slot, selector, parsed))
            }
            None => {
                self.add(symbols, key, selector, parsed);
                concerned.extend(local_matches.matching(selector));
            }
        }
        concerned
    }

    /// Rewrites a policy that exists, or was deleted since the last flush.
    fn rewrite(
        &mut self,
        symbols: &mut SymbolTable,
        local_matches: &mut SelectorMatcher,
        archive: &mut RuleArchive,
        slot: PolicySlot,
        selector: SelectorId,
        parsed: ParsedPolicy,
    ) -> Vec<ClassId> {
        let Some(Some(record)) = self.slots.get_mut(slot) else { return Vec::new() };
        let revived = std::mem::take(&mut record.gone);
        let moved = revived || record.head != parsed.head || record.selector != selector;
        let old = std::mem::replace(&mut record.selector, selector);
        record.head = parsed.head;
        record.fresh = true;
        let old_rules = std::mem::replace(&mut record.rules, parsed.rules);
        old_rules.into_iter().for_each(|rules| archive.release(rules));
        self.live += usize::from(revived);
        self.changed.insert(slot);
        let mut concerned = if moved { local_matches.matching(selector) } else { Vec::new() };
        if !revived {
            if moved {
                concerned.extend(local_matches.matching(old));
                self.unlist(old, slot);
            }
            local_matches.release(symbols, old);
        }
        self.list(selector, slot);
        concerned
    }

    fn add(&mut self, symbols: &mut SymbolTable, key: &StoreKey, selector: SelectorId, parsed: ParsedPolicy) {
        let Some(name) = PolicyKey::hold(symbols, key) else { return };
        let ParsedPolicy { id, head, rules, .. } = parsed;
        let renamed = Some(id).filter(|id| !is_usual(key, id)).map(Box::new);
        let record = PolicyRecord {
            key: name,
            renamed,
            head,
            selector,
            rules,
            in_plan: None,
            fresh: true,
            gone: false,
        };
        let slot = self.ids.take();
        *self.slots.at(slot) = Some(record);
        self.live += 1;
        self.by_name.insert(self.by_name.hash(&name), slot);
        self.list(selector, slot);
        self.changed.insert(slot);
    }

    /// Removes a policy. Returns the classes whose endpoints are affected.
    pub fn remove(
        &mut self,
        symbols: &mut SymbolTable,
        local_matches: &mut SelectorMatcher,
        key: &StoreKey,
    ) -> Vec<ClassId> {
        self.problems.remove(key);
        let slot = PolicyKey::find(symbols, key).and_then(|name| self.slot(name));
        let Some(slot) = slot else { return Vec::new() };
        let Some(Some(record)) = self.slots.get_mut(slot) else { return Vec::new() };
        if std::mem::replace(&mut record.gone, true) {
            return Vec::new();
        }
        self.live -= 1;
        let selector = record.selector;
        let mut concerned = local_matches.matching(selector);
        self.unlist(selector, slot);
        self.changed.insert(slot);
        local_matches.release(symbols, selector);
        concerned.extend(self.namesake_changed(symbols, local_matches, key));
        concerned
    }

    /// Re-evaluates the policy under `default.NAME`, which an old datastore may hold beside one under `NAME`; then
    /// only the latter applies. Returns the classes whose endpoints are affected.
    fn namesake_changed(
        &mut self,
        symbols: &SymbolTable,
        local_matches: &SelectorMatcher,
        key: &StoreKey,
    ) -> Vec<ClassId> {
        let StoreKey::Resource { kind, namespace, name } = key else { return Vec::new() };
        let old = PolicyKey::find_parts(symbols, *kind, namespace, &format!("default.{name}"));
        let Some(slot) = old.and_then(|old| self.slot(old)) else { return Vec::new() };
        self.changed.insert(slot);
        let selector = self.get(slot).filter(|record| !record.gone).map(|record| record.selector);
        selector.map(|selector| local_matches.matching(selector)).unwrap_or_default()
    }

    fn is_shadowed(&self, symbols: &SymbolTable, record: &PolicyRecord) -> bool {
        let PolicyKey { kind, namespace, name } = record.key;
        let Some(name) = symbols.text(name).strip_prefix("default.") else { return false };
        let other = PolicyKey::find_parts(symbols, kind, symbols.text(namespace), name)
            .and_then(|other| self.slot(other));
        record.id(symbols).name == name
            && other.and_then(|slot| self.get(slot)).is_some_and(|other| !other.gone)
    }

    fn list(&mut self, selector: SelectorId, slot: PolicySlot) {
        self.of_selector.at(selector).insert(slot);
    }

    fn unlist(&mut self, selector: SelectorId, slot: PolicySlot) {
        self.of_selector.at(selector).remove(slot);
    }

    /// Adds or replaces a tier. Returns the classes whose endpoints are affected.
    pub fn put_tier(&mut self, local_matches: &SelectorMatcher, tier: &kinds::Tier) -> Vec<ClassId> {
        let end = default_action(&tier.spec.default_action);
        let order = tier.spec.order.map_or(DEFAULT_TIER_ORDER, |order| order.0);
        let new = TierSettings { order, end };
        let name = &tier.metadata.name;
        let old = self.tiers.insert(name.clone(), new);
        if old == Some(new) { Vec::new() } else { self.tier_changed(local_matches, name) }
    }

    pub fn remove_tier(&mut self, local_matches: &SelectorMatcher, name: &str) -> Vec<ClassId> {
        if self.tiers.remove(name).is_none() {
            return Vec::new();
        }
        self.tier_changed(local_matches, name)
    }

    fn tier_changed(&mut self, local_matches: &SelectorMatcher, name: &str) -> Vec<ClassId> {
        let slots: Vec<PolicySlot> =
            self.of_tier.get(name).map(|ids| ids.iter().collect()).unwrap_or_default();
        self.changed.extend(slots.iter().copied());
        let live = slots.into_iter().filter_map(|slot| self.get(slot)).filter(|record| !record.gone);
        let selectors: BTreeSet<SelectorId> = live.map(|record| record.selector).collect();
        selectors.into_iter().flat_map(|selector| local_matches.matching(selector)).collect()
    }

    /// Returns a tier. Built-in tiers exist even without a resource.
    fn tier(&self, name: &str) -> Option<TierSettings> {
        if let Some(tier) = self.tiers.get(name) {
            return Some(*tier);
        }
        let tier = BUILT_IN_TIERS.into_iter().find(|tier| tier.name == name)?;
        Some(TierSettings { order: tier.order, end: default_action(&tier.default_action) })
    }

    /// Re-evaluates the policies of a selector that began or ceased to match endpoints of this node.
    pub fn selector_changed(&mut self, selector: SelectorId) {
        if let Some(slots) = self.of_selector.get(selector) {
            self.changed.extend(slots.iter());
        }
    }

    fn get(&self, slot: PolicySlot) -> Option<&PolicyRecord> {
        self.slots.get(slot)?.as_ref()
    }

    pub fn id(&self, symbols: &SymbolTable, slot: PolicySlot) -> Option<PolicyId> {
        self.get(slot).map(|record| record.id(symbols))
    }

    /// Returns the changes since the last flush. Slots of deleted policies are not reused until
    /// [`PolicyTable::forget`].
    pub fn flush(
        &mut self,
        symbols: &SymbolTable,
        local_matches: &SelectorMatcher,
        converter: RuleConverter<'_>,
    ) -> PolicyChanges {
        let mut usage = SetUsage::default();
        let mut gone = Vec::new();
        let mut come = Vec::new();
        let mut go = Vec::new();
        let mut equals = HashMap::new();
        for slot in std::mem::take(&mut self.changed) {
            let Some(record) = self.get(slot) else { continue };
            if record.gone {
                gone.push(slot);
            }
            let wanted =
                !record.gone && (record.head.everywhere || local_matches.matches_any(record.selector));
            if !wanted && record.in_plan.is_none() {
                continue;
            }
            let place = (wanted && !self.is_shadowed(symbols, record)).then(|| self.place(symbols, record));
            let Some(place) = place else {
                go.extend(self.remove_from_plan(symbols, slot, &mut usage));
                continue;
            };
            let Some(Some(record)) = self.slots.get_mut(slot) else { continue };
            self.order.insert(slot, place);
            if !std::mem::take(&mut record.fresh) {
                continue;
            }
            let id = record.id(symbols);
            let same = (record.rules, record.selector, record.head.tier().to_owned(), id.namespace.clone());
            let (in_plan, problem) = equals.entry(same).or_insert_with(|| {
                let selector =
                    local_matches.selector(record.selector).map(ToString::to_string).unwrap_or_default();
                let converted = converter.rules(record.rules, &id.namespace);
                let problem = converted.problem();
                (Arc::new(PlannedPolicyState::new(record.head.tier(), selector, converted)), problem)
            });
            match problem {
                Some(problem) => {
                    self.problems.insert(record.key.key(symbols), problem.clone());
                }
                None => {
                    self.problems.remove(&record.key.key(symbols));
                }
            }
            if !id.kind.is_staged() && in_plan.policy.has_unproxied_rules() {
                self.unproxied.insert(slot);
            } else {
                self.unproxied.remove(&slot);
            }
            let old = record.in_plan.replace(in_plan.clone());
            usage.new.extend(in_plan.needs.iter().cloned());
            let policy = in_plan.policy.clone();
            match &old {
                Some(old) if old.policy.tier != policy.tier => {
                    remove_from_tier(&mut self.of_tier, &old.policy.tier, slot)
                }
                Some(_) => {}
                None => self.active += 1,
            }
            self.of_tier.entry_ref(policy.tier.as_str()).or_default().insert(slot);
            if old.as_ref().is_none_or(|old| old.policy != policy) {
                come.push((id, policy));
            }
            usage.old.extend(old.iter().flat_map(|old| old.needs.iter().cloned()));
        }
        come.sort_by(|(a, _), (b, _)| a.cmp(b));
        // A policy that was removed and added again in another slot still exists.
        go.retain(|id| come.binary_search_by(|(other, _)| other.cmp(id)).is_err());
        go.sort();
        let changes = PlanChanges {
            added: come.into_iter().map(|(id, policy)| PlanUpdate::Policy(id, Some(policy))).collect(),
            removed: go.into_iter().map(|id| PlanUpdate::Policy(id, None)).collect(),
        };
        PolicyChanges { changes, usage, gone }
    }

    /// Returns the ID of the policy if it was in the plan.
    fn remove_from_plan(
        &mut self,
        symbols: &SymbolTable,
        slot: PolicySlot,
        usage: &mut SetUsage,
    ) -> Option<PolicyId> {
        self.order.remove(slot);
        self.unproxied.remove(&slot);
        let record = self.slots.get_mut(slot)?.as_mut()?;
        record.fresh = true;
        let old = record.in_plan.take()?;
        self.active -= 1;
        // Another slot may have the key of a deleted policy; its own problem is removed already.
        if !record.gone {
            self.problems.remove(&record.key.key(symbols));
        }
        usage.old.extend(old.needs.iter().cloned());
        remove_from_tier(&mut self.of_tier, &old.policy.tier, slot);
        Some(record.id(symbols))
    }

    pub fn forget(&mut self, symbols: &mut SymbolTable, archive: &mut RuleArchive, gone: Vec<PolicySlot>) {
        for slot in gone {
            self.unname(slot);
            let Some(record) = self.slots.get_mut(slot).and_then(Option::take) else { continue };
            record.key.release(symbols);
            record.rules.into_iter().for_each(|rules| archive.release(rules));
            self.ids.give_back(slot);
        }
    }

    fn place(&self, symbols: &SymbolTable, record: &PolicyRecord) -> PolicySortKey {
        let tier = record.head.tier();
        PolicySortKey::new(
            tier,
            self.tier(tier).map(|tier| tier.order),
            record.head.order,
            &record.id(symbols),
        )
    }

    /// Returns the policies that apply to the endpoints of a class.
    pub fn applied_tiers(&self, local_matches: &SelectorMatcher, class: ClassId) -> AppliedTiers {
        let mut slots: Vec<(u64, PolicySlot)> = Vec::new();
        for selector in local_matches.matched(class).iter() {
            let policies = self.of_selector.get(selector).into_iter().flat_map(IdSet::iter);
            let active =
                policies.filter(|slot| self.get(*slot).is_some_and(|record| record.in_plan.is_some()));
            slots.extend(active.map(|slot| (self.order.number(slot), slot)));
        }
        slots.sort_unstable();
        let mut tiers = AppliedTiers::default();
        for (_, slot) in slots {
            let Some(PolicyRecord { head, .. }) = self.get(slot) else { continue };
            let end = self.tier(head.tier()).map_or(TierDefaultAction::Deny, |tier| tier.end);
            match head.stage {
                ParsedStage::Normal => add_policy(&mut tiers.normal, head, slot, end),
                ParsedStage::Forward => {
                    add_policy(&mut tiers.normal, head, slot, end);
                    add_policy(&mut tiers.forward, head, slot, end);
                }
                ParsedStage::Untracked => {
                    add_policy(&mut tiers.untracked, head, slot, TierDefaultAction::Pass)
                }
                ParsedStage::PreDnat => add_policy(&mut tiers.pre_dnat, head, slot, TierDefaultAction::Pass),
            }
        }
        tiers
    }
}

const DEFAULT_TIER_ORDER: f64 = 1_000_000.0;

fn default_action(action: &TierAction) -> TierDefaultAction {
    match action {
        TierAction::Pass => TierDefaultAction::Pass,
        TierAction::Deny | TierAction::Unknown(_) => TierDefaultAction::Deny,
    }
}

fn add_policy(tiers: &mut Vec<TierPolicies>, head: &PolicyHeader, slot: PolicySlot, end: TierDefaultAction) {
    if tiers.last().is_none_or(|tier| tier.tier != head.tier()) {
        let tier = head.tier().to_owned();
        tiers.push(TierPolicies { tier, end, ingress: Vec::new(), egress: Vec::new() });
    }
    if let Some(tier) = tiers.last_mut() {
        tier.ingress.extend(head.ingress.then_some(slot));
        tier.egress.extend(head.egress.then_some(slot));
    }
}

fn remove_from_tier(map: &mut HashMap<String, IdSet<PolicySlot>>, key: &str, id: PolicySlot) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
pub(super) fn record_size() -> usize {
    size_of::<Option<PolicyRecord>>()
}
