//! Configures a new veth pair: sysctls, routes, neighbours and addresses.

use super::{AttachRequest, AttachedInterface, GATEWAY_V4, GATEWAY_V6, HOST_MAC, link};
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::kernel::mac;
use crate::netns::Netns;
use crate::sysctl::{self, SysctlSetting};
use ipnet::IpNet;
use nlink::netlink::addr::{Ipv4Address, Ipv6Address};
use nlink::netlink::neigh::Neighbor;
use nlink::netlink::route::{Ipv4Route, Ipv6Route};
use nlink::netlink::types::route::RouteScope;
use nlink::{Connection, Route};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

const MAX_GATEWAY_CHECKS: usize = 10;
const GATEWAY_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Configures both ends of the pair. `outside` and `inside` are connections to rtnetlink in the network namespaces of
/// the host and of the container.
pub(super) async fn configure_veth_pair(
    host: &Netns,
    container: &Netns,
    outside: &Connection<Route>,
    inside: &Connection<Route>,
    request: &AttachRequest,
) -> DataplaneResult<AttachedInterface> {
    let host_index = link::ensure_host_mac(outside, &request.host_interface).await?;
    let index = link::require(inside, &request.container_interface).await?.ifindex();
    // These settings must precede the setting up of the links: they disable duplicate address detection, and enable
    // IPv6 if the runtime has disabled it.
    sysctl::write(container, container_settings(request)).await?;
    sysctl::write(host, host_settings(request)).await?;
    for (connection, index, name) in
        [(outside, host_index, &request.host_interface), (inside, index, &request.container_interface)]
    {
        host.make(KernelObject::interface(name), connection.set_link_up_by_index(index)).await?;
    }
    // Add the routes before the addresses, so that no packet takes a wrong path.
    add_routes(container, outside, inside, host_index, index, request).await?;
    for address in &request.addresses {
        let interface = request.container_interface.clone();
        let add = async {
            match *address {
                IpAddr::V4(address) => inside.add_address(Ipv4Address::with_index(index, address, 32)).await,
                IpAddr::V6(address) => {
                    inside.add_address(Ipv6Address::with_index(index, address, 128).nodad()).await
                }
            }
        };
        container.make(KernelObject::Address { address: *address, interface }, add).await?;
    }
    link::wait_until_running(outside, &request.host_interface).await?;
    let finished = link::require(inside, &request.container_interface).await?;
    let address = finished.address().and_then(mac).ok_or_else(|| DataplaneError::Kernel {
        object: KernelObject::interface(&request.container_interface),
        reason: "has no MAC".into(),
    })?;
    Ok(AttachedInterface { mac: address, mtu: finished.mtu().unwrap_or(0) })
}

pub(super) fn container_settings(request: &AttachRequest) -> Vec<SysctlSetting> {
    let forwarding = i32::from(request.allow_ip_forwarding);
    let mut settings = Vec::new();
    if request.has_v4() {
        settings.push(SysctlSetting::new("net/ipv4/ip_forward".into(), forwarding));
    }
    if request.has_v6() {
        let interface = request.container_interface.as_str();
        settings.push(SysctlSetting::new(format!("net/ipv6/conf/{interface}/accept_dad"), 0));
        for device in ["all", "default", "lo", interface] {
            settings.push(SysctlSetting::new(format!("net/ipv6/conf/{device}/disable_ipv6"), 0));
        }
        settings.push(SysctlSetting::new("net/ipv6/conf/all/forwarding".into(), forwarding));
    }
    settings
}

pub(super) fn host_settings(request: &AttachRequest) -> Vec<SysctlSetting> {
    let interface = &request.host_interface;
    let v4 = format!("net/ipv4/conf/{interface}");
    let v6 = format!("net/ipv6/conf/{interface}");
    let mut settings = vec![SysctlSetting::lenient(format!("{v6}/accept_ra"), 0)];
    if request.has_v4() {
        settings.push(SysctlSetting::lenient(format!("net/ipv4/neigh/{interface}/proxy_delay"), 0));
        settings.push(SysctlSetting::new(format!("{v4}/proxy_arp"), 1));
        settings.push(SysctlSetting::new(format!("{v4}/forwarding"), 1));
    }
    if request.has_v6() {
        settings.push(SysctlSetting::new(format!("{v6}/accept_dad"), 0));
        settings.push(SysctlSetting::new(format!("{v6}/disable_ipv6"), 0));
        settings.push(SysctlSetting::new(format!("{v6}/proxy_ndp"), 1));
        settings.push(SysctlSetting::new(format!("{v6}/forwarding"), 1));
    }
    settings
}

