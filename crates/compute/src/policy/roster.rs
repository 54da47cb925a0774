//! All policies of the cluster, and which of them are in force on this node.

use super::archive::{Archive, RulesId};
use super::convert::{Converted, Converter};
use super::draft::{Draft, Head, Stage};
use super::ids::Ids;
use super::index::Index;
use super::list::{List, Numbers};
use super::locals::{Layer, Layers};
use super::matcher::{Matcher, SelectorId};
use super::order::{Order, Place};
use super::profiles::Needs;
use super::sets::Need;
use super::words::{ClassId, Word, Words};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::kinds::{self, BUILT_IN_TIERS, TierAction};
use tortie_model::{Key, Kind};
use tortie_plan::{Policy, PolicyId, PolicyKind, TierEnd, Update};

/// One policy. There may be a hundred thousand of these, nearly all without effect here.
#[derive(Debug)]
struct Record {
    key: Name,
    /// Its name, if it is not the one that follows from its key.
    renamed: Option<Box<PolicyId>>,
    head: Head,
    selector: SelectorId,
    rules: Option<RulesId>,
    /// What the plan has.
    told: Option<Arc<Told>>,
    /// Came or was written anew since it was told.
    fresh: bool,
    /// Deleted since the last flush; its number is not given to another one before that.
    gone: bool,
}

/// The key of a policy, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    kind: Kind,
    namespace: Word,
    name: Word,
}

/// What the plan has for a policy, and for others that say the same about the same endpoints.
#[derive(Debug)]
struct Told {
    policy: Arc<Policy>,
    needs: Box<[Arc<Need>]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Tier {
    order: f64,
    end: TierEnd,
}

#[derive(Debug, Default)]
pub(super) struct Roster {
    slots: List<Option<Record>>,
    numbers: Numbers,
    by_name: Index,
    /// By selector.
    of_selector: List<Ids>,
    /// Those in force.
    of_tier: HashMap<String, Ids>,
    tiers: BTreeMap<String, Tier>,
    order: Order,
    changed: BTreeSet<u32>,
    live: usize,
    active: usize,
    /// Why policies could not be converted.
    pub problems: BTreeMap<Key, String>,
}

impl Told {
    /// Rules that cannot be converted deny everything; then it is said why they cannot.
    fn new(tier: &str, selector: String, rules: Result<Converted, String>) -> (Arc<Told>, Option<String>) {
        let (converted, problem) = match rules {
            Ok(converted) => (converted, None),
            Err(problem) => (Converted::denying(), Some(problem)),
        };
        let Converted { ingress, egress, needs } = converted;
        let policy = Arc::new(Policy { tier: tier.to_owned(), selector, ingress, egress });
        (Arc::new(Told { policy, needs }), problem)
    }
}

impl Name {
    fn find(words: &Words, key: &Key) -> Option<Name> {
        let Key::Resource { kind, namespace, name } = key else { return None };
        Name::of(words, *kind, namespace, name)
    }

    fn of(words: &Words, kind: Kind, namespace: &str, name: &str) -> Option<Name> {
        Some(Name { kind, namespace: words.find(namespace)?, name: words.find(name)? })
    }

    fn hold(words: &mut Words, key: &Key) -> Option<Name> {
        let Key::Resource { kind, namespace, name } = key else { return None };
        Some(Name { kind: *kind, namespace: words.hold(namespace), name: words.hold(name) })
    }

    fn release(self, words: &mut Words) {
        words.release(self.namespace);
        words.release(self.name);
    }

    fn key(self, words: &Words) -> Key {
        Key::resource(self.kind, words.text(self.namespace), words.text(self.name))
    }
}

impl Record {
    fn id(&self, words: &Words) -> PolicyId {
        let Name { kind, namespace, name } = self.key;
        self.renamed.as_deref().cloned().unwrap_or_else(|| PolicyId {
            kind: usual_kind(kind).unwrap_or(PolicyKind::NetworkPolicy),
            namespace: words.text(namespace).to_owned(),
            name: words.text(name).to_owned(),
        })
    }
}

/// What a policy of a kind of resource is, unless its name says otherwise; none if the kind is not one of policies.
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

/// Whether the name of a policy is the one that follows from its key.
fn is_usual(key: &Key, id: &PolicyId) -> bool {
    let Key::Resource { kind, namespace, name } = key else { return false };
    usual_kind(*kind) == Some(id.kind) && id.namespace == *namespace && id.name == *name
}

impl Roster {
    /// All there are, and those in force.
    pub fn totals(&self) -> (usize, usize) {
        (self.live, self.active)
    }

