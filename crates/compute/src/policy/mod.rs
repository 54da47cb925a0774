//! Policy: which policies and profiles apply to the endpoints of this node, and whom their rules mean.
//!
//! ```text
//! endpoints, network sets --> words (labels, classes) --> everyone (matcher) --> sets --> members of sets in use
//! profiles ------------------^                       \--> here (matcher of local classes) --> locals: guards
//! policies, tiers --> draft --> roster (who is in force, in which order) --^
//! ```
//!
//! What comes in is filed at once; what follows from it is worked out in [`Policies::flush`], so that what comes and goes
//! in between costs nothing further.

mod archive;
mod convert;
mod draft;
mod ids;
mod index;
mod items;
mod kubernetes;
mod labels;
mod list;
mod locals;
mod matcher;
mod order;
mod pool;
mod profiles;
mod roster;
mod sets;
mod shelf;
mod subject;
mod texts;
mod words;

use crate::Totals;
use crate::workloads::Name;
use archive::Archive;
use convert::Converter;
use ipnet::IpNet;
use items::{Item, ItemId, ItemKind, ItemName, Items, NamedPort, Parts};
use locals::{Frame, Local, Locals};
pub use matcher::Evaluations;
use matcher::Matcher;
use profiles::{Needs, Profiles};
use roster::Roster;
use sets::{Sets, World};
use std::collections::BTreeMap;
use std::net::IpAddr;
use subject::Subject;
use tortie_model::kinds::{HostEndpoint, Profile, Tier, WorkloadEndpoint};
use tortie_model::{Key, Kind, Resource};
use tortie_plan::{Guard, Update, Workload, WorkloadId};
use words::{ClassId, Word, Words};

#[derive(Debug, Default)]
pub(crate) struct Policies {
    host: String,
    words: Words,
    /// The rules of policies and profiles.
    archive: Archive,
    items: Items,
    /// All classes, against the selectors of sets in use.
    everyone: Matcher,
    /// Classes with endpoints of this node, against the selectors of policies.
    here: Matcher,
    sets: Sets,
    roster: Roster,
    profiles: Profiles,
    locals: Locals,
    workloads: usize,
    host_endpoints: usize,
}

impl Policies {
    pub fn new(host: &str) -> Policies {
        Policies { host: host.to_owned(), ..Policies::default() }
    }

    /// A resource stands like this now. If it cannot take effect as it is, says why.
    pub fn put(&mut self, key: &Key, resource: &Resource) -> Option<String> {
        let checked = || resource.validate().err().map(|error| error.to_string());
        match resource {
            Resource::Profile(profile) => match checked() {
                None => {
                    self.put_profile(profile);
                    None
                }
                problem => {
                    self.remove(key);
                    problem
                }
            },
            Resource::Tier(tier) => {
                self.put_tier(tier);
                // Its name and default action say enough even if something else is wrong with it.
                checked()
            }
            Resource::NetworkSet(set) => self.put_checked(key, checked(), Subject::of_network_set(set)),
            Resource::GlobalNetworkSet(set) => {
                self.put_checked(key, checked(), Subject::of_global_network_set(set))
            }
            Resource::HostEndpoint(endpoint) => {
                let problem = checked();
                let good = problem.is_none();
                self.put_checked(key, problem.clone(), Subject::of_host_endpoint(endpoint));
                self.put_host(key, endpoint, good);
                problem
            }
            _ => {
                let reading = draft::read(&mut self.archive, resource)?;
                let concerned = match reading.draft {
                    Some(draft) => {
                        self.roster.put(&mut self.words, &mut self.here, &mut self.archive, key, draft)
                    }
                    None => self.roster.remove(&mut self.words, &mut self.here, key),
                };
                self.mark(concerned);
                reading.problem
            }
        }
    }

    pub fn remove(&mut self, key: &Key) {
        let Key::Resource { kind, name, .. } = key else { return };
        match kind {
            Kind::Profile => {
                self.profiles.remove(&mut self.words, &mut self.archive, name);
                self.give(name, &BTreeMap::new());
            }
            Kind::Tier => {
                let concerned = self.roster.remove_tier(&self.here, name);
                self.mark(concerned);
            }
            Kind::NetworkSet | Kind::GlobalNetworkSet | Kind::HostEndpoint | Kind::WorkloadEndpoint => {
                self.remove_item(ItemName::of(key));
            }
            _ => {
                let concerned = self.roster.remove(&mut self.words, &mut self.here, key);
                self.mark(concerned);
            }
        }
    }

