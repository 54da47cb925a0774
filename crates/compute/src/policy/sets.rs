//! The address sets that the rules in force reference, and the changes of their members.
//!
//! Members are not stored here: a set contains the addresses of the items in the classes that its selector matches.
//! Between two flushes, the sets record which members may have changed, and whether they were present before.

use super::chunked::{ChunkedVec, IdAllocator};
use super::ids::{ClassId, LabelledId, SelectorId, SetSlot, Symbol};
use super::labelled::{LabelledItem, LabelledTable, NamedPort};
use super::matcher::SelectorMatcher;
use super::node_addresses::{NodeAddresses, node_member, selects_node};
use super::service_endpoints::{ServiceEndpoints, ServiceReference};
use super::symbols::SymbolTable;
use crate::changes::PlanChanges;
use crate::nodes::NodeFacts;
use hashbrown::HashMap;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;
use tortie_model::selector::Selector;
use tortie_plan::{PlanUpdate, SetId, SetKind, SetMember};

/// A set that a rule needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NeededSet {
    pub id: SetId,
    pub contents: NeededSetContents,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NeededSetContents {
    /// The nets of all matching items.
    Nets(Selector),
    /// The addresses of all matching nodes.
    Nodes(Selector),
    /// The ports of this name of all matching items; of any protocol if `protocol` is `None`.
    Ports { selector: Selector, protocol: Option<u8>, name: String },
    /// The endpoints of a service, with their ports or without.
    Service { service: ServiceReference, kind: SetKind },
}

impl NeededSetContents {
    fn selector(&self) -> Option<&Selector> {
        match self {
            NeededSetContents::Nets(selector) | NeededSetContents::Ports { selector, .. } => Some(selector),
            NeededSetContents::Nodes(_) | NeededSetContents::Service { .. } => None,
        }
    }
}

#[derive(Debug)]
struct UsedSet {
    need: Arc<NeededSet>,
    uses: u32,
    /// Whether it is in the plan.
    in_plan: bool,
    source: SetSource,
    /// Members that may have changed, and whether they were present before.
    touched: HashMap<SetMember, bool>,
}

#[derive(Debug)]
enum SetSource {
    Nets(SelectorId),
    Nodes(Selector),
    Ports { selector: SelectorId, protocol: Option<u8>, name: Symbol },
    Service { service: ServiceReference, kind: SetKind },
}

#[derive(Debug, Default)]
pub(super) struct SetTable {
    slots: ChunkedVec<SetSlot, Option<UsedSet>>,
    ids: IdAllocator<SetSlot>,
    by_id: HashMap<SetId, SetSlot>,
    of_selector: HashMap<SelectorId, Vec<SetSlot>>,
    of_service: HashMap<ServiceReference, Vec<SetSlot>>,
    of_nodes: BTreeSet<SetSlot>,
    touched: BTreeSet<SetSlot>,
    /// Sets that are new or may no longer be needed.
    changed: BTreeSet<SetSlot>,
}

/// Read access to all items with labels and addresses, the selectors that match them, and the service endpoints.
pub(super) struct MatchView<'a> {
    pub labelled: &'a LabelledTable,
    pub matcher: &'a SelectorMatcher,
    pub services: &'a ServiceEndpoints,
    pub nodes: &'a NodeAddresses,
}

impl<'a> MatchView<'a> {
    pub fn new(
        labelled: &'a LabelledTable,
        matcher: &'a SelectorMatcher,
        services: &'a ServiceEndpoints,
        nodes: &'a NodeAddresses,
    ) -> MatchView<'a> {
        MatchView { labelled, matcher, services, nodes }
    }
}

impl SetSource {
    fn selector(&self) -> Option<SelectorId> {
        match self {
            SetSource::Nets(selector) | SetSource::Ports { selector, .. } => Some(*selector),
            SetSource::Nodes(_) | SetSource::Service { .. } => None,
        }
    }

    fn kind(&self) -> SetKind {
        match self {
            SetSource::Nets(_) | SetSource::Nodes(_) => SetKind::Nets,
            SetSource::Ports { .. } => SetKind::Ports,
            SetSource::Service { kind, .. } => *kind,
        }
    }

    /// Visits the members that an item with these nets and ports adds to the set.
    fn members(&self, nets: &[IpNet], ports: &[NamedPort], mut visit: impl FnMut(SetMember)) {
        match self {
            SetSource::Nets(_) => nets.iter().for_each(|net| visit(SetMember::Net(*net))),
            SetSource::Ports { protocol, name, .. } => {
                let wanted =
                    |port: &&NamedPort| port.name == *name && protocol.is_none_or(|p| p == port.protocol);
                for port in ports.iter().filter(wanted) {
                    for net in nets {
                        visit(SetMember::Port {
                            address: net.addr(),
                            protocol: port.protocol,
                            port: port.port,
                        });
                    }
                }
            }
            SetSource::Nodes(_) | SetSource::Service { .. } => {}
        }
    }

