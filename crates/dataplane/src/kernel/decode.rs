//! Decodes netlink messages into the types of this crate.

use super::types::{
    FdbKey, KernelLink, KernelRoute, KernelRouteTarget, LinkSettings, NeighbourKey, RuleEntry,
    VxlanAttributes,
};
use ipnet::IpNet;
use nlink::netlink::devconf::{Ipv4Devconf, Ipv6Devconf};
use nlink::netlink::fdb::FdbEntry;
use nlink::netlink::messages::{
    AddressMessage, LinkMessage, NeighborMessage, ParsedNextHop, RouteMessage, RuleMessage, TcMessage,
};
use nlink::netlink::types::route::{RouteScope, RouteType, rt_table};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tortie_plan::{RouteKey, RoutingRule, RoutingTable};

const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_ONLINK: u8 = 4;
const IFF_UP: u32 = 0x1;
const IFF_RUNNING: u32 = 0x40;

pub fn mac(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.try_into().ok()
}

pub fn link(message: &LinkMessage) -> Option<KernelLink> {
    let v4 = |key| message.ipv4_devconf(key).and_then(|value| i32::try_from(value).ok());
    let v6 = |key| message.ipv6_devconf(key);
    Some(KernelLink {
        index: message.ifindex(),
        name: message.name()?.to_owned(),
        enabled: message.flags() & IFF_UP != 0,
        running: message.flags() & IFF_RUNNING != 0,
        mtu: message.mtu().unwrap_or(0),
        kind: message.kind().map(str::to_owned),
        master: message.master(),
        mac: message.address().and_then(mac),
        vxlan: vxlan(message),
        conf: LinkSettings {
            v4_forwarding: v4(Ipv4Devconf::Forwarding),
            proxy_arp: v4(Ipv4Devconf::ProxyArp),
            rp_filter: v4(Ipv4Devconf::RpFilter),
            route_localnet: v4(Ipv4Devconf::RouteLocalnet),
            v6_forwarding: v6(Ipv6Devconf::Forwarding),
            proxy_ndp: v6(Ipv6Devconf::ProxyNdp),
            accept_ra: v6(Ipv6Devconf::AcceptRa),
        },
    })
}

const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LINK: u16 = 3;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().map(u32::from_ne_bytes).ok()
}

/// Decodes the attributes with which a VXLAN device was created.
fn vxlan(message: &LinkMessage) -> Option<VxlanAttributes> {
    let info = message.link_info().filter(|info| info.kind() == Some("vxlan"))?;
    let mut vxlan = VxlanAttributes { vni: 0, port: 0, local: None, parent: None, learning: false };
    for (kind, value) in attributes(info.data()?) {
        match kind {
            IFLA_VXLAN_ID => vxlan.vni = number(value)?,
            IFLA_VXLAN_LINK => vxlan.parent = number(value).filter(|index| *index != 0),
            IFLA_VXLAN_PORT => vxlan.port = value.try_into().map(u16::from_be_bytes).ok()?,
            IFLA_VXLAN_LEARNING => vxlan.learning = value.first() == Some(&1),
            IFLA_VXLAN_LOCAL => {
                vxlan.local = <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
            }
            IFLA_VXLAN_LOCAL6 => {
                vxlan.local = <[u8; 16]>::try_from(value).ok().map(IpAddr::from);
            }
            _ => {}
        }
    }
    Some(vxlan)
}

/// Iterates over netlink attributes as pairs of type and value; ends at a truncated attribute.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const HEADER: usize = 4;
    const NUMBER: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let [a, b, c, d] = *bytes.first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & NUMBER, value))
    })
}

/// Attributes of a `u32` filter, which compares words of the packet.
pub mod u32_filter {
    pub const SELECTOR: u16 = 5;
    pub const ACTIONS: u16 = 7;
}

/// Attributes of an action.
pub mod action {
    pub const KIND: u16 = 1;
    pub const OPTIONS: u16 = 2;
    pub const MIRRED_PARAMETERS: u16 = 2;
}

/// Returns the device to which a filter redirects all packets.
pub fn redirection(filter: &TcMessage) -> Option<u32> {
    const DEVICE: std::ops::Range<usize> = 24..28;
    let actions = find_attribute(filter.raw_options()?, u32_filter::ACTIONS)?;
    let parameters = attributes(actions).find_map(|(_, action)| {
        if !find_attribute(action, action::KIND)?.starts_with(b"mirred") {
            return None;
        }
        find_attribute(find_attribute(action, action::OPTIONS)?, action::MIRRED_PARAMETERS)
    })?;
    number(parameters.get(DEVICE)?).filter(|device| *device != 0)
}