async fn add_routes(
    container: &Netns,
    outside: &Connection<Route>,
    inside: &Connection<Route>,
    host_index: u32,
    index: u32,
    request: &AttachRequest,
) -> DataplaneResult<()> {
    if request.has_v4() {
        let route = Ipv4Route::new(GATEWAY_V4, 32).dev_index(index).scope(RouteScope::Link);
        let destination = IpNet::from(IpAddr::from(GATEWAY_V4));
        container.make(KernelObject::route(destination), inside.add_route(route)).await?;
        // Add a permanent entry, because proxy ARP replies only on a host that has a default route.
        let host_mac = link::require(outside, &request.host_interface).await?.address().and_then(mac);
        let gateway = Neighbor::with_index_v4(index, GATEWAY_V4).lladdr(host_mac.unwrap_or(HOST_MAC));
        let interface = request.container_interface.clone();
        let neighbour = KernelObject::Neighbour { address: GATEWAY_V4.into(), interface };
        container.make(neighbour, inside.replace_neighbor(gateway.permanent())).await?;
    }
    let gateway_v6 = if request.has_v6() {
        find_gateway_v6(outside, host_index, &request.host_interface).await?
    } else {
        GATEWAY_V6
    };
    if request.has_v6() {
        // Add a permanent entry, because policy may drop neighbour solicitations that the workload sends from its
        // link-local address.
        let host_mac = link::require(outside, &request.host_interface).await?.address().and_then(mac);
        let gateway = Neighbor::with_index(index, gateway_v6.into()).lladdr(host_mac.unwrap_or(HOST_MAC));
        let interface = request.container_interface.clone();
        let neighbour = KernelObject::Neighbour { address: gateway_v6.into(), interface };
        container.make(neighbour, inside.replace_neighbor(gateway.permanent())).await?;
    }
    for net in request.effective_routes() {
        let add = async {
            match net {
                IpNet::V4(net) => {
                    let route = Ipv4Route::new(net.network(), net.prefix_len()).gateway(GATEWAY_V4);
                    inside.add_route(route.dev_index(index)).await
                }
                IpNet::V6(net) => {
                    let route = Ipv6Route::new(net.network(), net.prefix_len()).gateway(gateway_v6);
                    inside.add_route(route.dev_index(index)).await
                }
            }
        };
        container.make(KernelObject::route(net), add).await?;
    }
    Ok(())
}

/// Returns the link-local address of the host end. If the kernel did not derive it from the current MAC, sets the link
/// down and up once, so that the kernel generates it again.
async fn find_gateway_v6(
    outside: &Connection<Route>,
    host_index: u32,
    name: &str,
) -> DataplaneResult<Ipv6Addr> {
    let mut found = None;
    for attempt in 0..MAX_GATEWAY_CHECKS {
        let addresses = outside
            .get_addresses_by_index(host_index)
            .await
            .map_err(|error| DataplaneError::kernel(KernelObject::interface(name), &error))?;
        let link_local = addresses.iter().filter_map(|message| match message.address() {
            Some(IpAddr::V6(address)) if address.is_unicast_link_local() => Some(*address),
            _ => None,
        });
        let link_local: Vec<Ipv6Addr> = link_local.collect();
        if link_local.contains(&GATEWAY_V6) {
            return Ok(GATEWAY_V6);
        }
        found = link_local.first().copied().or(found);
        if found.is_some() && attempt == MAX_GATEWAY_CHECKS / 2 {
            for up in [false, true] {
                outside
                    .set_link_state_by_index(host_index, up)
                    .await
                    .map_err(|error| DataplaneError::kernel(KernelObject::interface(name), &error))?;
            }
        }
        tokio::time::sleep(GATEWAY_CHECK_INTERVAL).await;
    }
    found.ok_or_else(|| DataplaneError::Kernel {
        object: KernelObject::interface(name),
        reason: "has no link-local IPv6 address; check whether IPv6 is disabled on this host".into(),
    })
}
