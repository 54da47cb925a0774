//! Whatever has labels and addresses: workload endpoints, host endpoints, network sets, of the whole cluster.

use super::ids::Ids;
use super::pool::Pool;
use super::words::{ClassId, Word};
use hashbrown::{DefaultHashBuilder, HashTable};
use ipnet::IpNet;
use std::hash::BuildHasher;

pub(super) type ItemId = u32;

/// A port that rules can refer to by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NamedPort {
    pub name: Word,
    pub protocol: u8,
    pub port: u16,
}

#[derive(Debug)]
pub(super) struct Item {
    name: Box<str>,
    pub class: ClassId,
    nets: Nets,
    ports: u32,
    /// Where a workload endpoint is.
    pub node: Word,
}

/// What an item is made of. Nets and ports are sorted and each is there once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
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

/// A net of an item.
#[derive(Clone, Copy, Debug)]
struct Place {
    item: ItemId,
    nth: u32,
}

#[derive(Debug, Default)]
pub(super) struct Items {
    slots: Vec<Option<Item>>,
    free: Vec<ItemId>,
    by_name: HashTable<ItemId>,
    by_net: HashTable<Place>,
    /// By class; empty for classes without items.
    of_class: Vec<Ids>,
    ports: Pool<Box<[NamedPort]>>,
    hasher: DefaultHashBuilder,
}

impl Nets {
    fn as_slice(&self) -> &[IpNet] {
        match self {
            Nets::One(net) => std::slice::from_ref(net),
            Nets::Many(nets) => nets,
        }
    }
}

impl Items {
    pub fn find(&self, name: &str) -> Option<ItemId> {
        let same = |id: &ItemId| self.get(*id).is_some_and(|item| *item.name == *name);
        self.by_name.find(self.hasher.hash_one(name), same).copied()
    }

    pub fn get(&self, id: ItemId) -> Option<&Item> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub fn nets(&self, id: ItemId) -> &[IpNet] {
        self.get(id).map_or(&[], |item| item.nets.as_slice())
    }

    pub fn ports(&self, id: ItemId) -> &[NamedPort] {
        self.get(id).and_then(|item| self.ports.get(item.ports)).map_or(&[], AsRef::as_ref)
    }

    pub fn of_class(&self, class: ClassId) -> &Ids {
        static NOTHING: Ids = Ids::None;
        self.of_class.get(class as usize).unwrap_or(&NOTHING)
    }

    /// Everything that has exactly this net.
    pub fn having(&self, net: IpNet) -> impl Iterator<Item = (ItemId, &Item)> {
        let hash = self.hasher.hash_one(net);
        self.by_net.iter_hash(hash).filter_map(move |place| {
            let item = self.get(place.item)?;
            (item.nets.as_slice().get(place.nth as usize) == Some(&net)).then_some((place.item, item))
        })
    }

    pub fn is(&self, id: ItemId, parts: &Parts<'_>) -> bool {
        self.get(id).is_some_and(|item| item.class == parts.class && item.node == parts.node)
            && self.nets(id) == parts.nets
            && self.ports(id) == parts.ports
    }

    pub fn insert(&mut self, name: &str, parts: Parts<'_>) -> ItemId {
        let Parts { class, node, nets, ports } = parts;
        let item = Item {
            name: name.into(),
            class,
            nets: match nets {
                [net] => Nets::One(*net),
                nets => Nets::Many(nets.into()),
            },
            ports: self.ports.hold(ports, || ports.into()),
            node,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = Some(item);
                id
            }
            None => {
                self.slots.push(Some(item));
                (self.slots.len() - 1) as ItemId
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        let item_of = |id: ItemId| slots.get(id as usize).and_then(Option::as_ref);
        self.by_name.insert_unique(hasher.hash_one(name), id, |id| {
            item_of(*id).map_or(0, |item| hasher.hash_one(&*item.name))
        });
        for (nth, net) in nets.iter().enumerate() {
            self.by_net.insert_unique(hasher.hash_one(net), Place { item: id, nth: nth as u32 }, |place| {
                let nets = item_of(place.item).map_or(&[][..], |item| item.nets.as_slice());
                nets.get(place.nth as usize).map_or(0, |net| hasher.hash_one(net))
            });
        }
        if self.of_class.len() <= class as usize {
            self.of_class.resize(class as usize + 1, Ids::None);
        }
        self.of_class[class as usize].insert(id);
        id
    }

    /// The item and the ports that it held.
    pub fn remove(&mut self, id: ItemId) -> Option<(Item, Box<[NamedPort]>)> {
        let item = self.slots.get_mut(id as usize)?.take()?;
        if let Ok(entry) = self.by_name.find_entry(self.hasher.hash_one(&*item.name), |other| *other == id) {
            entry.remove();
        }
        for net in item.nets.as_slice() {
            if let Ok(entry) = self.by_net.find_entry(self.hasher.hash_one(net), |place| place.item == id) {
                entry.remove();
            }
        }
        if let Some(ids) = self.of_class.get_mut(item.class as usize) {
            ids.remove(id);
        }
        self.free.push(id);
        let ports = self.ports.get(item.ports).cloned().unwrap_or_default();
        self.ports.release(item.ports);
        Some((item, ports))
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Item, &[IpNet])> {
        self.slots.iter().flatten().map(|item| (&*item.name, item, item.nets.as_slice()))
    }
}
