//! Objects with labels and addresses: workload endpoints, host endpoints and network sets of the whole cluster.

use super::arena::{ArenaSpan, TextArena};
use super::chunked::{ChunkedVec, IdAllocator};
use super::hash_index::HashIndex;
use super::id_set::IdSet;
use super::ids::{ClassId, LabelledId, PortListId, Symbol};
use super::pool::ValuePool;
use super::symbols::SymbolTable;
use ipnet::IpNet;
use tortie_model::{Kind, StoreKey};

/// A port that rules can reference by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NamedPort {
    pub name: Symbol,
    pub protocol: u8,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LabelledKind {
    Workload,
    Host,
    NetworkSet,
    GlobalNetworkSet,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LabelledName<'a> {
    pub kind: LabelledKind,
    pub namespace: &'a str,
    pub name: &'a str,
}

#[derive(Debug)]
pub(super) struct LabelledItem {
    kind: LabelledKind,
    pub namespace: Symbol,
    name: ArenaSpan,
    pub class: ClassId,
    nets: ItemNets,
    ports: PortListId,
    /// The node of a workload endpoint.
    pub node: Symbol,
    /// The prefix from which the name of a workload's pod was generated; empty for other names.
    pub name_prefix: Symbol,
}

/// The parts of an item. Nets and ports are sorted and unique.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelledParts<'a> {
    pub namespace: Symbol,
    pub class: ClassId,
    pub node: Symbol,
    pub name_prefix: Symbol,
    pub nets: &'a [IpNet],
    pub ports: &'a [NamedPort],
}

/// The nets of an item; nearly all items have one.
#[derive(Debug, PartialEq, Eq)]
enum ItemNets {
    One(IpNet),
    Many(Box<[IpNet]>),
}

#[derive(Debug, Default)]
pub(super) struct LabelledTable {
    slots: ChunkedVec<LabelledId, Option<LabelledItem>>,
    ids: IdAllocator<LabelledId>,
    by_name: HashIndex<LabelledId>,
    names: TextArena,
    by_net: HashIndex<LabelledId>,
    /// Items by class; empty for classes without items.
    of_class: ChunkedVec<ClassId, IdSet<LabelledId>>,
    ports: ValuePool<PortListId, Box<[NamedPort]>>,
}

impl ItemNets {
    fn as_slice(&self) -> &[IpNet] {
        match self {
            ItemNets::One(net) => std::slice::from_ref(net),
            ItemNets::Many(nets) => nets,
        }
    }
}

impl LabelledItem {
    pub fn kind(&self) -> LabelledKind {
        self.kind
    }

    pub fn is_workload(&self) -> bool {
        self.kind == LabelledKind::Workload
    }

    pub fn is_endpoint(&self) -> bool {
        matches!(self.kind, LabelledKind::Workload | LabelledKind::Host)
    }
}

impl<'a> LabelledName<'a> {
    pub fn new(key: &'a StoreKey) -> LabelledName<'a> {
        let StoreKey::Resource { kind, namespace, name } = key else {
            return LabelledName { kind: LabelledKind::GlobalNetworkSet, namespace: "", name: "" };
        };
        let kind = match kind {
            Kind::WorkloadEndpoint => LabelledKind::Workload,
            Kind::HostEndpoint => LabelledKind::Host,
            Kind::NetworkSet => LabelledKind::NetworkSet,
            _ => LabelledKind::GlobalNetworkSet,
        };
        LabelledName { kind, namespace, name }
    }
}

impl LabelledTable {
    pub fn find(&self, symbols: &SymbolTable, name: LabelledName<'_>) -> Option<LabelledId> {
        let namespace = symbols.find(name.namespace)?;
        self.by_name.find(self.hash(name.kind, namespace, name.name.as_bytes()), |id| {
            let Some(item) = self.get(id) else { return false };
            let same = item.kind == name.kind && item.namespace == namespace;
            same && self.names.get(item.name) == name.name.as_bytes()
        })
    }

