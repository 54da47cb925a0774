//! What we believe the kernel holds: filled by a look, kept by events and by what we do ourselves.

use crate::kernel::{Entry, Link, NeighbourKey, Snapshot};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

#[derive(Debug, Default)]
pub(crate) struct Mirror {
    links: BTreeMap<u32, Link>,
    names: HashMap<String, u32>,
    addresses: BTreeSet<(u32, IpNet)>,
    routes: BTreeMap<IpNet, Vec<Entry>>,
    neighbours: BTreeMap<NeighbourKey, [u8; 6]>,
}

impl Mirror {
    pub fn new(snapshot: Snapshot) -> Mirror {
        let mut mirror = Mirror::default();
        mirror.set_routes(snapshot.routes);
        snapshot.links.into_iter().for_each(|link| mirror.set_link(link));
        mirror.addresses.extend(snapshot.addresses);
        mirror.neighbours.extend(snapshot.neighbours);
        mirror
    }

    pub fn set_routes(&mut self, routes: Vec<Entry>) {
        self.routes.clear();
        for entry in routes {
            self.routes.entry(entry.destination).or_default().push(entry);
        }
    }

    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    pub fn named(&self, name: &str) -> Option<&Link> {
        self.links.get(self.names.get(name)?)
    }

    pub fn set_link(&mut self, link: Link) {
        if let Some(old) = self.links.get(&link.index).filter(|old| old.name != link.name) {
            self.names.remove(&old.name);
        }
        self.names.insert(link.name.clone(), link.index);
        self.links.insert(link.index, link);
    }

    /// Forgets a link and everything that went with it; returns the destinations it was used for.
    pub fn remove_link(&mut self, index: u32) -> BTreeSet<IpNet> {
        if let Some(link) = self.links.remove(&index)
            && self.names.get(&link.name) == Some(&index)
        {
            self.names.remove(&link.name);
        }
        self.addresses.retain(|(device, _)| *device != index);
        self.neighbours.retain(|key, _| key.device != index);
        self.drop_routes(|entry| entry.target.uses(index))
    }

    /// The kernel drops the IPv4 routes of an interface that is set down, and says nothing.
    pub fn drop_ipv4_routes(&mut self, index: u32) -> BTreeSet<IpNet> {
        self.drop_routes(|entry| entry.destination.addr().is_ipv4() && entry.target.uses(index))
    }

    fn drop_routes(&mut self, gone: impl Fn(&Entry) -> bool) -> BTreeSet<IpNet> {
        let mut touched = BTreeSet::new();
        self.routes.retain(|destination, entries| {
            let before = entries.len();
            entries.retain(|entry| !gone(entry));
            if entries.len() != before {
                touched.insert(*destination);
            }
            !entries.is_empty()
        });
        touched
    }

    pub fn set_address(&mut self, device: u32, net: IpNet, present: bool) {
        if present {
            self.addresses.insert((device, net));
        } else {
            self.addresses.remove(&(device, net));
        }
    }

    pub fn addresses_of(&self, device: u32) -> impl Iterator<Item = std::net::IpAddr> {
        self.addresses.iter().filter(move |(owner, _)| *owner == device).map(|(_, net)| net.addr())
    }

    pub fn destinations(&self) -> impl Iterator<Item = IpNet> {
        self.routes.keys().copied()
    }

    pub fn routes(&self, destination: &IpNet) -> &[Entry] {
        self.routes.get(destination).map_or(&[], Vec::as_slice)
    }

    pub fn all_routes(&self) -> impl Iterator<Item = &Entry> {
        self.routes.values().flatten()
    }

    pub fn set_route(&mut self, entry: Entry) {
        let entries = self.routes.entry(entry.destination).or_default();
        // A new route where there was one replaced it. IPv6 keeps several in one place on different interfaces.
        let v6 = entry.destination.addr().is_ipv6();
        entries
            .retain(|old| !(old.same_place(&entry) && (!v6 || old.target.device() == entry.target.device())));
        entries.push(entry);
    }

    pub fn remove_route(&mut self, entry: &Entry) {
        let Some(entries) = self.routes.get_mut(&entry.destination) else { return };
        entries.retain(|old| {
            !(old.same_place(entry)
                && old.protocol == entry.protocol
                && old.target.device() == entry.target.device())
        });
        if entries.is_empty() {
            self.routes.remove(&entry.destination);
        }
    }

    pub fn neighbour(&self, key: &NeighbourKey) -> Option<[u8; 6]> {
        self.neighbours.get(key).copied()
    }

    pub fn set_neighbour(&mut self, key: NeighbourKey, mac: Option<[u8; 6]>) {
        match mac {
            Some(mac) => self.neighbours.insert(key, mac),
            None => self.neighbours.remove(&key),
        };
    }

    /// The interface on whose own subnet an address lies; the narrowest subnet decides.
    pub fn connected(&self, address: IpAddr) -> Option<&Link> {
        let nets = self.addresses.iter().filter(|(_, net)| {
            net.prefix_len() < net.max_prefix_len() && net.contains(&address) && net.addr() != address
        });
        let on_links = nets.filter_map(|(device, net)| {
            let link = self.links.get(device).filter(|link| link.enabled)?;
            Some((net.prefix_len(), link))
        });
        on_links.max_by_key(|(length, link)| (*length, std::cmp::Reverse(link.index))).map(|(_, link)| link)
    }
}
