//! Subnets by network, so that the subnet of an address is found without a search through all subnets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::StoreKey;
use tortie_model::dhcp::DhcpSubnet;

#[derive(Debug, Default)]
pub struct SubnetIndex {
    subnets: BTreeMap<StoreKey, DhcpSubnet>,
    by_network: BTreeMap<String, BTreeSet<StoreKey>>,
}

impl SubnetIndex {
    pub fn count(&self) -> usize {
        self.subnets.len()
    }

    pub fn contains(&self, key: &StoreKey) -> bool {
        self.subnets.contains_key(key)
    }

    /// Returns whether the subnet is new or has changed.
    pub fn insert(&mut self, key: StoreKey, subnet: DhcpSubnet) -> bool {
        if self.subnets.get(&key) == Some(&subnet) {
            return false;
        }
        self.remove(&key);
        self.by_network.entry(subnet.network_id.clone()).or_default().insert(key.clone());
        self.subnets.insert(key, subnet);
        true
    }

    /// Returns whether there was such a subnet.
    pub fn remove(&mut self, key: &StoreKey) -> bool {
        let Some(subnet) = self.subnets.remove(key) else { return false };
        if let Some(keys) = self.by_network.get_mut(&subnet.network_id) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_network.remove(&subnet.network_id);
            }
        }
        true
    }

    /// Returns the smallest subnet that contains an address, within the network if one is given. Keys of current
    /// drivers come before those of old ones.
    pub fn find(&self, network: Option<&str>, address: IpAddr) -> Option<&DhcpSubnet> {
        let longest = |best: Option<&'_ DhcpSubnet>, length: u8| {
            best.is_none_or(|best| best.cidr.prefix_len() < length)
        };
        let mut best: Option<&DhcpSubnet> = None;
        let mut consider = |subnet| {
            let subnet: &DhcpSubnet = subnet;
            if subnet.cidr.contains(&address) && longest(best, subnet.cidr.prefix_len()) {
                best = Some(subnet);
            }
        };
        match network {
            Some(network) => {
                let keys = self.by_network.get(network).into_iter().flatten();
                keys.filter_map(|key| self.subnets.get(key)).for_each(&mut consider);
            }
            None => self.subnets.values().for_each(consider),
        }
        best
    }
}