    pub fn tiers(&self) -> usize {
        self.tiers.len()
    }

    fn slot(&self, name: Name) -> Option<u32> {
        let is_it = |slot| self.get(slot).is_some_and(|record| record.key == name);
        self.by_name.find(self.by_name.hash(&name), is_it)
    }

    /// A record that is gone is not found any more: another one has its name now, or nobody.
    fn unname(&mut self, slot: u32) {
        let Some(name) = self.get(slot).map(|record| record.key) else { return };
        self.by_name.remove(self.by_name.hash(&name), slot);
    }

    /// Returns the classes whose endpoints are concerned.
    pub fn put(
        &mut self,
        words: &mut Words,
        here: &mut Matcher,
        archive: &mut Archive,
        key: &Key,
        draft: Draft,
    ) -> Vec<ClassId> {
        let mut concerned = self.namesake_changed(words, here, key);
        let known = Name::find(words, key).and_then(|name| self.slot(name));
        let same = known.and_then(|slot| self.get(slot)).is_some_and(|record| record.id(words) == draft.id);
        if !same {
            concerned.extend(self.remove(words, here, key));
            known.into_iter().for_each(|slot| self.unname(slot));
        }
        let selector = here.hold(words, &draft.selector);
        self.problems.remove(key);
        match known.filter(|_| same) {
            Some(slot) => concerned.extend(self.rewrite(words, here, archive, slot, selector, draft)),
            None => {
                self.add(words, key, selector, draft);
                concerned.extend(here.matching(selector));
            }
        }
        concerned
    }

    /// A policy that is there, or was until a moment ago, is written anew.
    fn rewrite(
        &mut self,
        words: &mut Words,
        here: &mut Matcher,
        archive: &mut Archive,
        slot: u32,
        selector: SelectorId,
        draft: Draft,
    ) -> Vec<ClassId> {
        let Some(Some(record)) = self.slots.get_mut(slot) else { return Vec::new() };
        let revived = std::mem::take(&mut record.gone);
        let moved = revived || record.head != draft.head || record.selector != selector;
        let old = std::mem::replace(&mut record.selector, selector);
        record.head = draft.head;
        record.fresh = true;
        let old_rules = std::mem::replace(&mut record.rules, draft.rules);
        old_rules.into_iter().for_each(|rules| archive.release(rules));
        self.live += usize::from(revived);
        self.changed.insert(slot);
        let mut concerned = if moved { here.matching(selector) } else { Vec::new() };
        if !revived {
            if moved {
                concerned.extend(here.matching(old));
                self.unlist(old, slot);
            }
            here.release(words, old);
        }
        self.list(selector, slot);
        concerned
    }

    fn add(&mut self, words: &mut Words, key: &Key, selector: SelectorId, draft: Draft) {
        let Some(name) = Name::hold(words, key) else { return };
        let Draft { id, head, rules, .. } = draft;
        let renamed = Some(id).filter(|id| !is_usual(key, id)).map(Box::new);
        let record =
            Record { key: name, renamed, head, selector, rules, told: None, fresh: true, gone: false };
        let slot = self.numbers.take();
        *self.slots.at(slot) = Some(record);
        self.live += 1;
        self.by_name.insert(self.by_name.hash(&name), slot);
        self.list(selector, slot);
        self.changed.insert(slot);
    }

    /// Returns the classes whose endpoints are concerned.
    pub fn remove(&mut self, words: &mut Words, here: &mut Matcher, key: &Key) -> Vec<ClassId> {
        self.problems.remove(key);
        let slot = Name::find(words, key).and_then(|name| self.slot(name));
        let Some(slot) = slot else { return Vec::new() };
        let Some(Some(record)) = self.slots.get_mut(slot) else { return Vec::new() };
        if std::mem::replace(&mut record.gone, true) {
            return Vec::new();
        }
        self.live -= 1;
        let selector = record.selector;
        let mut concerned = here.matching(selector);
        self.unlist(selector, slot);
        self.changed.insert(slot);
        here.release(words, selector);
        concerned.extend(self.namesake_changed(words, here, key));
        concerned
    }

