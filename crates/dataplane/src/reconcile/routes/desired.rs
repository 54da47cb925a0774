//! Determines the desired route for a destination.

use super::super::ReconcileContext;
use super::{PROTOCOL_BIRD, RouteReconciler};
use crate::kernel::{KernelLink, KernelRoute, KernelRouteTarget, RouteLookupError};
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_plan::{PlannedWorkload, RouteKey, RouteTarget, RoutingTable, TunnelKind};

/// Index of `lo`, the same in every namespace.
const LOOPBACK_INDEX: u32 = 1;

/// The reason why a required route cannot be written now.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("node {node} cannot be reached: {source}")]
    Unreachable { node: IpAddr, source: RouteLookupError },
    #[error("node {node} has not been looked up yet")]
    NotLookedUp { node: IpAddr },
    #[error("tunnel device {device} is missing or down")]
    TunnelDown { device: String },
    #[error(
        "a route that is not ours is in its place (protocol {protocol}, metric {metric}, interface {interface}); remove it"
    )]
    Obstructed { protocol: u8, metric: u32, interface: String },
}

impl RouteReconciler {
    /// Returns the desired route for a destination.
    pub fn desired_route(
        &self,
        key: &RouteKey,
        context: &ReconcileContext,
    ) -> Result<Option<KernelRoute>, RouteError> {
        let settings = &context.settings;
        let destination = key.destination;
        if !settings.program_routes || destination.addr().is_ipv6() && !settings.ipv6 {
            return Ok(None);
        }
        let is_single =
            destination.prefix_len() == destination.max_prefix_len() && key.table == RoutingTable::MAIN;
        if is_single && let Some((workload, link)) = find_workload(destination.addr(), context) {
            let metric = match (destination, workload.migration.is_elevated()) {
                (IpNet::V4(_), false) => settings.ipv4_route_priority,
                (IpNet::V6(_), false) => settings.ipv6_route_priority,
                (IpNet::V4(_), true) => settings.ipv4_elevated_priority,
                (IpNet::V6(_), true) => settings.ipv6_elevated_priority,
            };
            // The workload has moved to another node, which advertises it before its endpoint is removed here.
            if context.plan.learnt(&destination).is_some_and(|learnt| learnt.leads_past(metric))
                && let Ok(Some(entry)) = self.desired_bgp_route(key, context)
            {
                return Ok(Some(entry));
            }
            let protocol = settings.device_route_protocol;
            let entry = KernelRoute::new(*key, metric, protocol, KernelRouteTarget::Device(link.index));
            return Ok(Some(entry.with_source(choose_source(key, context))));
        }
        let Some(route) = context.plan.route(key) else { return self.desired_bgp_route(key, context) };
        let mut mtu = None;
        let target = match route.target {
            RouteTarget::Blackhole => KernelRouteTarget::Blackhole,
            RouteTarget::Throw => KernelRouteTarget::Throw,
            RouteTarget::Host => KernelRouteTarget::Device(LOOPBACK_INDEX),
            RouteTarget::Via(node) => self.next_hops.target(node, context)?,
            RouteTarget::Tunnel { tunnel, gateway } => {
                let device = find_tunnel_device(tunnel, context)?;
                // As in Calico, a route through a VXLAN or IPIP device carries the device's MTU.
                mtu = context.links.get(device).map(|link| link.mtu).filter(|_| !tunnel.is_wireguard());
                // WireGuard selects the peer by the destination.
                let gateway = gateway.filter(|_| !tunnel.is_wireguard());
                gateway.map_or(KernelRouteTarget::Device(device), |via| KernelRouteTarget::Gateway {
                    via,
                    device,
                })
            }
        };
        // Routes that drop or skip packets need no source address.
        let sends = !matches!(target, KernelRouteTarget::Blackhole | KernelRouteTarget::Throw);
        let source = route.source.or_else(|| choose_source(key, context)).filter(|_| sends);
        let entry = KernelRoute::new(*key, route.metric, context.own_protocol(), target);
        Ok(Some(entry.with_source(source).with_mtu(mtu)))
    }

    /// Returns the desired route for a destination learned by BGP. Unreachable next hops are omitted as long as another
    /// one is reachable.
    fn desired_bgp_route(
        &self,
        key: &RouteKey,
        context: &ReconcileContext,
    ) -> Result<Option<KernelRoute>, RouteError> {
        let learnt = context.plan.learnt(&key.destination).filter(|_| key.table == RoutingTable::MAIN);
        let Some(learnt) = learnt else { return Ok(None) };
        let mut hops = Vec::new();
        let mut failure = None;
        for hop in &learnt.next_hops {
            let target = match hop.tunnel {
                Some(tunnel) => find_tunnel_device(tunnel, context)
                    .map(|device| KernelRouteTarget::Gateway { via: hop.address, device }),
                None => self.next_hops.target(hop.address, context),
            };
            match target {
                Ok(KernelRouteTarget::Gateway { via, device }) => hops.push((via, device)),
                Ok(_) => {}
                Err(reason) => failure = Some(reason),
            }
        }
        let target = match (KernelRouteTarget::gateways(hops), failure) {
            (Some(target), _) => target,
            (None, Some(failure)) => return Err(failure),
            (None, None) => KernelRouteTarget::Blackhole,
        };
        Ok(Some(KernelRoute::new(*key, learnt.metric, PROTOCOL_BIRD, target)))
    }
}

/// Returns the configured source address for packets of the host.
fn choose_source(key: &RouteKey, context: &ReconcileContext) -> Option<IpAddr> {
    let source = match key.destination {
        IpNet::V4(_) => context.settings.device_route_source_v4,
        IpNet::V6(_) => context.settings.device_route_source_v6,
    };
    source.filter(|_| key.table == RoutingTable::MAIN)
}

/// Returns the interface index of a tunnel.
fn find_tunnel_device(tunnel: TunnelKind, context: &ReconcileContext) -> Result<u32, RouteError> {
    match context.tunnel_link(tunnel) {
        Some(link) => Ok(link.index),
        None => Err(RouteError::TunnelDown { device: context.device_name(tunnel).to_owned() }),
    }
}

/// Returns the workload with an address and its interface; the newest interface if several workloads claim the address.
fn find_workload(address: IpAddr, context: &ReconcileContext) -> Option<(&PlannedWorkload, &KernelLink)> {
    let workloads = context.plan.at_address(address);
    let claims = workloads.filter_map(|workload| Some((workload, context.links.named(&workload.interface)?)));
    claims.filter(|(_, link)| link.is_up()).max_by_key(|(_, link)| link.index)
}
