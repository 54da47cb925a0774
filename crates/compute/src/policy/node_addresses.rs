//! The addresses of the nodes of the cluster, for rules whose selector selects nodes.

use crate::nodes::NodeFacts;
use hashbrown::HashMap;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_model::selector::{NodeLabels, Selector};
use tortie_plan::SetMember;

#[derive(Debug, Default)]
pub(super) struct NodeAddresses {
    nodes: HashMap<Box<str>, Arc<NodeFacts>>,
    /// The nodes that have an address.
    owners: HashMap<IpAddr, Vec<Arc<NodeFacts>>>,
}

/// Returns the set member for an address of a node.
pub(super) fn node_member(address: IpAddr) -> SetMember {
    SetMember::Net(IpNet::from(address))
}

pub(super) fn selects_node(selector: &Selector, node: &NodeFacts) -> bool {
    selector.matches(&NodeLabels(&node.labels))
}

impl NodeAddresses {
    pub fn get(&self, name: &str) -> Option<&Arc<NodeFacts>> {
        self.nodes.get(name)
    }

    /// Adds or replaces a node.
    pub fn put(&mut self, name: &str, node: Arc<NodeFacts>) {
        self.remove(name);
        for address in &node.peer_addresses {
            self.owners.entry(*address).or_default().push(node.clone());
        }
        self.nodes.insert(name.into(), node);
    }

    pub fn remove(&mut self, name: &str) {
        let Some(old) = self.nodes.remove(name) else { return };
        for address in &old.peer_addresses {
            if let Some(owners) = self.owners.get_mut(address) {
                owners.retain(|owner| !Arc::ptr_eq(owner, &old));
                if owners.is_empty() {
                    self.owners.remove(address);
                }
            }
        }
    }

    /// Visits the members of the set of a selector; several nodes may have the same address.
    pub fn members(&self, selector: &Selector, mut visit: impl FnMut(SetMember)) {
        let selected = self.nodes.values().filter(|node| selects_node(selector, node));
        selected.flat_map(|node| &node.peer_addresses).for_each(|address| visit(node_member(*address)));
    }

    pub fn contains(&self, selector: &Selector, member: SetMember) -> bool {
        let SetMember::Net(net) = member else { return false };
        let mut owners = self.owners.get(&net.addr()).into_iter().flatten();
        owners.any(|node| selects_node(selector, node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn node(zone: &str, addresses: &[&str]) -> Arc<NodeFacts> {
        Arc::new(NodeFacts {
            labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
            peer_addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..NodeFacts::default()
        })
    }

    fn members(nodes: &NodeAddresses, selector: &str) -> usize {
        let mut count = 0;
        nodes.members(&Selector::parse(selector).unwrap(), |_| count += 1);
        count
    }

    #[test]
    fn nodes_come_change_and_leave_nothing() {
        let mut nodes = NodeAddresses::default();
        nodes.put("a", node("x", &["192.0.2.1", "2001:db8::1"]));
        nodes.put("b", node("y", &["192.0.2.2"]));
        let zone = "projectcalico.org/kind == 'Node' && zone == 'x'";
        assert_eq!((members(&nodes, zone), members(&nodes, "projectcalico.org/kind == 'Node'")), (2, 3));
        nodes.put("b", node("x", &["192.0.2.1"]));
        assert_eq!(members(&nodes, zone), 3);
        let selector = Selector::parse(zone).unwrap();
        let shared = node_member("192.0.2.1".parse().unwrap());
        nodes.remove("a");
        assert!(nodes.contains(&selector, shared));
        nodes.remove("b");
        nodes.remove("b");
        assert!(!nodes.contains(&selector, shared) && nodes.nodes.is_empty() && nodes.owners.is_empty());
    }
}