    /// Any endpoint of the cluster, as others see it.
    pub fn put_endpoint(&mut self, key: &Key, endpoint: &WorkloadEndpoint) {
        self.put_item(ItemName::of(key), Subject::of_workload(endpoint));
    }

    /// How an endpoint of this node looks apart from what is computed. It has been told by `put_endpoint` before.
    pub fn put_workload(
        &mut self,
        key: &Key,
        id: &WorkloadId,
        workload: &Workload,
        endpoint: &WorkloadEndpoint,
    ) {
        let Some(item) = self.items.find(&self.words, ItemName::of(key)) else { return };
        let sources = endpoint.spec.allow_spoofed_source_prefixes.iter();
        let guard = Guard {
            interface: workload.interface.clone(),
            up: true,
            addresses: workload.addresses.clone(),
            allowed_sources: sources.filter_map(|net| convert::net(net)).collect(),
            tiers: Vec::new(),
            profiles: endpoint.spec.profiles.clone(),
        };
        self.put_local(item, Frame::Workload(id.clone(), guard), None);
    }

    /// An endpoint is not one of this node's, or is no good.
    pub fn remove_workload(&mut self, key: &Key) {
        if let Some(item) = self.items.find(&self.words, ItemName::of(key)) {
            self.remove_local(item);
        }
    }

    /// Whether an endpoint of this node has the interface it asks for.
    pub fn set_wired(&mut self, key: &Key, wired: bool) {
        let Some(item) = self.items.find(&self.words, ItemName::of(key)) else { return };
        if let Some(local) = self.locals.all.get_mut(&item) {
            local.wired = wired;
            self.settle(item);
        }
    }

    fn put_profile(&mut self, profile: &Profile) {
        let name = &profile.metadata.name;
        let Profile { spec, .. } = profile;
        self.profiles.put(&mut self.words, &mut self.archive, name, &spec.ingress, &spec.egress);
        self.give(name, &profile.spec.labels_to_apply);
    }

    fn put_tier(&mut self, tier: &Tier) {
        let concerned = self.roster.put_tier(&self.here, tier);
        self.mark(concerned);
    }

    fn put_checked(&mut self, key: &Key, problem: Option<String>, subject: Subject) -> Option<String> {
        match problem {
            None => self.put_item(ItemName::of(key), subject),
            Some(_) => self.remove_item(ItemName::of(key)),
        }
        problem
    }

    fn put_host(&mut self, key: &Key, endpoint: &HostEndpoint, good: bool) {
        let Some(item) = self.items.find(&self.words, ItemName::of(key)) else { return };
        if !good || endpoint.spec.node != self.host {
            self.remove_local(item);
            return;
        }
        let frame = tortie_plan::HostEndpoint {
            interface: endpoint.spec.interface_name.clone(),
            expected: endpoint.spec.expected_ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            profiles: endpoint.spec.profiles.clone(),
            ..tortie_plan::HostEndpoint::default()
        };
        self.put_local(item, Frame::Host(endpoint.metadata.name.clone(), frame), Some(true));
    }

    fn put_item(&mut self, name: ItemName<'_>, subject: Subject) {
        let known = self.items.find(&self.words, name);
        let namespace = self.words.hold(name.namespace);
        let class = subject.class(&mut self.words);
        let ports: Vec<NamedPort> = subject.ports(&mut self.words);
        let node = subject.node(&mut self.words);
        let parts = Parts { namespace, class, node, nets: subject.nets(), ports: &ports };
        if known.is_some_and(|known| self.items.is(known, &parts)) {
            self.words.release_class(class);
            self.release_words([namespace, node], &ports);
            return;
        }
        if self.words.holders(class) == 1 {
            self.everyone.enter(&self.words, class);
        }
        if let Some(known) = known {
            self.touch_item(known);
        }
        let world = World { items: &self.items, matcher: &self.everyone };
        self.sets.touch(&world, class, parts.nets, &ports);
        // The item keeps its number if it had one: the number is taken again at once.
        let local = known.and_then(|known| self.locals.all.remove(&known));
        let old = known.and_then(|known| self.items.remove(known));
        let item = self.items.insert(name.kind, name.name, parts);
        if known.is_none() {
            self.workloads += usize::from(name.kind == ItemKind::Workload);
            self.host_endpoints += usize::from(name.kind == ItemKind::Host);
        }
        if let Some(local) = local {
            self.locals.all.insert(item, local);
            self.settle(item);
        }
        if let Some((old, ports)) = old {
            self.forget_item(&old, &ports);
        }
    }

