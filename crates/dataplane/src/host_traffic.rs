//! Removes the translation that older versions applied to packets which the host itself sends to floating addresses of
//! workloads.
//!
//! Those versions translated them in the chain `floating-out`, for any address that a pod had requested. If that is the
//! address of the API server, the daemon cannot read the datastore that would make it remove the chain, so the chain is
//! removed before the daemon connects.

use crate::error::{DataplaneError, DataplaneResult};
use crate::kernel::{KernelRoute, KernelRouteTarget, RtnetlinkClient, forget_flows};
use crate::netns::Netns;
use crate::policy;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_plan::RoutingTable;

/// Route protocol of routes that the kernel itself writes.
const PROTOCOL_KERNEL: u8 = 2;

/// Removes the translation, the routes and the connections of the host to floating addresses; packets that other hosts
/// and workloads send to them are translated as before. Returns the number of addresses; 0 on hosts where only this
/// version has run.
pub async fn free_host_traffic(host: &Netns) -> DataplaneResult<usize> {
    let addresses = policy::remove_host_translation(host).await?;
    if addresses.is_empty() {
        return Ok(0);
    }
    let kernel = RtnetlinkClient::open(host)?;
    let routes = kernel.routes().await?;
    let stale: Vec<&KernelRoute> = routes.iter().filter(|entry| leads_to(&addresses, entry)).collect();
    let failed = kernel.delete_routes(&stale).await;
    forget_flows(host, &addresses).await;
    match failed.into_iter().next() {
        Some((_, refusal)) => Err(DataplaneError::Kernel {
            object: "route of a floating address".into(),
            reason: refusal.reason,
        }),
        None => Ok(addresses.len()),
    }
}

fn leads_to(addresses: &BTreeSet<IpAddr>, entry: &KernelRoute) -> bool {
    let destination = entry.destination();
    destination.prefix_len() == destination.max_prefix_len()
        && addresses.contains(&destination.addr())
        && entry.key.table == RoutingTable::MAIN
        && entry.protocol != PROTOCOL_KERNEL
        && matches!(entry.target, KernelRouteTarget::Device(_))
}