    /// Whether an item adds a member to the set.
    fn contributes(
        &self,
        view: &MatchView<'_>,
        id: LabelledId,
        item: &LabelledItem,
        member: SetMember,
    ) -> bool {
        let Some(selector) = self.selector() else { return false };
        if !view.matcher.matched(item.class).contains(selector) {
            return false;
        }
        let mut found = matches!(self, SetSource::Nets(_));
        if !found {
            let net = [net_of(member)];
            self.members(&net, view.labelled.ports(id), |other| found |= other == member);
        }
        found
    }

    fn contains(&self, view: &MatchView<'_>, member: SetMember) -> bool {
        if let SetSource::Service { service, .. } = self {
            return view.services.contains(service, member);
        }
        if let SetSource::Nodes(selector) = self {
            return view.nodes.contains(selector, member);
        }
        view.labelled.having(net_of(member)).any(|(id, item)| self.contributes(view, id, item, member))
    }
}

fn net_of(member: SetMember) -> IpNet {
    match member {
        SetMember::Net(net) => net,
        SetMember::Port { address, .. } => IpNet::from(address),
    }
}

impl SetTable {
    /// Returns the number of sets in use.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the set of a selector if a rule in force already needs it, because computing its ID is expensive.
    pub fn find_by_selector(&self, matcher: &SelectorMatcher, selector: &Selector) -> Option<Arc<NeededSet>> {
        let slots = self.of_selector.get(&matcher.find(selector)?)?;
        let mut sets = slots.iter().filter_map(|slot| self.slots.get(*slot)?.as_ref());
        sets.find(|set| matches!(set.source, SetSource::Nets(_))).map(|set| set.need.clone())
    }

    pub fn hold_all(
        &mut self,
        symbols: &mut SymbolTable,
        matcher: &mut SelectorMatcher,
        needs: &[Arc<NeededSet>],
    ) {
        let unknown = needs.iter().filter(|need| !self.by_id.contains_key(&need.id));
        let selectors: HashMap<&SetId, &Selector> =
            unknown.filter_map(|need| Some((&need.id, need.contents.selector()?))).collect();
        matcher.prepare(symbols, selectors.into_values());
        needs.iter().for_each(|need| self.hold(symbols, matcher, need));
    }

    fn hold(&mut self, symbols: &mut SymbolTable, matcher: &mut SelectorMatcher, need: &Arc<NeededSet>) {
        if let Some(slot) = self.by_id.get(&need.id) {
            if let Some(Some(set)) = self.slots.get_mut(*slot) {
                set.uses += 1;
            }
            return;
        }
        let source = match &need.contents {
            NeededSetContents::Nets(selector) => SetSource::Nets(matcher.hold(symbols, selector)),
            NeededSetContents::Nodes(selector) => SetSource::Nodes(selector.clone()),
            NeededSetContents::Ports { selector, protocol, name } => SetSource::Ports {
                selector: matcher.hold(symbols, selector),
                protocol: *protocol,
                name: symbols.hold(name),
            },
            NeededSetContents::Service { service, kind } => {
                SetSource::Service { service: service.clone(), kind: *kind }
            }
        };
        let slot = self.ids.take();
        if let Some(selector) = source.selector() {
            self.of_selector.entry(selector).or_default().push(slot);
        }
        if let SetSource::Nodes(_) = &source {
            self.of_nodes.insert(slot);
        }
        if let SetSource::Service { service, .. } = &source {
            self.of_service.entry(service.clone()).or_default().push(slot);
        }
        let set = UsedSet { need: need.clone(), uses: 1, in_plan: false, source, touched: HashMap::new() };
        *self.slots.at(slot) = Some(set);
        self.by_id.insert(need.id.clone(), slot);
        self.changed.insert(slot);
    }

    pub fn release(&mut self, id: &SetId) {
        if let Some(slot) = self.by_id.get(id)
            && let Some(Some(set)) = self.slots.get_mut(*slot)
        {
            set.uses -= 1;
            self.changed.insert(*slot);
        }
    }

    /// Records members before an item of a class with these nets and ports is added or removed.
    pub fn touch(&mut self, view: &MatchView<'_>, class: ClassId, nets: &[IpNet], ports: &[NamedPort]) {
        if self.of_selector.is_empty() {
            return;
        }
        for selector in view.matcher.matched(class).iter() {
            self.touch_selector(view, selector, nets, ports);
        }
    }

    /// Records members before a selector starts or stops matching an item with these nets and ports.
    pub fn touch_selector(
        &mut self,
        view: &MatchView<'_>,
        selector: SelectorId,
        nets: &[IpNet],
        ports: &[NamedPort],
    ) {
        for slot in self.of_selector.get(&selector).into_iter().flatten() {
            let Some(Some(UsedSet { in_plan: true, source, touched, .. })) = self.slots.get_mut(*slot) else {
                continue;
            };
            source.members(nets, ports, |member| {
                touched.entry(member).or_insert_with(|| source.contains(view, member));
            });
            self.touched.insert(*slot);
        }
    }

