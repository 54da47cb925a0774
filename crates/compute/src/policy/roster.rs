//! All policies of the cluster, and which of them are in force on this node.

use super::body::{Body, Told};
use super::convert::Converter;
use super::draft::{Draft, Head, Stage};
use super::ids::Ids;
use super::locals::{Layer, Layers};
use super::matcher::{Matcher, SelectorId};
use super::order::{Order, Place};
use super::profiles::Needs;
use super::sets::Need;
use super::words::{ClassId, Words};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::kinds::{self, BUILT_IN_TIERS, TierAction};
use tortie_model::{Key, Kind};
use tortie_plan::{Policy, PolicyId, PolicyKind, TierEnd, Update};

#[derive(Debug)]
struct Record {
    key: Arc<Key>,
    /// Its name, if it is not the one that follows from its key.
    renamed: Option<Box<PolicyId>>,
    head: Head,
    selector: SelectorId,
    body: Body<Policy>,
    told: Option<Told<Policy>>,
    /// Deleted since the last flush; its number is not given to another one before that.
    gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Tier {
    order: f64,
    end: TierEnd,
}

#[derive(Debug, Default)]
pub(super) struct Roster {
    slots: Vec<Option<Record>>,
    free: Vec<u32>,
    by_key: HashMap<Arc<Key>, u32>,
    /// By selector.
    of_selector: Vec<Ids>,
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

impl Record {
    fn id(&self) -> PolicyId {
        let renamed = self.renamed.as_deref().cloned();
        let usual = || {
            let nameless =
                PolicyId { kind: PolicyKind::NetworkPolicy, namespace: String::new(), name: String::new() };
            usual_id(&self.key).unwrap_or(nameless)
        };
        renamed.unwrap_or_else(usual)
    }
}

/// The name of a policy that follows from its key; none if the key is not one of a policy.
fn usual_id(key: &Key) -> Option<PolicyId> {
    let Key::Resource { kind, namespace, name } = key else { return None };
    let kind = match kind {
        Kind::NetworkPolicy => PolicyKind::NetworkPolicy,
        Kind::GlobalNetworkPolicy => PolicyKind::GlobalNetworkPolicy,
        Kind::StagedNetworkPolicy => PolicyKind::StagedNetworkPolicy,
        Kind::StagedGlobalNetworkPolicy => PolicyKind::StagedGlobalNetworkPolicy,
        Kind::StagedKubernetesNetworkPolicy => PolicyKind::StagedKubernetesNetworkPolicy,
        _ => return None,
    };
    Some(PolicyId { kind, namespace: namespace.clone(), name: name.clone() })
}

impl Roster {
    /// All there are, and those in force.
    pub fn totals(&self) -> (usize, usize) {
        (self.live, self.active)
    }

    pub fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Returns the classes whose endpoints are concerned.
    pub fn put(&mut self, words: &mut Words, here: &mut Matcher, key: &Key, draft: Draft) -> Vec<ClassId> {
        let Draft { id, head, selector, rules } = draft;
        let mut concerned = self.namesake_changed(words, here, key);
        let known = self.by_key.get(key).copied();
        let same = known.and_then(|slot| self.get(slot)).is_some_and(|record| record.id() == id);
        if !same {
            concerned.extend(self.remove(words, here, key));
        }
        let selector = here.hold(words, &selector);
        let body = Body::new(rules);
        self.problems.remove(key);
        if let Some(slot) = known.filter(|_| same)
            && let Some(Some(record)) = self.slots.get_mut(slot as usize)
        {
            let revived = std::mem::take(&mut record.gone);
            let moved = revived || record.head != head || record.selector != selector;
            let old = std::mem::replace(&mut record.selector, selector);
            record.head = head;
            record.body = body;
            self.live += usize::from(revived);
            self.changed.insert(slot);
            if moved {
                concerned.extend(here.matching(words, selector));
            }
            if !revived {
                if moved {
                    concerned.extend(here.matching(words, old));
                    self.unlist(old, slot);
                }
                here.release(words, old);
            }
            self.list(selector, slot);
            return concerned;
        }
        let key = Arc::new(key.clone());
        let renamed = Some(id).filter(|id| usual_id(&key).as_ref() != Some(id)).map(Box::new);
        let record = Record { key: key.clone(), renamed, head, selector, body, told: None, gone: false };
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(slot as usize) {
            Some(free) => *free = Some(record),
            None => self.slots.push(Some(record)),
        }
        self.live += 1;
        self.by_key.insert(key, slot);
        self.list(selector, slot);
        self.changed.insert(slot);
        concerned.extend(here.matching(words, selector));
        concerned
    }

