//! Addresses that belong to nodes or services of the cluster and are not available to other claimants.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The addresses of owners of one kind.
#[derive(Debug)]
pub(crate) struct AddressOwners<Owner> {
    by_owner: BTreeMap<Owner, Box<[IpAddr]>>,
    /// With the number of owners, since services may share an address.
    counts: BTreeMap<IpAddr, u32>,
}

impl<Owner> Default for AddressOwners<Owner> {
    fn default() -> AddressOwners<Owner> {
        AddressOwners { by_owner: BTreeMap::new(), counts: BTreeMap::new() }
    }
}

impl<Owner: Ord> AddressOwners<Owner> {
    pub fn put(&mut self, owner: Owner, addresses: impl Iterator<Item = IpAddr>) {
        self.remove(&owner);
        let addresses: Box<[IpAddr]> = addresses.collect();
        for address in &addresses {
            *self.counts.entry(*address).or_default() += 1;
        }
        if !addresses.is_empty() {
            self.by_owner.insert(owner, addresses);
        }
    }

    pub fn remove(&mut self, owner: &Owner) {
        for address in self.by_owner.remove(owner).into_iter().flatten() {
            if let Some(count) = self.counts.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&address);
                }
            }
        }
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.counts.contains_key(&address)
    }

    /// Returns the first owner of an address. Takes time in proportion to the number of owners if there is one.
    pub fn find(&self, address: IpAddr) -> Option<&Owner> {
        if !self.has(address) {
            return None;
        }
        self.by_owner.iter().find(|(_, addresses)| addresses.contains(&address)).map(|(owner, _)| owner)
    }
}