    fn hash(&self, kind: LabelledKind, namespace: Symbol, name: &[u8]) -> u32 {
        self.by_name.hash(&(kind, namespace, name))
    }

    pub fn name_of(&self, item: &LabelledItem) -> &str {
        std::str::from_utf8(self.names.get(item.name)).unwrap_or_default()
    }

    pub fn get(&self, id: LabelledId) -> Option<&LabelledItem> {
        self.slots.get(id)?.as_ref()
    }

    pub fn nets(&self, id: LabelledId) -> &[IpNet] {
        self.get(id).map_or(&[], |item| item.nets.as_slice())
    }

    pub fn ports(&self, id: LabelledId) -> &[NamedPort] {
        self.get(id).and_then(|item| self.ports.get(item.ports)).map_or(&[], AsRef::as_ref)
    }

    pub fn of_class(&self, class: ClassId) -> &IdSet<LabelledId> {
        static NO_ITEMS: IdSet<LabelledId> = IdSet::None;
        self.of_class.get(class).unwrap_or(&NO_ITEMS)
    }

    /// Returns all items that have exactly this net.
    pub fn having(&self, net: IpNet) -> impl Iterator<Item = (LabelledId, &LabelledItem)> {
        let candidates = self.by_net.candidates(self.by_net.hash(&net));
        let found = candidates.filter_map(|id| Some((id, self.get(id)?)));
        found.filter(move |(_, item)| item.nets.as_slice().binary_search(&net).is_ok())
    }

    pub fn is(&self, id: LabelledId, parts: &LabelledParts<'_>) -> bool {
        self.get(id).is_some_and(|item| {
            item.class == parts.class && item.node == parts.node && item.name_prefix == parts.name_prefix
        }) && self.nets(id) == parts.nets
            && self.ports(id) == parts.ports
    }

    pub fn insert(&mut self, kind: LabelledKind, name: &str, parts: LabelledParts<'_>) -> LabelledId {
        let LabelledParts { namespace, class, node, name_prefix, nets, ports } = parts;
        let name = name.as_bytes();
        let item = LabelledItem {
            kind,
            namespace,
            name: self.names.put(name),
            class,
            nets: match nets {
                [net] => ItemNets::One(*net),
                nets => ItemNets::Many(nets.into()),
            },
            ports: self.ports.hold(ports, || ports.into()),
            node,
            name_prefix,
        };
        let id = self.ids.take();
        *self.slots.at(id) = Some(item);
        self.by_name.insert(self.hash(kind, namespace, name), id);
        for net in nets {
            self.by_net.insert(self.by_net.hash(net), id);
        }
        self.of_class.at(class).insert(id);
        id
    }

    /// Removes an item. Returns it with its ports.
    pub fn remove(&mut self, id: LabelledId) -> Option<(LabelledItem, Box<[NamedPort]>)> {
        let item = self.slots.get_mut(id)?.take()?;
        self.by_name.remove(self.hash(item.kind, item.namespace, self.names.get(item.name)), id);
        self.names.take_back(item.name);
        for net in item.nets.as_slice() {
            self.by_net.remove(self.by_net.hash(net), id);
        }
        self.of_class.at(item.class).remove(id);
        self.ids.give_back(id);
        let ports = self.ports.get(item.ports).cloned().unwrap_or_default();
        self.ports.release(item.ports);
        Some((item, ports))
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns every workload endpoint of the cluster with its name and its addresses.
    pub fn workloads(&self) -> impl Iterator<Item = (&str, &LabelledItem, &[IpNet])> {
        let workloads = self
            .slots
            .iter()
            .filter_map(|(_, item)| item.as_ref())
            .filter(|item| item.kind == LabelledKind::Workload);
        workloads.map(|item| (self.name_of(item), item, item.nets.as_slice()))
    }
}
