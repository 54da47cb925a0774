//! Reads the routes of the host that Tortie did not write. The BGP speaker advertises some of them.

use crate::error::DataplaneResult;
use crate::kernel::RtnetlinkClient;
use crate::netns::Netns;
use crate::reconcile::{PROTOCOL_BIRD, PROTOCOL_OURS};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::RoutingTable;

/// Protocol numbers of routes that the kernel itself adds.
const PROTOCOL_REDIRECT: u8 = 1;
const PROTOCOL_KERNEL: u8 = 2;

/// A route of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoute {
    pub net: IpNet,
    pub interface: Option<String>,
    /// 0 if the route has no metric.
    pub metric: u32,
    /// Whether the host has an address in the network. If not, a program or an administrator added the route.
    pub connected: bool,
}

/// Returns the networks in which the host has addresses, and the routes in the main table that neither the kernel nor a
/// BGP speaker nor Tortie added.
pub async fn host_routes(host: &Netns) -> DataplaneResult<Vec<HostRoute>> {
    let kernel = RtnetlinkClient::open(host)?;
    let links: BTreeMap<u32, String> = kernel
        .links()
        .await?
        .into_iter()
        .filter(|link| link.enabled)
        .map(|link| (link.index, link.name))
        .collect();
    let mut routes = Vec::new();
    for (device, net) in kernel.addresses().await? {
        if let Some(name) = links.get(&device).filter(|_| is_global(net.addr())) {
            routes.push(HostRoute {
                net: net.trunc(),
                interface: Some(name.clone()),
                metric: 0,
                connected: true,
            });
        }
    }
    for entry in kernel.routes().await? {
        let net = entry.destination();
        let is_excluded =
            [PROTOCOL_REDIRECT, PROTOCOL_KERNEL, PROTOCOL_BIRD, PROTOCOL_OURS].contains(&entry.protocol);
        if entry.key.table == RoutingTable::MAIN && !is_excluded && is_global(net.addr()) {
            let interface = entry.target.device().and_then(|device| links.get(&device)).cloned();
            routes.push(HostRoute { net, interface, metric: entry.metric, connected: false });
        }
    }
    Ok(routes)
}

/// Returns whether the main table has routes with the protocol number of BIRD, which does not delete its routes when it
/// ends.
pub async fn has_bgp_routes(host: &Netns) -> DataplaneResult<bool> {
    let routes = RtnetlinkClient::open(host)?.routes().await?;
    Ok(routes.iter().any(|entry| entry.key.table == RoutingTable::MAIN && entry.protocol == PROTOCOL_BIRD))
}

/// Returns whether an address is valid outside of the host and of a single link.
fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local() && !address.is_multicast(),
        IpAddr::V6(address) => {
            !address.is_loopback() && !address.is_unicast_link_local() && !address.is_multicast()
        }
    }
}