    /// Returns the classes whose endpoints are concerned.
    pub fn remove(&mut self, words: &mut Words, here: &mut Matcher, key: &Key) -> Vec<ClassId> {
        self.problems.remove(key);
        let Some(slot) = self.by_key.get(key).copied() else { return Vec::new() };
        let Some(Some(record)) = self.slots.get_mut(slot as usize) else { return Vec::new() };
        if std::mem::replace(&mut record.gone, true) {
            return Vec::new();
        }
        self.live -= 1;
        let selector = record.selector;
        let mut concerned = here.matching(words, selector);
        self.unlist(selector, slot);
        self.changed.insert(slot);
        here.release(words, selector);
        concerned.extend(self.namesake_changed(words, here, key));
        concerned
    }

    /// An old store may hold a policy under `default.NAME` beside one under `NAME`; then only the latter counts.
    fn namesake_changed(&mut self, words: &Words, here: &Matcher, key: &Key) -> Vec<ClassId> {
        let Key::Resource { kind, namespace, name } = key else { return Vec::new() };
        let old = Key::resource(*kind, namespace, &format!("default.{name}"));
        let Some(slot) = self.by_key.get(&old).copied() else { return Vec::new() };
        self.changed.insert(slot);
        let selector = self.get(slot).filter(|record| !record.gone).map(|record| record.selector);
        selector.map(|selector| here.matching(words, selector)).unwrap_or_default()
    }

    fn is_shadowed(&self, record: &Record) -> bool {
        let Key::Resource { kind, namespace, name } = &*record.key else { return false };
        let Some(name) = name.strip_prefix("default.") else { return false };
        let slot = self.by_key.get(&Key::resource(*kind, namespace, name)).copied();
        record.id().name == name && slot.and_then(|slot| self.get(slot)).is_some_and(|other| !other.gone)
    }

    fn list(&mut self, selector: SelectorId, slot: u32) {
        if self.of_selector.len() <= selector as usize {
            self.of_selector.resize(selector as usize + 1, Ids::None);
        }
        self.of_selector[selector as usize].insert(slot);
    }

    fn unlist(&mut self, selector: SelectorId, slot: u32) {
        if let Some(slots) = self.of_selector.get_mut(selector as usize) {
            slots.remove(slot);
        }
    }

    /// Returns the classes whose endpoints are concerned.
    pub fn put_tier(&mut self, words: &Words, here: &Matcher, tier: &kinds::Tier) -> Vec<ClassId> {
        let end = match tier.spec.default_action {
            TierAction::Pass => TierEnd::Pass,
            TierAction::Deny | TierAction::Unknown(_) => TierEnd::Deny,
        };
        let order = tier.spec.order.map_or(DEFAULT_TIER_ORDER, |order| order.0);
        let new = Tier { order, end };
        let name = &tier.metadata.name;
        let old = self.tiers.insert(name.clone(), new);
        if old == Some(new) { Vec::new() } else { self.tier_changed(words, here, name) }
    }

    pub fn remove_tier(&mut self, words: &Words, here: &Matcher, name: &str) -> Vec<ClassId> {
        if self.tiers.remove(name).is_none() {
            return Vec::new();
        }
        self.tier_changed(words, here, name)
    }

    fn tier_changed(&mut self, words: &Words, here: &Matcher, name: &str) -> Vec<ClassId> {
        let slots: Vec<u32> = self.of_tier.get(name).map(|ids| ids.iter().collect()).unwrap_or_default();
        self.changed.extend(slots.iter().copied());
        let live = slots.into_iter().filter_map(|slot| self.get(slot)).filter(|record| !record.gone);
        let selectors: BTreeSet<SelectorId> = live.map(|record| record.selector).collect();
        selectors.into_iter().flat_map(|selector| here.matching(words, selector)).collect()
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
        if let Some(slots) = self.of_selector.get(selector as usize) {
            self.changed.extend(slots.iter());
        }
    }

