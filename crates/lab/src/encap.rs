//! Encapsulation of pod traffic between the lab's nodes.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PodEncapsulation {
    /// No encapsulation
    #[default]
    None,
    /// VXLAN
    Vxlan,
    /// IPIP for IPv4, VXLAN for IPv6
    Ipip,
    /// Encryption by WireGuard
    Wireguard,
    /// VXLAN between racks, no encapsulation within a rack
    VxlanCross,
    /// IPIP for IPv4 and VXLAN for IPv6 between racks, no encapsulation within a rack
    IpipCross,
}

impl PodEncapsulation {
    /// Returns the `ipipMode` and the `vxlanMode` of a pool.
    pub fn modes(self, pool: &IpNet) -> (&'static str, &'static str) {
        const NEVER: &str = "Never";
        let (mode, ipip) = match self {
            PodEncapsulation::None | PodEncapsulation::Wireguard => return (NEVER, NEVER),
            PodEncapsulation::Vxlan => ("Always", false),
            PodEncapsulation::Ipip => ("Always", true),
            PodEncapsulation::VxlanCross => ("CrossSubnet", false),
            PodEncapsulation::IpipCross => ("CrossSubnet", true),
        };
        match pool {
            IpNet::V4(_) if ipip => (mode, NEVER),
            // IPIP does not exist for IPv6.
            _ => (NEVER, mode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_supported_mode() {
        let v4 = "10.1.0.0/16".parse().unwrap();
        let v6 = "fd00::/112".parse().unwrap();
        assert_eq!(PodEncapsulation::None.modes(&v4), ("Never", "Never"));
        assert_eq!(
            PodEncapsulation::Wireguard.modes(&v4),
            ("Never", "Never"),
            "it is a setting of the nodes"
        );
        assert_eq!(PodEncapsulation::Vxlan.modes(&v6), ("Never", "Always"));
        assert_eq!(PodEncapsulation::IpipCross.modes(&v4), ("CrossSubnet", "Never"));
        assert_eq!(PodEncapsulation::IpipCross.modes(&v6), ("Never", "CrossSubnet"));
    }
}
