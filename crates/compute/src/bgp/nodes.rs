//! Properties of a node that BGP depends on.

use super::BgpEnvironment;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use tortie_model::kinds::Node;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BgpNodeFacts {
    pub labels: BTreeMap<String, String>,
    pub v4: Option<IpAddr>,
    pub v6: Option<IpAddr>,
    /// `None` if the prefix length is unknown.
    pub v4_subnet: Option<IpNet>,
    pub as_number: Option<u32>,
    /// Cluster ID of a route reflector.
    pub cluster_id: Option<Ipv4Addr>,
}

/// Label with the value `true` on nodes that must not receive external traffic for services.
const EXCLUDE_FROM_LB_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

impl BgpNodeFacts {
    pub fn of(node: &Node) -> BgpNodeFacts {
        let labels = node.metadata.labels.clone();
        let Some(bgp) = &node.spec.bgp else { return BgpNodeFacts { labels, ..BgpNodeFacts::default() } };
        let address = |text: &str| {
            let net = text.parse::<IpNet>().map(|net| net.addr());
            net.or_else(|_| text.parse::<IpAddr>()).ok()
        };
        BgpNodeFacts {
            labels,
            v4: address(&bgp.ipv4_address).filter(IpAddr::is_ipv4),
            v6: address(&bgp.ipv6_address).filter(IpAddr::is_ipv6),
            v4_subnet: bgp.ipv4_address.parse::<IpNet>().ok().map(|net| net.trunc()),
            as_number: bgp.as_number.map(|number| number.0).filter(|number| *number != 0),
            cluster_id: bgp.route_reflector_cluster_id.parse().ok(),
        }
    }

    pub fn announces_no_services(&self) -> bool {
        self.labels.get(EXCLUDE_FROM_LB_LABEL).is_some_and(|value| value == "true")
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.v4.into_iter().chain(self.v6)
    }

    /// Returns the address of the same family as another.
    pub fn like(&self, other: IpAddr) -> Option<IpAddr> {
        if other.is_ipv4() { self.v4 } else { self.v6 }
    }
}

impl BgpEnvironment {
    pub(super) fn router_id(&self, host: &str, own: &BgpNodeFacts) -> Option<Ipv4Addr> {
        match self.router_id.as_str() {
            "" => match own.v4 {
                Some(IpAddr::V4(address)) => Some(address),
                _ => None,
            },
            "hash" => Some(hashed(host)),
            given => given.parse().ok(),
        }
    }
}

/// Derives a router ID from the node name. It is kept out of the multicast range, which is not valid for routers.
fn hashed(host: &str) -> Ipv4Addr {
    let digest = Sha256::digest(host.as_bytes());
    let first = if digest[0] > 223 { digest[0] - 32 } else { digest[0] };
    Ipv4Addr::new(first, digest[1], digest[2], digest[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn router_ids_from_names_are_those_of_the_reference() {
        assert_eq!(hashed("node-a"), Ipv4Addr::new(102, 87, 15, 240));
        assert_eq!(hashed("worker-1"), Ipv4Addr::new(19, 2, 159, 158));
    }
}
