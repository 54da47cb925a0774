//! Addresses that belong to nodes or services of the cluster and are not available to other claimants.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The addresses of owners of one kind.
#[derive(Debug)]
pub(crate) struct AddressOwners<Owner> {
    by_owner: BTreeMap<Arc<Owner>, Box<[IpAddr]>>,
    /// The owners of each address in order; services may share one.
    by_address: BTreeMap<IpAddr, Vec<Arc<Owner>>>,
}

impl<Owner> Default for AddressOwners<Owner> {
    fn default() -> AddressOwners<Owner> {
        AddressOwners { by_owner: BTreeMap::new(), by_address: BTreeMap::new() }
    }
}

impl<Owner: Ord> AddressOwners<Owner> {
    pub fn put(&mut self, owner: Owner, addresses: impl Iterator<Item = IpAddr>) {
        self.remove(&owner);
        let owner = Arc::new(owner);
        let addresses: Box<[IpAddr]> = addresses.collect();
        for address in &addresses {
            // Most addresses have one owner.
            let owners = self.by_address.entry(*address).or_insert_with(|| Vec::with_capacity(1));
            if let Err(position) = owners.binary_search(&owner) {
                owners.insert(position, owner.clone());
            }
        }
        if !addresses.is_empty() {
            self.by_owner.insert(owner, addresses);
        }
    }

    pub fn remove(&mut self, owner: &Owner) {
        for address in self.by_owner.remove(owner).into_iter().flatten() {
            if let Some(owners) = self.by_address.get_mut(&address) {
                owners.retain(|known| **known != *owner);
                if owners.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Returns the first owner of an address.
    pub fn find(&self, address: IpAddr) -> Option<&Owner> {
        self.by_address.get(&address)?.first().map(|owner| &**owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_may_share_addresses() {
        let [one, two]: [IpAddr; 2] = ["10.0.0.1", "fd00::2"].map(|text| text.parse().unwrap());
        let mut owners = AddressOwners::default();
        owners.put("b", [one].into_iter());
        owners.put("a", [one, one, two].into_iter());
        assert_eq!((owners.find(one), owners.find(two)), (Some(&"a"), Some(&"a")));
        owners.remove(&"a");
        assert_eq!((owners.find(one), owners.find(two)), (Some(&"b"), None));
        assert!(owners.has(one) && !owners.has(two));
        owners.put("b", [].into_iter());
        assert!(!owners.has(one));
    }
}