    fn remove_item(&mut self, name: ItemName<'_>) {
        let Some(item) = self.items.find(&self.words, name) else { return };
        self.remove_local(item);
        self.touch_item(item);
        self.workloads -= usize::from(name.kind == ItemKind::Workload);
        self.host_endpoints -= usize::from(name.kind == ItemKind::Host);
        if let Some((old, ports)) = self.items.remove(item) {
            self.forget_item(&old, &ports);
        }
    }

    fn forget_item(&mut self, old: &Item, ports: &[NamedPort]) {
        self.drop_class(old.class);
        self.release_words([old.namespace, old.node], ports);
    }

    fn touch_item(&mut self, item: ItemId) {
        let Some(class) = self.items.get(item).map(|item| item.class) else { return };
        let world = World { items: &self.items, matcher: &self.everyone };
        self.sets.touch(&world, class, self.items.nets(item), self.items.ports(item));
    }

    fn drop_class(&mut self, class: ClassId) {
        if self.words.holders(class) == 1 {
            self.everyone.leave(&self.words, class);
        }
        self.words.release_class(class);
    }

    fn release_words(&mut self, names: [Word; 2], ports: &[NamedPort]) {
        names.into_iter().for_each(|word| self.words.release(word));
        ports.iter().for_each(|port| self.words.release(port.name));
    }

    /// A profile gives these labels.
    fn give(&mut self, profile: &str, labels: &BTreeMap<String, String>) {
        let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let Some(gift) = self.words.set_given(profile, labels) else { return };
        let profile = gift.profile;
        self.everyone.regive(&self.words, &gift);
        self.here.regive(&self.words, &gift);
        for class in self.everyone.heirs(profile) {
            let difference = self.everyone.compare(&self.words, class);
            let world = World { items: &self.items, matcher: &self.everyone };
            for selector in difference.gone.iter().chain(&difference.come) {
                for item in self.items.of_class(class).iter() {
                    let (nets, ports) = (self.items.nets(item), self.items.ports(item));
                    self.sets.touch_selector(&world, *selector, nets, ports);
                }
            }
            self.everyone.settle(class, &difference);
        }
        for class in self.here.heirs(profile) {
            let difference = self.here.compare(&self.words, class);
            self.here.settle(class, &difference);
            for selector in difference.gone.into_iter().chain(difference.come) {
                self.roster.selector_changed(selector);
                self.locals.mark_class(class);
            }
        }
        self.words.forget(gift);
    }

    fn put_local(&mut self, item: ItemId, frame: Frame, wired: Option<bool>) {
        self.locals.mark(item);
        let id = frame.id();
        let old = match self.locals.all.get_mut(&item) {
            Some(local) => {
                local.wired = wired.unwrap_or(local.wired);
                Some(std::mem::replace(&mut local.frame, frame))
            }
            None => {
                let local =
                    Local { frame, wired: wired.unwrap_or_default(), class: None, profiles: Vec::new() };
                self.locals.all.insert(item, local);
                None
            }
        };
        if let Some(old) = old {
            self.forget_name(item, &old);
        }
        self.locals.by_id.insert(id, item);
        self.locals.mark(item);
        self.settle(item);
    }

    fn remove_local(&mut self, item: ItemId) {
        if let Some(local) = self.locals.all.get_mut(&item) {
            local.wired = false;
            self.settle(item);
        }
        if let Some(local) = self.locals.all.remove(&item) {
            self.forget_name(item, &local.frame);
        }
    }

    fn forget_name(&mut self, item: ItemId, frame: &Frame) {
        let id = frame.id();
        if self.locals.by_id.get(&id) == Some(&item) {
            self.locals.by_id.remove(&id);
        }
    }