    /// Records members before a slice of a service is added, changed or removed. Called with the old and with the new
    /// members.
    pub fn touch_service(
        &mut self,
        view: &MatchView<'_>,
        service: &ServiceReference,
        members: impl Fn(SetKind, &mut dyn FnMut(SetMember)),
    ) {
        for slot in self.of_service.get(service).into_iter().flatten() {
            let Some(Some(UsedSet { in_plan: true, source, touched, .. })) = self.slots.get_mut(*slot) else {
                continue;
            };
            members(source.kind(), &mut |member| {
                touched.entry(member).or_insert_with(|| source.contains(view, member));
            });
            self.touched.insert(*slot);
        }
    }

    /// Records members before a node is added, changed or removed. Called with the old and with the new node.
    pub fn touch_node(&mut self, view: &MatchView<'_>, node: &NodeFacts) {
        for slot in &self.of_nodes {
            let Some(Some(UsedSet { in_plan: true, source, touched, .. })) = self.slots.get_mut(*slot) else {
                continue;
            };
            let SetSource::Nodes(selector) = &*source else { continue };
            if !selects_node(selector, node) {
                continue;
            }
            for address in &node.peer_addresses {
                let member = node_member(*address);
                touched.entry(member).or_insert_with(|| source.contains(view, member));
            }
            self.touched.insert(*slot);
        }
    }

    /// Returns the changes: new sets with their members, changed members, and removed sets.
    pub fn flush(
        &mut self,
        symbols: &mut SymbolTable,
        labelled: &LabelledTable,
        services: &ServiceEndpoints,
        nodes: &NodeAddresses,
        matcher: &mut SelectorMatcher,
    ) -> PlanChanges {
        let mut changes = PlanChanges::default();
        let mut new_sets: Vec<(SetId, SetSlot)> = Vec::new();
        let mut removed_sets: Vec<SetId> = Vec::new();
        for slot in std::mem::take(&mut self.changed) {
            let Some(Some(set)) = self.slots.get_mut(slot) else { continue };
            if set.uses > 0 {
                if !set.in_plan {
                    set.in_plan = true;
                    new_sets.push((set.need.id.clone(), slot));
                }
                continue;
            }
            if set.in_plan {
                removed_sets.push(set.need.id.clone());
            }
            self.drop_set(symbols, matcher, slot);
        }
        new_sets.sort();
        removed_sets.sort();
        let view = MatchView { labelled, matcher, services, nodes };
        let mut members = Vec::new();
        for (id, slot) in new_sets {
            let Some(Some(set)) = self.slots.get(slot) else { continue };
            changes.added.push(PlanUpdate::Set(id.clone(), Some(set.source.kind())));
            let all = all_members(&view, &set.source);
            if !all.is_empty() {
                members.push((id, all, Vec::new()));
            }
        }
        for slot in std::mem::take(&mut self.touched) {
            let Some(Some(set)) = self.slots.get_mut(slot) else { continue };
            let mut added = Vec::new();
            let mut removed = Vec::new();
            for (member, before) in std::mem::take(&mut set.touched) {
                match (before, set.source.contains(&view, member)) {
                    (false, true) => added.push(member),
                    (true, false) => removed.push(member),
                    _ => {}
                }
            }
            if !added.is_empty() || !removed.is_empty() {
                added.sort_unstable();
                removed.sort_unstable();
                members.push((set.need.id.clone(), added, removed));
            }
        }
        members.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        changes.added.extend(members.into_iter().map(|(set, added, removed)| PlanUpdate::Members {
            set,
            added,
            removed,
        }));
        changes.removed.extend(removed_sets.into_iter().map(|id| PlanUpdate::Set(id, None)));
        changes
    }

    fn drop_set(&mut self, symbols: &mut SymbolTable, matcher: &mut SelectorMatcher, slot: SetSlot) {
        let Some(set) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        self.by_id.remove(&set.need.id);
        self.ids.give_back(slot);
        self.touched.remove(&slot);
        if let Some(selector) = set.source.selector() {
            remove_slot(&mut self.of_selector, &selector, slot);
            matcher.release(symbols, selector);
        }
        match set.source {
            SetSource::Ports { name, .. } => symbols.release(name),
            SetSource::Service { service, .. } => remove_slot(&mut self.of_service, &service, slot),
            SetSource::Nodes(_) => drop(self.of_nodes.remove(&slot)),
            SetSource::Nets(_) => {}
        }
    }
}

fn remove_slot<K: Eq + Hash>(slots_of: &mut HashMap<K, Vec<SetSlot>>, key: &K, slot: SetSlot) {
    if let Some(slots) = slots_of.get_mut(key) {
        slots.retain(|other| *other != slot);
        if slots.is_empty() {
            slots_of.remove(key);
        }
    }
}

fn all_members(view: &MatchView<'_>, source: &SetSource) -> Vec<SetMember> {
    let mut all: Vec<SetMember> = Vec::new();
    if let SetSource::Service { service, kind } = source {
        view.services.members(service, *kind, |member| all.push(member));
    }
    if let SetSource::Nodes(selector) = source {
        view.nodes.members(selector, |member| all.push(member));
    }
    for class in source.selector().into_iter().flat_map(|selector| view.matcher.matching(selector)) {
        for item in view.labelled.of_class(class).iter() {
            source.members(view.labelled.nets(item), view.labelled.ports(item), |member| all.push(member));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}
