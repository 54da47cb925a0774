//! Lists the Ethernet interfaces of a host and reports when they change, for servers that talk to workloads directly.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::kernel::RtnetlinkClient;
use crate::netns::Netns;
use futures::StreamExt;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{LinkAddr, SockaddrLike};
use nlink::netlink::{NetworkEvent, OwnedEventStream};
use nlink::{Route, RtnetlinkGroup};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// An Ethernet interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLink {
    pub index: u32,
    pub mac: [u8; 6],
    pub mtu: u32,
    pub is_up: bool,
    pub link_local: Option<Ipv6Addr>,
    /// Address of packet sockets on the interface.
    pub(crate) address: LinkAddr,
}

pub struct LinkMonitor {
    netns: Netns,
    client: RtnetlinkClient,
    events: OwnedEventStream<Route>,
}

impl LinkMonitor {
    /// Subscribes to changes of the interfaces of a namespace.
    pub async fn open(netns: &Netns) -> DataplaneResult<LinkMonitor> {
        let connection = netns.rtnetlink()?;
        let subscribed = connection.subscribe(&[RtnetlinkGroup::Link, RtnetlinkGroup::Ipv6Addr]);
        subscribed.map_err(|error| DataplaneError::kernel("events of interfaces", &error))?;
        let events = connection.into_events().await;
        Ok(LinkMonitor { netns: netns.clone(), client: RtnetlinkClient::open(netns)?, events })
    }

    /// Waits until an interface or an IPv6 address of one may have changed. An error ends the monitor.
    pub async fn changed(&mut self) -> DataplaneResult<()> {
        loop {
            match self.events.next().await {
                Some(Ok(
                    NetworkEvent::NewLink(_)
                    | NetworkEvent::DelLink(_)
                    | NetworkEvent::NewAddress(_)
                    | NetworkEvent::DelAddress(_),
                )) => return Ok(()),
                Some(Ok(_)) => {}
                // Events were lost, so anything may have changed.
                Some(Err(error)) if error.is_no_buffer_space() => return Ok(()),
                Some(Err(error)) => return Err(DataplaneError::kernel("events of interfaces", &error)),
                None => return Err(DataplaneError::Stopped),
            }
        }
    }

    /// Returns the Ethernet interfaces by name.
    pub async fn links(&self) -> DataplaneResult<BTreeMap<String, HostLink>> {
        let listed = self.netns.within(list_addresses).await?;
        let mut links = listed.map_err(|error| DataplaneError::Kernel {
            object: KernelObject::KernelState("addresses of interfaces"),
            reason: error.desc().to_owned(),
        })?;
        let states = self.client.links().await?;
        let states: BTreeMap<u32, _> = states.iter().map(|link| (link.index, link)).collect();
        // An interface that is in only one of the lists has just come or gone: an event follows.
        links.retain(|name, link| {
            let Some(state) = states.get(&link.index).filter(|state| state.name == *name) else {
                return false;
            };
            link.mtu = state.mtu;
            true
        });
        Ok(links)
    }
}

/// Lists the interfaces without their MTUs.
fn list_addresses() -> nix::Result<BTreeMap<String, HostLink>> {
    let mut links = BTreeMap::new();
    let mut link_locals = Vec::new();
    for entry in getifaddrs()? {
        let Some(address) = entry.address else { continue };
        if address.family() == Some(nix::sys::socket::AddressFamily::Packet)
            && let Some(link) = address.as_link_addr()
            && link.halen() == 6
            && let (Some(mac), Ok(index)) = (link.addr(), u32::try_from(link.ifindex()))
        {
            let is_up = entry.flags.contains(InterfaceFlags::IFF_UP);
            let link = HostLink { index, mac, mtu: 0, is_up, link_local: None, address: *link };
            links.insert(entry.interface_name, link);
        } else if let Some(address) = address.as_sockaddr_in6().map(|address| address.ip())
            && address.is_unicast_link_local()
        {
            link_locals.push((entry.interface_name, address));
        }
    }
    for (name, address) in link_locals {
        if let Some(link) = links.get_mut(&name) {
            link.link_local.get_or_insert(address);
        }
    }
    Ok(links)
}
