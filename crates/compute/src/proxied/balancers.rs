//! Addresses of LoadBalancer services: selects the node that answers for each. All nodes decide on the same data, so
//! that exactly one of them answers.

use crate::nodes::NodeFacts;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_model::kubernetes::{KubernetesService, ServiceType};

/// Namespace and name.
pub(super) type BalancerServiceKey = (Box<str>, Box<str>);

#[derive(Debug)]
pub(super) struct LoadBalancerShares {
    host: Box<str>,
    nodes: BTreeMap<Box<str>, ShareNode>,
    /// Addresses of the services that have any.
    addresses: BTreeMap<BalancerServiceKey, Vec<IpAddr>>,
}

#[derive(Debug)]
struct ShareNode {
    /// Hash of its name.
    hash: u64,
    facts: Arc<NodeFacts>,
}

impl LoadBalancerShares {
    pub fn new(host: &str) -> LoadBalancerShares {
        LoadBalancerShares { host: host.into(), nodes: BTreeMap::new(), addresses: BTreeMap::new() }
    }

    /// Adds or replaces a node. Returns whether anything changed.
    pub fn put_node(&mut self, name: &str, facts: Arc<NodeFacts>) -> bool {
        let node = ShareNode { hash: hash(FNV_OFFSET_BASIS, name.as_bytes()), facts: facts.clone() };
        let old = self.nodes.insert(name.into(), node);
        old.is_none_or(|old| old.facts.v4 != facts.v4 || old.facts.v6 != facts.v6)
    }

    pub fn remove_node(&mut self, name: &str) -> bool {
        self.nodes.remove(name).is_some()
    }

    pub fn put_service(&mut self, namespace: &str, name: &str, service: &KubernetesService) -> bool {
        if service.form != ServiceType::LoadBalancer {
            return self.remove_service(namespace, name);
        }
        // Not `load_balancer_ip`: the creator of the service may request any address there.
        let addresses = service.ingress_ips.clone();
        let name = (namespace.into(), name.into());
        let is_known = self.addresses.get(&name) == Some(&addresses);
        if !is_known {
            self.addresses.insert(name, addresses);
        }
        !is_known
    }

    pub fn remove_service(&mut self, namespace: &str, name: &str) -> bool {
        self.addresses.remove(&(namespace.into(), name.into())).is_some()
    }

    pub fn host_address(&self) -> Option<IpAddr> {
        self.nodes.get(&self.host)?.facts.v4.map(|net| net.addr())
    }

    /// Returns the addresses that this node answers for, with a service that has each.
    pub fn own(&self) -> impl Iterator<Item = (IpAddr, &BalancerServiceKey)> {
        let all =
            self.addresses.iter().flat_map(|(name, addresses)| addresses.iter().map(move |a| (*a, name)));
        all.filter(|(address, _)| self.answering(*address) == Some(&*self.host))
    }

    /// Returns the node that answers for an address: one of the nodes whose subnet contains it, since other nodes do
    /// not receive the requests. Other nodes know only the subnet of a node's own address; so if no such subnet
    /// contains the address, one of all nodes answers.
    fn answering(&self, address: IpAddr) -> Option<&str> {
        let ranked = self.nodes.iter().filter_map(|(name, node)| {
            let is_near = node.facts.address(address.is_ipv4())?.contains(&address);
            Some(((is_near, rank(node.hash, address)), name))
        });
        ranked.max().map(|(_, name)| &**name)
    }
}

/// Returns the rank of a node for an address; the node with the highest rank answers. A node that joins or leaves
/// moves only its own share.
fn rank(node: u64, address: IpAddr) -> u64 {
    let hash = match address {
        IpAddr::V4(address) => hash(node, &address.octets()),
        IpAddr::V6(address) => hash(node, &address.octets()),
    };
    // The last bytes, in which addresses differ, must matter as much as the first.
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a. It is the same in every version, because nodes of different versions have to agree.
fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn facts(v4: &str, v6: &str) -> Arc<NodeFacts> {
        Arc::new(NodeFacts { v4: v4.parse().ok(), v6: v6.parse().ok(), ..NodeFacts::default() })
    }

    /// Returns the cluster as each of its nodes sees it. One more node is in another subnet.
    fn cluster(nodes: u8) -> Vec<LoadBalancerShares> {
        let know = |host: u8| {
            let mut balancers = LoadBalancerShares::new(&format!("n{host}"));
            for node in 0..nodes {
                balancers.put_node(&format!("n{node}"), facts(&format!("192.0.2.{node}/24"), "fd00::1/64"));
            }
            balancers.put_node("far", facts("198.51.100.1/24", ""));
            let ingress_ips = (0..=255).flat_map(|last| {
                [IpAddr::from([192, 0, 2, last]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()])]
            });
            let service = KubernetesService {
                form: ServiceType::LoadBalancer,
                ingress_ips: ingress_ips.collect(),
                ..KubernetesService::default()
            };
            assert!(balancers.put_service("shop", "web", &service), "it is new");
            assert!(!balancers.put_service("shop", "web", &service), "it is known");
            balancers
        };
        (0..nodes).map(know).collect()
    }

    fn share(node: &LoadBalancerShares) -> BTreeSet<IpAddr> {
        node.own().map(|(address, _)| address).collect()
    }

    #[test]
    fn each_address_has_one_node_in_fair_shares() {
        let cluster = cluster(4);
        let shares: Vec<BTreeSet<IpAddr>> = cluster.iter().map(share).collect();
        assert_eq!(shares.iter().map(BTreeSet::len).sum::<usize>(), 512, "no node of another subnet");
        assert_eq!(shares.iter().flatten().collect::<BTreeSet<_>>().len(), 512);
        let sizes: Vec<usize> = shares.iter().map(BTreeSet::len).collect();
        assert!(sizes.iter().all(|size| (90..170).contains(size)), "{sizes:?}");
    }

    #[test]
    fn leaving_node_moves_only_its_own_addresses() {
        let mut cluster = cluster(4);
        let before: Vec<BTreeSet<IpAddr>> = cluster.iter().map(share).collect();
        for (node, had) in cluster.iter_mut().zip(&before).take(3) {
            assert!(node.remove_node("n3"));
            let has = share(node);
            assert!(has.is_superset(had) && has.difference(had).all(|address| before[3].contains(address)));
        }
    }

    #[test]
    fn without_a_subnet_one_of_all_answers() {
        let mut balancers = LoadBalancerShares::new("far");
        balancers.put_node("far", facts("198.51.100.1/24", ""));
        let mut service = KubernetesService {
            form: ServiceType::LoadBalancer,
            ingress_ips: vec!["203.0.113.7".parse().unwrap()],
            load_balancer_ip: "203.0.113.8".parse().ok(),
            ..KubernetesService::default()
        };
        balancers.put_service("shop", "web", &service);
        assert_eq!(balancers.own().count(), 1);
        service.form = ServiceType::ClusterIP;
        assert!(balancers.put_service("shop", "web", &service));
        assert_eq!(balancers.own().count(), 0);
    }
}
