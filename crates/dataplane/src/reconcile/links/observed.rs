//! The interfaces in the kernel, and their addresses.

use crate::kernel::KernelLink;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

#[derive(Debug, Default)]
pub struct ObservedLinks {
    links: BTreeMap<u32, KernelLink>,
    names: HashMap<String, u32>,
    addresses: BTreeSet<(u32, IpNet)>,
}

impl ObservedLinks {
    pub fn new(links: Vec<KernelLink>, addresses: Vec<(u32, IpNet)>) -> ObservedLinks {
        let mut all = ObservedLinks::default();
        for link in links {
            all.set(link);
        }
        all.addresses.extend(addresses);
        all
    }

    pub fn iter(&self) -> impl Iterator<Item = &KernelLink> {
        self.links.values()
    }

    pub fn get(&self, index: u32) -> Option<&KernelLink> {
        self.links.get(&index)
    }

    pub fn named(&self, name: &str) -> Option<&KernelLink> {
        self.links.get(self.names.get(name)?)
    }

    /// Sets an interface, or removes it and its addresses. Returns its previous state.
    pub fn replace(&mut self, index: u32, link: Option<KernelLink>) -> Option<KernelLink> {
        match link {
            Some(link) => self.set(link),
            None => self.remove(index),
        }
    }

    fn set(&mut self, link: KernelLink) -> Option<KernelLink> {
        // Another interface may have taken the old name already.
        if let Some(old) = self.links.get(&link.index)
            && old.name != link.name
            && self.names.get(&old.name) == Some(&link.index)
        {
            self.names.remove(&old.name);
        }
        self.names.insert(link.name.clone(), link.index);
        self.links.insert(link.index, link)
    }

    fn remove(&mut self, index: u32) -> Option<KernelLink> {
        let link = self.links.remove(&index)?;
        if self.names.get(&link.name) == Some(&index) {
            self.names.remove(&link.name);
        }
        self.addresses.retain(|(device, _)| *device != index);
        Some(link)
    }

    pub fn set_address(&mut self, device: u32, net: IpNet, present: bool) {
        if present {
            self.addresses.insert((device, net));
        } else {
            self.addresses.remove(&(device, net));
        }
    }

    pub fn addresses_of(&self, device: u32) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter(move |(owner, _)| *owner == device).map(|(_, net)| net.addr())
    }

    pub fn nets_of(&self, device: u32) -> impl Iterator<Item = IpNet> {
        self.addresses.iter().filter(move |(owner, _)| *owner == device).map(|(_, net)| *net)
    }

    /// Returns the interface that has an address.
    pub fn with_address(&self, address: IpAddr) -> Option<&KernelLink> {
        let (device, _) = self.addresses.iter().find(|(_, net)| net.addr() == address)?;
        self.links.get(device)
    }

    /// Returns the interface whose subnet contains an address; the narrowest subnet takes precedence.
    pub fn connected(&self, address: IpAddr) -> Option<&KernelLink> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_its_last_interface() {
        let link = |index, name: &str| KernelLink { index, name: name.to_owned(), ..KernelLink::default() };
        let mut links = ObservedLinks::new(vec![link(1, "eth0"), link(2, "eth1")], Vec::new());
        links.set(link(2, "eth0"));
        links.set(link(1, "eth2"));
        let index_of = |name: &str| links.named(name).map(|link| link.index);
        assert_eq!([index_of("eth0"), index_of("eth1"), index_of("eth2")], [Some(2), None, Some(1)]);
    }
}
