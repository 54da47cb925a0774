//! Whatever has labels and addresses: workload endpoints, host endpoints, network sets, of the whole cluster.

use super::ids::Ids;
use super::index::Index;
use super::list::{List, Numbers};
use super::pool::Pool;
use super::texts::{Room, Span};
use super::words::{ClassId, Word, Words};
use ipnet::IpNet;
use tortie_model::{Key, Kind};

pub(super) type ItemId = u32;

/// A port that rules can refer to by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NamedPort {
    pub name: Word,
    pub protocol: u8,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ItemKind {
    Workload,
    Host,
    NetworkSet,
    GlobalNetworkSet,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ItemName<'a> {
    pub kind: ItemKind,
    pub namespace: &'a str,
    pub name: &'a str,
}

#[derive(Debug)]
pub(super) struct Item {
    kind: ItemKind,
    pub namespace: Word,
    name: Span,
    pub class: ClassId,
    nets: Nets,
    ports: u32,
    /// Where a workload endpoint is.
    pub node: Word,
}

/// What an item is made of. Nets and ports are sorted and each is there once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub namespace: Word,
    pub class: ClassId,
    pub node: Word,
    pub nets: &'a [IpNet],
    pub ports: &'a [NamedPort],
}

/// Nearly all have one.
#[derive(Debug, PartialEq, Eq)]
enum Nets {
    One(IpNet),
    Many(Box<[IpNet]>),
}

#[derive(Debug, Default)]
pub(super) struct Items {
    slots: List<Option<Item>>,
    numbers: Numbers,
    by_name: Index,
    names: Room,
    by_net: Index,
    /// By class; empty for classes without items.
    of_class: List<Ids>,
    ports: Pool<Box<[NamedPort]>>,
}

impl Nets {
    fn as_slice(&self) -> &[IpNet] {
        match self {
            Nets::One(net) => std::slice::from_ref(net),
            Nets::Many(nets) => nets,
        }
    }
}

impl<'a> ItemName<'a> {
    pub fn of(key: &'a Key) -> ItemName<'a> {
        let Key::Resource { kind, namespace, name } = key else {
            return ItemName { kind: ItemKind::GlobalNetworkSet, namespace: "", name: "" };
        };
        let kind = match kind {
            Kind::WorkloadEndpoint => ItemKind::Workload,
            Kind::HostEndpoint => ItemKind::Host,
            Kind::NetworkSet => ItemKind::NetworkSet,
            _ => ItemKind::GlobalNetworkSet,
        };
        ItemName { kind, namespace, name }
    }
}

impl Items {
    pub fn find(&self, words: &Words, name: ItemName<'_>) -> Option<ItemId> {
        let namespace = words.find(name.namespace)?;
        let is_it = |id| {
            let Some(item) = self.get(id) else { return false };
            let same = item.kind == name.kind && item.namespace == namespace;
            same && self.names.get(item.name) == name.name.as_bytes()
        };
        self.by_name.find(self.hash(name.kind, namespace, name.name.as_bytes()), is_it)
    }

    fn hash(&self, kind: ItemKind, namespace: Word, name: &[u8]) -> u32 {
        self.by_name.hash(&(kind, namespace, name))
    }

    pub fn get(&self, id: ItemId) -> Option<&Item> {
        self.slots.get(id)?.as_ref()
    }

    pub fn nets(&self, id: ItemId) -> &[IpNet] {
        self.get(id).map_or(&[], |item| item.nets.as_slice())
    }

    pub fn ports(&self, id: ItemId) -> &[NamedPort] {
        self.get(id).and_then(|item| self.ports.get(item.ports)).map_or(&[], AsRef::as_ref)
    }

    pub fn of_class(&self, class: ClassId) -> &Ids {
        static NOTHING: Ids = Ids::None;
        self.of_class.get(class).unwrap_or(&NOTHING)
    }

    /// Everything that has exactly this net.
    pub fn having(&self, net: IpNet) -> impl Iterator<Item = (ItemId, &Item)> {
        let candidates = self.by_net.candidates(self.by_net.hash(&net));
        let found = candidates.filter_map(|id| Some((id, self.get(id)?)));
        found.filter(move |(_, item)| item.nets.as_slice().binary_search(&net).is_ok())
    }

    pub fn is(&self, id: ItemId, parts: &Parts<'_>) -> bool {
        self.get(id).is_some_and(|item| item.class == parts.class && item.node == parts.node)
            && self.nets(id) == parts.nets
            && self.ports(id) == parts.ports
    }

    pub fn insert(&mut self, kind: ItemKind, name: &str, parts: Parts<'_>) -> ItemId {
        let Parts { namespace, class, node, nets, ports } = parts;
        let name = name.as_bytes();
        let item = Item {
            kind,
            namespace,
            name: self.names.put(name),
            class,
            nets: match nets {
                [net] => Nets::One(*net),
                nets => Nets::Many(nets.into()),
            },
            ports: self.ports.hold(ports, || ports.into()),
            node,
        };
        let id = self.numbers.take();
        *self.slots.at(id) = Some(item);
        self.by_name.insert(self.hash(kind, namespace, name), id);
        for net in nets {
            self.by_net.insert(self.by_net.hash(net), id);
        }
        self.of_class.at(class).insert(id);
        id
    }

    /// The item and the ports that it held.
    pub fn remove(&mut self, id: ItemId) -> Option<(Item, Box<[NamedPort]>)> {
        let item = self.slots.get_mut(id)?.take()?;
        self.by_name.remove(self.hash(item.kind, item.namespace, self.names.get(item.name)), id);
        self.names.take_back(item.name);
        for net in item.nets.as_slice() {
            self.by_net.remove(self.by_net.hash(net), id);
        }
        self.of_class.at(item.class).remove(id);
        self.numbers.give_back(id);
        let ports = self.ports.get(item.ports).cloned().unwrap_or_default();
        self.ports.release(item.ports);
        Some((item, ports))
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Every workload endpoint of the cluster, with its name and its addresses.
    pub fn workloads(&self) -> impl Iterator<Item = (&str, &Item, &[IpNet])> {
        let workloads = self.slots.iter().flatten().filter(|item| item.kind == ItemKind::Workload);
        workloads.map(|item| {
            let name = std::str::from_utf8(self.names.get(item.name)).unwrap_or_default();
            (name, item, item.nets.as_slice())
        })
    }
}