    fn get(&self, slot: u32) -> Option<&Record> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn id(&self, slot: u32) -> Option<PolicyId> {
        self.get(slot).map(Record::id)
    }

    /// What changed. Numbers of policies that are gone stay theirs until [`Roster::forget`].
    pub fn flush(
        &mut self,
        here: &Matcher,
        known: &dyn Fn(&tortie_model::selector::Selector) -> Option<Arc<Need>>,
        added: &mut Vec<Update>,
        removed: &mut Vec<Update>,
        needs: &mut Needs,
    ) -> Vec<u32> {
        let mut gone = Vec::new();
        let (mut come, mut go) = (Vec::new(), Vec::new());
        for slot in std::mem::take(&mut self.changed) {
            let Some(record) = self.get(slot) else { continue };
            let wanted = !record.gone && (record.head.everywhere || here.matches_any(record.selector));
            let place = (wanted && !self.is_shadowed(record)).then(|| self.place(record));
            let Some(Some(record)) = self.slots.get_mut(slot as usize) else { continue };
            if record.gone {
                gone.push(slot);
            }
            let Some(place) = place else {
                record.body.rest();
                self.order.remove(slot);
                if let Some((old, old_needs)) = record.told.take() {
                    self.active -= 1;
                    go.push(record.id());
                    needs.old.extend(old_needs);
                    take(&mut self.of_tier, &old.tier, slot);
                }
                continue;
            };
            let id = record.id();
            let converter = Converter { namespace: &id.namespace, known, needs: Vec::new() };
            let (tier, selector) = (record.head.tier().to_owned(), record.selector);
            let problem = record.body.prepare(converter, |ingress, egress| Policy {
                tier,
                selector: here.selector(selector).map(ToString::to_string).unwrap_or_default(),
                ingress,
                egress,
            });
            if let Some(problem) = problem {
                self.problems.insert((*record.key).clone(), problem);
            }
            let Body::Ready(policy, new_needs) = &record.body else { continue };
            needs.new.extend(new_needs.iter().cloned());
            let old = record.told.replace((policy.clone(), new_needs.clone()));
            if let Some((old, _)) = &old
                && old.tier != policy.tier
            {
                take(&mut self.of_tier, &old.tier, slot);
            }
            if old.is_none() {
                self.active += 1;
            }
            self.of_tier.entry(policy.tier.clone()).or_default().insert(slot);
            if old.as_ref().is_none_or(|(old, _)| old != policy) {
                come.push((id, policy.clone()));
            }
            needs.old.extend(old.into_iter().flat_map(|(_, needs)| needs));
            self.order.insert(slot, place);
        }
        come.sort_by(|(a, _), (b, _)| a.cmp(b));
        // One that went and came back under another number is there.
        go.retain(|id| come.binary_search_by(|(other, _)| other.cmp(id)).is_err());
        go.sort();
        added.extend(come.into_iter().map(|(id, policy)| Update::Policy(id, Some(policy))));
        removed.extend(go.into_iter().map(|id| Update::Policy(id, None)));
        gone
    }

    pub fn forget(&mut self, slots: Vec<u32>) {
        for slot in slots {
            let Some(record) = self.slots.get_mut(slot as usize).and_then(Option::take) else { continue };
            if self.by_key.get(&record.key) == Some(&slot) {
                self.by_key.remove(&record.key);
            }
            self.free.push(slot);
        }
    }

    fn place(&self, record: &Record) -> Place {
        let tier = record.head.tier();
        Place::new(tier, self.tier(tier).map(|tier| tier.order), record.head.order, &record.id())
    }

    /// What applies to the endpoints of a class.
    pub fn layers(&self, here: &Matcher, class: ClassId) -> Layers {
        let mut slots: Vec<(u64, u32)> = Vec::new();
        for selector in here.matched(class).iter() {
            let policies = self.of_selector.get(selector as usize).into_iter().flat_map(Ids::iter);
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