    /// Counts a local endpoint for the class it is of now, and for its profiles.
    fn settle(&mut self, item: ItemId) {
        let class = self.items.get(item).map(|item| item.class);
        let Some(local) = self.locals.all.get_mut(&item) else { return };
        let class = class.filter(|_| local.wired);
        let profiles = if class.is_some() { local.frame.profiles().to_vec() } else { Vec::new() };
        profiles.iter().for_each(|name| self.profiles.hold(name));
        let held = std::mem::replace(&mut local.profiles, profiles);
        held.iter().for_each(|name| self.profiles.release(name));
        let old = std::mem::replace(&mut local.class, class);
        if old == class {
            return;
        }
        self.locals.mark(item);
        if let Some(class) = class {
            let items = self.locals.of_class.entry(class).or_default();
            let first = items.is_empty();
            items.insert(item);
            if first {
                self.here.enter(&self.words, class);
                self.class_changed(class);
            }
        }
        if let Some(class) = old {
            let items = self.locals.of_class.entry(class).or_default();
            items.remove(item);
            if items.is_empty() {
                self.locals.of_class.remove(&class);
                self.class_changed(class);
                self.here.leave(&self.words, class);
            }
        }
    }

    /// Policies may come into force or go out of it with a class.
    fn class_changed(&mut self, class: ClassId) {
        for selector in self.here.matched(class).iter() {
            self.roster.selector_changed(selector);
        }
    }

    fn mark(&mut self, classes: Vec<ClassId>) {
        classes.into_iter().for_each(|class| self.locals.mark_class(class));
    }

    /// What changed in the plan: what others refer to comes first in `added` and last in `removed`.
    pub fn flush(&mut self, added: &mut Vec<Update>, removed: &mut Vec<Update>) {
        let (mut policies, mut gone_policies) = (Vec::new(), Vec::new());
        let (mut profiles, mut gone_profiles) = (Vec::new(), Vec::new());
        let mut gone_sets = Vec::new();
        let mut needs = Needs::default();
        let (sets, everyone) = (&self.sets, &self.everyone);
        let known = |selector: &_| sets.known(everyone, selector);
        let converter = Converter { archive: &self.archive, known: &known };
        let (words, here) = (&self.words, &self.here);
        let forgotten =
            self.roster.flush(words, here, converter, &mut policies, &mut gone_policies, &mut needs);
        self.profiles.flush(words, converter, &mut profiles, &mut gone_profiles, &mut needs);
        self.sets.hold_all(&mut self.words, &mut self.everyone, &needs.new);
        for need in &needs.old {
            self.sets.release(&need.id);
        }
        self.sets.flush(&mut self.words, &self.items, &mut self.everyone, added, &mut gone_sets);
        added.append(&mut policies);
        added.append(&mut profiles);
        let (roster, here, words) = (&self.roster, &self.here, &self.words);
        let (matched, layers) = (|class| here.matched(class), |class| roster.layers(here, class));
        self.locals.flush(matched, layers, |slot| roster.id(words, slot), added, removed);
        self.roster.forget(&mut self.words, &mut self.archive, forgotten);
        removed.append(&mut gone_profiles);
        removed.append(&mut gone_policies);
        removed.append(&mut gone_sets);
    }

    /// Endpoints of other nodes: name, node, addresses.
    pub fn remote_workloads(&self) -> impl Iterator<Item = (Name, &str, Vec<IpAddr>)> {
        self.items.workloads().filter_map(|(name, item, nets)| {
            let (namespace, node) = (self.words.text(item.namespace), self.words.text(item.node));
            let addresses = nets.iter().map(IpNet::addr).collect();
            (node != self.host).then(|| ((namespace.to_owned(), name.to_owned()), node, addresses))
        })
    }

    pub fn has_profile(&self, name: &str) -> bool {
        self.profiles.has(&self.words, name)
    }

    pub fn count(&self, totals: &mut Totals) {
        (totals.policies, totals.active_policies) = self.roster.totals();
        totals.tiers = self.roster.tiers();
        totals.profiles = self.profiles.len();
        totals.sets = self.sets.len();
        totals.workload_endpoints = self.workloads;
        totals.host_endpoints = self.host_endpoints;
        totals.labelled = self.items.len();
        totals.selectors = self.everyone.len() + self.here.len();
        totals.indexed_selectors = self.everyone.filed() + self.here.filed();
        totals.evaluations = self.everyone.evaluations;
    }

    pub fn problems(&self) -> impl Iterator<Item = (&Key, &String)> {
        self.roster.problems.iter()
    }
}