    /// An old store may hold a policy under `default.NAME` beside one under `NAME`; then only the latter counts.
    fn namesake_changed(&mut self, words: &Words, here: &Matcher, key: &Key) -> Vec<ClassId> {
        let Key::Resource { kind, namespace, name } = key else { return Vec::new() };
        let old = Name::of(words, *kind, namespace, &format!("default.{name}"));
        let Some(slot) = old.and_then(|old| self.slot(old)) else { return Vec::new() };
        self.changed.insert(slot);
        let selector = self.get(slot).filter(|record| !record.gone).map(|record| record.selector);
        selector.map(|selector| here.matching(selector)).unwrap_or_default()
    }

    fn is_shadowed(&self, words: &Words, record: &Record) -> bool {
        let Name { kind, namespace, name } = record.key;
        let Some(name) = words.text(name).strip_prefix("default.") else { return false };
        let other = Name::of(words, kind, words.text(namespace), name).and_then(|other| self.slot(other));
        record.id(words).name == name
            && other.and_then(|slot| self.get(slot)).is_some_and(|other| !other.gone)
    }

    fn list(&mut self, selector: SelectorId, slot: u32) {
        self.of_selector.at(selector).insert(slot);
    }

    fn unlist(&mut self, selector: SelectorId, slot: u32) {
        self.of_selector.at(selector).remove(slot);
    }

    /// Returns the classes whose endpoints are concerned.
    pub fn put_tier(&mut self, here: &Matcher, tier: &kinds::Tier) -> Vec<ClassId> {
        let end = match tier.spec.default_action {
            TierAction::Pass => TierEnd::Pass,
            TierAction::Deny | TierAction::Unknown(_) => TierEnd::Deny,
        };
        let order = tier.spec.order.map_or(DEFAULT_TIER_ORDER, |order| order.0);
        let new = Tier { order, end };
        let name = &tier.metadata.name;
        let old = self.tiers.insert(name.clone(), new);
        if old == Some(new) { Vec::new() } else { self.tier_changed(here, name) }
    }

    pub fn remove_tier(&mut self, here: &Matcher, name: &str) -> Vec<ClassId> {
        if self.tiers.remove(name).is_none() {
            return Vec::new();
        }
        self.tier_changed(here, name)
    }

    fn tier_changed(&mut self, here: &Matcher, name: &str) -> Vec<ClassId> {
        let slots: Vec<u32> = self.of_tier.get(name).map(|ids| ids.iter().collect()).unwrap_or_default();
        self.changed.extend(slots.iter().copied());
        let live = slots.into_iter().filter_map(|slot| self.get(slot)).filter(|record| !record.gone);
        let selectors: BTreeSet<SelectorId> = live.map(|record| record.selector).collect();
        selectors.into_iter().flat_map(|selector| here.matching(selector)).collect()
    }

    /// Built-in tiers are there even if nobody wrote them.
    fn tier(&self, name: &str) -> Option<Tier> {
        let built_in = || {
            let tier = BUILT_IN_TIERS.into_iter().find(|tier| tier.name == name)?;
            let pass = tier.default_action == TierAction::Pass;
            Some(Tier { order: tier.order, end: if pass { TierEnd::Pass } else { TierEnd::Deny } })
        };
        self.tiers.get(name).copied().or_else(built_in)
    }

    /// A selector began or ceased to match anything here.
    pub fn selector_changed(&mut self, selector: SelectorId) {
        if let Some(slots) = self.of_selector.get(selector) {
            self.changed.extend(slots.iter());
        }
    }

    fn get(&self, slot: u32) -> Option<&Record> {
        self.slots.get(slot)?.as_ref()
    }

    pub fn id(&self, words: &Words, slot: u32) -> Option<PolicyId> {
        self.get(slot).map(|record| record.id(words))
    }

