//! The configuration that the server grants on one interface.

use crate::codec::frame::MacAddress;
use crate::codec::neighbour::AdvertisedPrefix;
use ipnet::Ipv4Net;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The configuration of the virtual machine behind one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceLease {
    pub mac: MacAddress,
    pub host_name: String,
    /// Empty if the machine has no domain.
    pub domain: String,
    pub lease_seconds: u32,
    pub v4: Option<Dhcp4Lease>,
    pub v6: Option<Dhcp6Lease>,
}

/// The IPv4 part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dhcp4Lease {
    pub address: Ipv4Addr,
    pub subnet: Ipv4Net,
    pub gateway: Option<Ipv4Addr>,
    pub dns_servers: Vec<Ipv4Addr>,
    /// Routes besides the default route; an unspecified next hop means that the destination is on the link.
    pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
}

/// The IPv6 part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dhcp6Lease {
    /// Addresses that are granted by DHCPv6.
    pub addresses: Vec<Ipv6Addr>,
    pub prefixes: Vec<AdvertisedPrefix>,
    /// The flag M of router advertisements: addresses are available by DHCPv6.
    pub is_managed: bool,
    /// The flag O of router advertisements: other options are available by DHCPv6.
    pub has_other: bool,
    pub dns_servers: Vec<Ipv6Addr>,
}

/// The host's end of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkIdentity {
    pub mac: MacAddress,
    pub link_local: Option<Ipv6Addr>,
    pub mtu: u32,
}

/// An interface with its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortState {
    pub link: LinkIdentity,
    pub lease: InterfaceLease,
}

impl Dhcp4Lease {
    /// Returns the address by which clients know the server. It is the gateway, as with Calico's agent, so that a machine
    /// that migrates renews its lease at its new host. The kernel's proxy ARP answers for it.
    pub fn server_id(&self) -> Ipv4Addr {
        const WITHOUT_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
        self.gateway.unwrap_or(WITHOUT_GATEWAY)
    }

    /// Returns whether the gateway is outside of the subnet, so that clients need a route to it.
    pub fn has_distant_gateway(&self) -> bool {
        self.gateway.is_some_and(|gateway| !self.subnet.contains(&gateway))
    }
}
