//! Lists the host's interfaces and their addresses.

use ipnet::IpNet;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    pub name: String,
    pub addresses: Vec<IpNet>,
}

/// Returns the interfaces in the order of the kernel.
pub fn list_local_interfaces() -> std::io::Result<Vec<HostInterface>> {
    let mut found: Vec<HostInterface> = Vec::new();
    for entry in getifaddrs()? {
        let place = match found.iter().position(|interface| interface.name == entry.interface_name) {
            Some(place) => place,
            None => {
                found.push(HostInterface { name: entry.interface_name.clone(), addresses: Vec::new() });
                found.len() - 1
            }
        };
        let address = entry.address.as_ref().and_then(ip);
        let mask = entry.netmask.as_ref().and_then(ip);
        if let (Some(address), Some(mask)) = (address, mask)
            && let Ok(net) = IpNet::with_netmask(address, mask)
        {
            found[place].addresses.push(net);
        }
    }
    Ok(found)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}