    /// What changed. Numbers of policies that are gone stay theirs until [`Roster::forget`].
    pub fn flush(
        &mut self,
        words: &Words,
        here: &Matcher,
        converter: Converter<'_>,
        added: &mut Vec<Update>,
        removed: &mut Vec<Update>,
        needs: &mut Needs,
    ) -> Vec<u32> {
        let mut gone = Vec::new();
        let (mut come, mut go) = (Vec::new(), Vec::new());
        let mut equals = HashMap::new();
        for slot in std::mem::take(&mut self.changed) {
            let Some(record) = self.get(slot) else { continue };
            if record.gone {
                gone.push(slot);
            }
            let wanted = !record.gone && (record.head.everywhere || here.matches_any(record.selector));
            if !wanted && record.told.is_none() {
                continue;
            }
            let place = (wanted && !self.is_shadowed(words, record)).then(|| self.place(words, record));
            let Some(Some(record)) = self.slots.get_mut(slot) else { continue };
            let Some(place) = place else {
                self.order.remove(slot);
                record.fresh = true;
                if let Some(old) = record.told.take() {
                    self.active -= 1;
                    go.push(record.id(words));
                    needs.old.extend(old.needs.iter().cloned());
                    take(&mut self.of_tier, &old.policy.tier, slot);
                }
                continue;
            };
            self.order.insert(slot, place);
            if !std::mem::take(&mut record.fresh) {
                continue;
            }
            let id = record.id(words);
            let same = (record.rules, record.selector, record.head.tier().to_owned(), id.namespace.clone());
            let (told, problem) = equals.entry(same).or_insert_with(|| {
                let selector = here.selector(record.selector).map(ToString::to_string).unwrap_or_default();
                Told::new(record.head.tier(), selector, converter.rules(record.rules, &id.namespace))
            });
            if let Some(problem) = problem {
                self.problems.insert(record.key.key(words), problem.clone());
            }
            let old = record.told.replace(told.clone());
            needs.new.extend(told.needs.iter().cloned());
            let policy = told.policy.clone();
            match &old {
                Some(old) if old.policy.tier != policy.tier => {
                    take(&mut self.of_tier, &old.policy.tier, slot)
                }
                Some(_) => {}
                None => self.active += 1,
            }
            self.of_tier.entry_ref(policy.tier.as_str()).or_default().insert(slot);
            if old.as_ref().is_none_or(|old| old.policy != policy) {
                come.push((id, policy));
            }
            needs.old.extend(old.iter().flat_map(|old| old.needs.iter().cloned()));
        }
        come.sort_by(|(a, _), (b, _)| a.cmp(b));
        // One that went and came back under another number is there.
        go.retain(|id| come.binary_search_by(|(other, _)| other.cmp(id)).is_err());
        go.sort();
        added.extend(come.into_iter().map(|(id, policy)| Update::Policy(id, Some(policy))));
        removed.extend(go.into_iter().map(|id| Update::Policy(id, None)));
        gone
    }

    pub fn forget(&mut self, words: &mut Words, archive: &mut Archive, slots: Vec<u32>) {
        for slot in slots {
            self.unname(slot);
            let Some(record) = self.slots.get_mut(slot).and_then(Option::take) else { continue };
            record.key.release(words);
            record.rules.into_iter().for_each(|rules| archive.release(rules));
            self.numbers.give_back(slot);
        }
    }

    fn place(&self, words: &Words, record: &Record) -> Place {
        let tier = record.head.tier();
        Place::new(tier, self.tier(tier).map(|tier| tier.order), record.head.order, &record.id(words))
    }

    /// What applies to the endpoints of a class.
    pub fn layers(&self, here: &Matcher, class: ClassId) -> Layers {
        let mut slots: Vec<(u64, u32)> = Vec::new();
        for selector in here.matched(class).iter() {
            let policies = self.of_selector.get(selector).into_iter().flat_map(Ids::iter);
            let active = policies.filter(|slot| self.get(*slot).is_some_and(|record| record.told.is_some()));
            slots.extend(active.map(|slot| (self.order.number(slot), slot)));
        }
        slots.sort_unstable();
        let mut layers = Layers::default();
        for (_, slot) in slots {
            let Some(Record { head, .. }) = self.get(slot) else { continue };
            let end = self.tier(head.tier()).map_or(TierEnd::Deny, |tier| tier.end);
            match head.stage {
                Stage::Normal => add(&mut layers.normal, head, slot, end),
                Stage::Forward => {
                    add(&mut layers.normal, head, slot, end);
                    add(&mut layers.forward, head, slot, end);
                }
                Stage::Untracked => add(&mut layers.untracked, head, slot, TierEnd::Pass),
                Stage::PreDnat => add(&mut layers.pre_dnat, head, slot, TierEnd::Pass),
            }
        }
        layers
    }
}

const DEFAULT_TIER_ORDER: f64 = 1_000_000.0;

fn add(layers: &mut Vec<Layer>, head: &Head, slot: u32, end: TierEnd) {
    if layers.last().is_none_or(|layer| layer.tier != head.tier()) {
        let tier = head.tier().to_owned();
        layers.push(Layer { tier, end, ingress: Vec::new(), egress: Vec::new() });
    }
    if let Some(layer) = layers.last_mut() {
        layer.ingress.extend(head.ingress.then_some(slot));
        layer.egress.extend(head.egress.then_some(slot));
    }
}

fn take(map: &mut HashMap<String, Ids>, key: &str, id: u32) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}
