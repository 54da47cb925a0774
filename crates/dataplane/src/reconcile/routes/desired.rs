//! Determines the desired route for a destination, and the next hops of nodes.

use super::super::DataplaneCore;
use super::{PROTOCOL_BIRD, PROTOCOL_BOOT, PROTOCOL_OURS};
use crate::kernel::{KernelLink, KernelRoute, KernelRouteTarget};
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_plan::{PlannedWorkload, RouteKey, RouteTarget, RoutingTable, TunnelKind};

/// Index of `lo`, the same in every namespace.
const LOOPBACK_INDEX: u32 = 1;

impl DataplaneCore {
    /// Returns the route protocol that only we use.
    pub(in crate::reconcile) fn own_protocol(&self) -> u8 {
        match self.settings.device_route_protocol {
            PROTOCOL_BOOT => PROTOCOL_OURS,
            configured => configured,
        }
    }

    /// Returns the desired route for a destination; the error is the reason why a required route cannot be written now.
    pub(in crate::reconcile) fn wanted(&self, key: &RouteKey) -> Result<Option<KernelRoute>, String> {
        let destination = key.destination;
        if !self.settings.program_routes || destination.addr().is_ipv6() && !self.settings.ipv6 {
            return Ok(None);
        }
        let single =
            destination.prefix_len() == destination.max_prefix_len() && key.table == RoutingTable::MAIN;
        if single && let Some((workload, link)) = self.workload_at(destination.addr()) {
            let metric = match (destination, workload.migration.is_elevated()) {
                (IpNet::V4(_), false) => self.settings.ipv4_route_priority,
                (IpNet::V6(_), false) => self.settings.ipv6_route_priority,
                (IpNet::V4(_), true) => self.settings.ipv4_elevated_priority,
                (IpNet::V6(_), true) => self.settings.ipv6_elevated_priority,
            };
            // The workload has moved to another node, which advertises it before its endpoint is removed here.
            if self.plan.learnt(&destination).is_some_and(|learnt| learnt.leads_past(metric))
                && let Ok(Some(entry)) = self.wanted_of_bgp(key)
            {
                return Ok(Some(entry));
            }
            let protocol = self.settings.device_route_protocol;
            let entry = KernelRoute::new(*key, metric, protocol, KernelRouteTarget::Device(link.index));
            return Ok(Some(entry.with_source(self.usual_source(key))));
        }
        let Some(route) = self.plan.route(key) else { return self.wanted_of_bgp(key) };
        let mut mtu = None;
        let target = match route.target {
            RouteTarget::Blackhole => KernelRouteTarget::Blackhole,
            RouteTarget::Throw => KernelRouteTarget::Throw,
            RouteTarget::Host => KernelRouteTarget::Device(LOOPBACK_INDEX),
            RouteTarget::Via(node) => self.next_hop(node)?,
            RouteTarget::Tunnel { tunnel, gateway } => {
                let device = self.through(tunnel)?;
                // As in Calico, a route through a VXLAN or IPIP device carries the device's MTU.
                mtu = self.links.get(device).map(|link| link.mtu).filter(|_| !tunnel.is_wireguard());
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
        let source = route.source.or_else(|| self.usual_source(key)).filter(|_| sends);
        let entry = KernelRoute::new(*key, route.metric, self.own_protocol(), target);
        Ok(Some(entry.with_source(source).with_mtu(mtu)))
    }

    /// Returns the configured source address for packets of the host.
    fn usual_source(&self, key: &RouteKey) -> Option<IpAddr> {
        let source = match key.destination {
            IpNet::V4(_) => self.settings.device_route_source_v4,
            IpNet::V6(_) => self.settings.device_route_source_v6,
        };
        source.filter(|_| key.table == RoutingTable::MAIN)
    }

    /// Returns the interface index of a tunnel.
    fn through(&self, tunnel: TunnelKind) -> Result<u32, String> {
        let link = self.tunnel_link(tunnel).map(|link| link.index);
        link.ok_or_else(|| format!("tunnel device {} is missing or down", self.device_name(tunnel)))
    }

    /// Returns the desired route for a destination learned by BGP. Unreachable next hops are omitted as long as another
    /// one is reachable.
    pub(in crate::reconcile) fn wanted_of_bgp(&self, key: &RouteKey) -> Result<Option<KernelRoute>, String> {
        let learnt = self.plan.learnt(&key.destination).filter(|_| key.table == RoutingTable::MAIN);
        let Some(learnt) = learnt else { return Ok(None) };
        let (mut hops, mut failure) = (Vec::new(), None);
        for hop in &learnt.next_hops {
            let target = match hop.tunnel {
                Some(tunnel) => {
                    self.through(tunnel).map(|device| KernelRouteTarget::Gateway { via: hop.address, device })
                }
                None => self.next_hop(hop.address),
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

    /// Returns the workload with an address and its interface; the newest interface if several workloads claim the
    /// address.
    fn workload_at(&self, address: IpAddr) -> Option<(&PlannedWorkload, &KernelLink)> {
        let claims = self.plan.at_address(address).filter_map(|w| Some((w, self.links.named(&w.interface)?)));
        claims.filter(|(_, link)| link.is_up()).max_by_key(|(_, link)| link.index)
    }

    pub(in crate::reconcile) fn next_hop(&self, node: IpAddr) -> Result<KernelRouteTarget, String> {
        if let Some(link) = self.links.connected(node).filter(|link| !self.is_workload(&link.name)) {
            return Ok(KernelRouteTarget::Gateway { via: node, device: link.index });
        }
        match self.lookups.get(&node) {
            Some(Ok((via, device))) => Ok(KernelRouteTarget::Gateway { via: *via, device: *device }),
            Some(Err(reason)) => Err(format!("node {node} cannot be reached: {reason}")),
            None => Err(format!("node {node} has not been looked up yet")),
        }
    }

    /// Returns the nodes for which the kernel's route has to be looked up, and resets the request for it.
    pub fn take_lookups(&mut self) -> Vec<IpAddr> {
        if !std::mem::take(&mut self.lookups_stale) {
            return Vec::new();
        }
        let nodes: Vec<IpAddr> =
            self.plan.nodes().filter(|node| self.links.connected(*node).is_none()).collect();
        self.lookups.retain(|node, _| nodes.contains(node));
        nodes
    }

    pub fn looked_up(&mut self, node: IpAddr, answer: Result<(IpAddr, u32), String>) {
        // With encryption between nodes, every lookup returns the tunnel. Our routes are for packets that bypass it, so
        // keep the previous result.
        let sealed = |device: &u32| self.links.get(*device).is_some_and(KernelLink::is_wireguard);
        let known = matches!(self.lookups.get(&node), Some(Ok(_)));
        if known && answer.as_ref().is_ok_and(|(_, device)| sealed(device)) {
            return;
        }
        if self.lookups.get(&node) != Some(&answer) {
            self.lookups.insert(node, answer);
            let destinations: Vec<RouteKey> = self.plan.destinations_by(node).collect();
            self.dirty.extend(destinations);
        }
    }

    pub(in crate::reconcile) fn next_hops_dirty(&mut self) {
        let destinations = self.plan.nodes().flat_map(|node| self.plan.destinations_by(node));
        self.dirty.extend(destinations);
    }
}
