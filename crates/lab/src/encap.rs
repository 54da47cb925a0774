//! How packets of pods travel between the lab's nodes: as they are, or inside others.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Encap {
    /// As they are
    #[default]
    None,
    /// In VXLAN
    Vxlan,
    /// IPv4 in IPIP, IPv6 in VXLAN
    Ipip,
    /// Encrypted, by WireGuard
    Wireguard,
    /// In VXLAN between racks, as they are within one
    VxlanCross,
    /// IPv4 in IPIP and IPv6 in VXLAN between racks, as they are within one
    IpipCross,
}

impl Encap {
    /// The `ipipMode` and the `vxlanMode` of a pool.
    pub fn modes(self, pool: &IpNet) -> (&'static str, &'static str) {
        const NEVER: &str = "Never";
        let (mode, ipip) = match self {
            Encap::None | Encap::Wireguard => return (NEVER, NEVER),
            Encap::Vxlan => ("Always", false),
            Encap::Ipip => ("Always", true),
            Encap::VxlanCross => ("CrossSubnet", false),
            Encap::IpipCross => ("CrossSubnet", true),
        };
        match pool {
            IpNet::V4(_) if ipip => (mode, NEVER),
            // There is no IPIP for IPv6.
            _ => (NEVER, mode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_mode_that_it_can_have() {
        let v4 = "10.1.0.0/16".parse().unwrap();
        let v6 = "fd00::/112".parse().unwrap();
        assert_eq!(Encap::None.modes(&v4), ("Never", "Never"));
        assert_eq!(Encap::Wireguard.modes(&v4), ("Never", "Never"), "it is a setting of the nodes");
        assert_eq!(Encap::Vxlan.modes(&v6), ("Never", "Always"));
        assert_eq!(Encap::IpipCross.modes(&v4), ("CrossSubnet", "Never"));
        assert_eq!(Encap::IpipCross.modes(&v6), ("Never", "CrossSubnet"));
    }
}
