//! Determines the router ID of a node.

use super::BgpEnvironment;
use crate::nodes::NodeFacts;
use sha2::{Digest, Sha256};
use std::net::{IpAddr, Ipv4Addr};

impl BgpEnvironment {
    pub(super) fn router_id(&self, host: &str, own: &NodeFacts) -> Option<Ipv4Addr> {
        match self.router_id.as_str() {
            "" => match own.bgp_v4 {
                Some(IpAddr::V4(address)) => Some(address),
                _ => None,
            },
            "hash" => Some(hash_name(host)),
            given => given.parse().ok(),
        }
    }
}

/// Derives a router ID from the node name. It is kept out of the multicast range, which is not valid for routers.
fn hash_name(host: &str) -> Ipv4Addr {
    let digest = Sha256::digest(host.as_bytes());
    let first = if digest[0] > 223 { digest[0] - 32 } else { digest[0] };
    Ipv4Addr::new(first, digest[1], digest[2], digest[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_router_ids_equal_those_of_calico() {
        assert_eq!(hash_name("node-a"), Ipv4Addr::new(102, 87, 15, 240));
        assert_eq!(hash_name("worker-1"), Ipv4Addr::new(19, 2, 159, 158));
    }
}
