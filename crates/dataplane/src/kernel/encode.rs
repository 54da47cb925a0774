//! Encodes routes as complete netlink messages, because the batch API of `nlink` omits the interface.

use super::types::{KernelRoute, KernelRouteTarget};
use nlink::netlink::route::{ResolvedRouteInterfaces, RouteConfig};
use nlink::netlink::types::route::{RouteScope, RouteType, RtMsg, RtaAttr};
use nlink::netlink::{InterfaceRef, MessageBuilder};
use std::net::IpAddr;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Flag RTNH_F_ONLINK: the gateway is reachable on the interface even without a route to it.
const ONLINK: u32 = 4;
/// Metric attribute of a route that holds its MTU.
const RTAX_MTU: u16 = 2;

pub struct RouteRequest<'a>(pub &'a KernelRoute);

impl RouteRequest<'_> {
    fn write(&self, builder: &mut MessageBuilder, kind: RouteType, scope: RouteScope, flags: u32) {
        let entry = self.0;
        builder.append(
            &RtMsg::new()
                .with_family(self.family())
                .with_dst_len(entry.destination().prefix_len())
                // The table attribute below takes precedence.
                .with_table(0)
                .with_protocol(entry.protocol)
                .with_scope(scope as u8)
                .with_type(kind as u8)
                .with_flags(flags),
        );
        builder.append_attr_u32(RtaAttr::Table as u16, entry.key.table.0);
        append_address(builder, RtaAttr::Dst, entry.destination().network());
        if let KernelRouteTarget::Gateway { via, .. } = entry.target {
            append_address(builder, RtaAttr::Gateway, via);
        }
        if let KernelRouteTarget::Multipath(hops) = &entry.target {
            builder.append_attr(RtaAttr::Multipath as u16, &encode_next_hops(hops));
        }
        if let Some(device) = entry.target.device() {
            builder.append_attr_u32(RtaAttr::Oif as u16, device);
        }
        if let Some(source) = entry.source {
            append_address(builder, RtaAttr::Prefsrc, source);
        }
        if entry.metric != 0 {
            builder.append_attr_u32(RtaAttr::Priority as u16, entry.metric);
        }
    }
}

/// Encodes a list of `struct rtnexthop`, each followed by its gateway attribute.
fn encode_next_hops(hops: &[(IpAddr, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (via, device) in hops {
        let octets = match via {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let attribute = u16::try_from(4 + octets.len()).unwrap_or_default();
        bytes.extend((8 + attribute).to_ne_bytes());
        bytes.extend([ONLINK as u8, 0]);
        bytes.extend(device.to_ne_bytes());
        bytes.extend(attribute.to_ne_bytes());
        bytes.extend((RtaAttr::Gateway as u16).to_ne_bytes());
        bytes.extend(octets);
    }
    bytes
}

fn append_address(builder: &mut MessageBuilder, attribute: RtaAttr, address: IpAddr) {
    match address {
        IpAddr::V4(address) => builder.append_attr(attribute as u16, &address.octets()),
        IpAddr::V6(address) => builder.append_attr(attribute as u16, &address.octets()),
    }
}

impl RouteConfig for RouteRequest<'_> {
    fn device_ref(&self) -> Option<&InterfaceRef> {
        None
    }

    fn multipath_device_refs(&self) -> Vec<Option<&InterfaceRef>> {
        Vec::new()
    }

    fn family(&self) -> u8 {
        if self.0.destination().addr().is_ipv4() { AF_INET } else { AF_INET6 }
    }

    fn write_add(&self, builder: &mut MessageBuilder, _: &ResolvedRouteInterfaces) {
        let (kind, scope, flags) = match self.0.target {
            KernelRouteTarget::Blackhole => (RouteType::Blackhole, RouteScope::Universe, 0),
            KernelRouteTarget::Throw => (RouteType::Throw, RouteScope::Universe, 0),
            KernelRouteTarget::Device(_) => (RouteType::Unicast, RouteScope::Link, 0),
            KernelRouteTarget::Gateway { .. } => (RouteType::Unicast, RouteScope::Universe, ONLINK),
            KernelRouteTarget::Multipath(_) | KernelRouteTarget::Other { .. } => {
                (RouteType::Unicast, RouteScope::Universe, 0)
            }
        };
        self.write(builder, kind, scope, flags);
        if let Some(mtu) = self.0.mtu {
            let head = [8_u16.to_ne_bytes(), RTAX_MTU.to_ne_bytes()].concat();
            builder.append_attr(RtaAttr::Metrics as u16, &[&head[..], &mtu.to_ne_bytes()].concat());
        }
    }

    /// Identifies the route by destination, metric, protocol and interface, regardless of its type and scope.
    fn write_delete(&self, builder: &mut MessageBuilder) {
        self.write(builder, RouteType::Unspec, RouteScope::Nowhere, 0);
    }
}