fn find_attribute(bytes: &[u8], number: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == number).map(|(_, value)| value)
}

/// Returns whether a link message reports the interface as administratively down. The kernel has then dropped its IPv4 routes
/// without notification.
pub fn is_disabled(message: &LinkMessage) -> bool {
    message.flags() & IFF_UP == 0
}

/// Decodes an address. Link-local addresses are skipped, as they do not identify nodes.
pub fn address(message: &AddressMessage) -> Option<(u32, IpNet)> {
    let address = message.local().or(message.address())?;
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        return None;
    }
    Some((message.ifindex(), IpNet::new(*address, message.prefix_len()).ok()?))
}

/// Decodes a route that the dataplane has to know: any but those of the local table and cached clones.
pub fn route(message: &RouteMessage) -> Option<KernelRoute> {
    if message.table_id() == u32::from(rt_table::LOCAL) || message.flags() & RTM_F_CLONED != 0 {
        return None;
    }
    let destination = match message.destination() {
        Some(address) => *address,
        None if message.is_ipv4() => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        None if message.is_ipv6() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        None => return None,
    };
    let destination = IpNet::new(destination, message.dst_len()).ok()?;
    let key = RouteKey { table: RoutingTable(message.table_id()), destination };
    let metric = message.priority().unwrap_or(0);
    let entry = KernelRoute::new(key, metric, message.protocol().number(), target(message));
    let entry = entry.with_source(message.prefsrc().copied());
    Some(entry.with_mtu(message.metrics().and_then(|metrics| metrics.mtu)))
}

fn target(message: &RouteMessage) -> KernelRouteTarget {
    let device = message.oif();
    let plain = message.nh_id().is_none() && message.source().is_none() && message.via().is_none();
    if let Some(hops) = message.multipath() {
        let hops = hops.iter().map(|hop| next_hop(hop).filter(|_| plain));
        let hops: Option<Vec<(IpAddr, u32)>> = hops.collect();
        return hops.and_then(KernelRouteTarget::gateways).unwrap_or(KernelRouteTarget::Other { device });
    }
    match (message.route_type(), device, message.gateway()) {
        (RouteType::Blackhole, _, _) => KernelRouteTarget::Blackhole,
        (RouteType::Throw, _, _) => KernelRouteTarget::Throw,
        (RouteType::Unicast, Some(device), Some(via)) if plain && message.is_onlink() => {
            KernelRouteTarget::Gateway { via: *via, device }
        }
        (RouteType::Unicast, Some(device), None)
            if plain && (message.is_ipv6() || message.scope() == RouteScope::Link) =>
        {
            KernelRouteTarget::Device(device)
        }
        _ => KernelRouteTarget::Other { device },
    }
}

/// Decodes a next hop of the only form that we write in routes with several.
fn next_hop(hop: &ParsedNextHop) -> Option<(IpAddr, u32)> {
    let is_ours = hop.weight == 1 && hop.flags & RTNH_F_ONLINK != 0;
    hop.gateway.filter(|_| is_ours).map(|via| (via, hop.ifindex))
}

/// Decodes a rule of the only form that we write: packets without the mark are routed by a table.
pub fn rule(message: &RuleMessage) -> Option<RuleEntry> {
    let mark = message.fwmark().filter(|mark| message.fwmask() == Some(*mark))?;
    let narrower = message.src_len() != 0
        || message.dst_len() != 0
        || message.iifname().is_some()
        || message.oifname().is_some()
        || message.ip_proto().is_some();
    if narrower || !message.is_invert() || !message.is_lookup() {
        return None;
    }
    let rule = RoutingRule {
        is_ipv4: message.is_ipv4(),
        priority: message.priority(),
        mark,
        table: RoutingTable(message.table_id()),
    };
    Some(RuleEntry { rule, protocol: message.protocol().unwrap_or_default() })
}

/// Decodes a neighbour and, if the entry is permanent, its MAC.
pub fn neighbour(message: &NeighborMessage) -> Option<(NeighbourKey, Option<[u8; 6]>)> {
    let key = NeighbourKey { device: message.ifindex(), address: *message.destination()? };
    let lladdr = if message.is_permanent() { message.lladdr().and_then(mac) } else { None };
    Some((key, lladdr))
}

/// Decodes a forwarding entry that has a remote node as its destination.
pub fn forwarding(entry: &FdbEntry) -> Option<(FdbKey, IpAddr)> {
    Some((FdbKey { device: entry.ifindex(), mac: entry.mac() }, entry.dst()?))
}
