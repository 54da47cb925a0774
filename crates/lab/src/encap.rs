//! Encapsulation of pod traffic between the lab's nodes.

use crate::error::{LabError, LabResult};
use crate::netns;
use ipnet::IpNet;
use nlink::netlink::link::{IpipLink, WireguardLink};
use serde::{Deserialize, Serialize};

/// Name of the device that is created to find out whether the kernel supports its kind.
const PROBE_DEVICE: &str = "probe";
/// The errno with which the kernel rejects an unknown kind of device.
const EOPNOTSUPP: i32 = 95;

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

/// Returns an error if the kernel lacks the devices that the mode needs. Creates such a device in a temporary namespace,
/// which loads the kernel module as well.
pub async fn check_kernel(encap: PodEncapsulation, prefix: &str) -> LabResult<()> {
    let kind = match encap {
        PodEncapsulation::Wireguard => "wireguard",
        PodEncapsulation::Ipip | PodEncapsulation::IpipCross => "ipip",
        PodEncapsulation::None | PodEncapsulation::Vxlan | PodEncapsulation::VxlanCross => return Ok(()),
    };
    netns::prepare()?;
    let name = format!("{prefix}probe{}", std::process::id());
    let created = create_device(&name, kind).await;
    let removed = netns::remove(&name);
    let Err(error) = created? else { return removed };
    // The module creates a device itself, which a second one without an address conflicts with.
    if error.is_already_exists() {
        return removed;
    }
    if error.errno().map(i32::abs) == Some(EOPNOTSUPP) {
        return Err(LabError::refused(format!(
            "this kernel has no {kind} devices, so pods of different nodes would not be connected as requested; load or \
             install the module {kind}, or choose another --encap"
        )));
    }
    Err(LabError::kernel(format!("a {kind} device"), &error))
}

async fn create_device(netns: &str, kind: &str) -> LabResult<nlink::Result<()>> {
    let connection = netns::connection(&netns::create(netns).await?)?;
    if kind == "wireguard" {
        return Ok(connection.add_link(WireguardLink::new(PROBE_DEVICE)).await);
    }
    Ok(connection.add_link(IpipLink::new(PROBE_DEVICE)).await)
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
