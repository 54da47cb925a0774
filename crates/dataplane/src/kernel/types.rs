//! Kernel objects, reduced to the attributes that the dataplane uses for its decisions.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tortie_plan::{RouteKey, RoutingRule};

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelLink {
    pub index: u32,
    pub name: String,
    /// Administratively up (IFF_UP).
    pub enabled: bool,
    /// Able to pass packets (IFF_RUNNING).
    pub running: bool,
    pub mtu: u32,
    pub kind: Option<String>,
    /// The interface that it is enslaved to, such as a bridge.
    pub master: Option<u32>,
    pub mac: Option<[u8; 6]>,
    pub vxlan: Option<VxlanAttributes>,
    pub conf: LinkSettings,
}

/// Attributes of a VXLAN device. None of them can be changed after its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VxlanAttributes {
    pub vni: u32,
    pub port: u16,
    pub local: Option<IpAddr>,
    /// Index of the interface that carries the encapsulated packets.
    pub parent: Option<u32>,
    /// Whether the device learns MAC addresses from received packets.
    pub learning: bool,
}

impl KernelLink {
    pub fn is_up(&self) -> bool {
        self.enabled && self.running
    }

    pub fn is_wireguard(&self) -> bool {
        self.kind.as_deref() == Some("wireguard")
    }

    /// Returns whether the interface encapsulates packets and sends them through another interface.
    pub fn is_tunnel(&self) -> bool {
        let kinds = ["ip6gre", "ip6tnl", "ipip", "gre", "geneve", "sit", "vxlan", "wireguard"];
        self.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
    }
}

/// The per-interface settings that a link message carries; `None` if the kernel does not report one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    pub v4_forwarding: Option<i32>,
    pub proxy_arp: Option<i32>,
    pub rp_filter: Option<i32>,
    pub route_localnet: Option<i32>,
    pub v6_forwarding: Option<i32>,
    pub proxy_ndp: Option<i32>,
    pub accept_ra: Option<i32>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelRoute {
    pub key: RouteKey,
    pub metric: u32,
    pub protocol: u8,
    pub target: KernelRouteTarget,
    /// Preferred source address for packets that the host sends along this route.
    pub source: Option<IpAddr>,
    /// Path MTU, if it differs from that of the interface.
    pub mtu: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelRouteTarget {
    Blackhole,
    /// Continue with the next routing table.
    Throw,
    /// Directly out of an interface, with scope link.
    Device(u32),
    /// Through a next hop with the flag `onlink`: reachable on the interface whatever the interface's addresses.
    Gateway {
        via: IpAddr,
        device: u32,
    },
    /// Balanced over several next hops, which are sorted.
    Multipath(Vec<(IpAddr, u32)>),
    /// Any other form. We never write such routes, but one may have the same key as ours.
    Other {
        device: Option<u32>,
    },
}

impl KernelRouteTarget {
    /// Builds the target of one or several next hops.
    pub fn gateways(mut hops: Vec<(IpAddr, u32)>) -> Option<KernelRouteTarget> {
        hops.sort_unstable();
        hops.dedup();
        match hops[..] {
            [] => None,
            [(via, device)] => Some(KernelRouteTarget::Gateway { via, device }),
            _ => Some(KernelRouteTarget::Multipath(hops)),
        }
    }

    /// Returns the interface of the route if it has exactly one.
    pub fn device(&self) -> Option<u32> {
        match self {
            KernelRouteTarget::Blackhole | KernelRouteTarget::Throw | KernelRouteTarget::Multipath(_) => None,
            KernelRouteTarget::Device(device) | KernelRouteTarget::Gateway { device, .. } => Some(*device),
            KernelRouteTarget::Other { device } => *device,
        }
    }

    pub fn uses(&self, device: u32) -> bool {
        match self {
            KernelRouteTarget::Multipath(hops) => hops.iter().any(|(_, hop)| *hop == device),
            other => other.device() == Some(device),
        }
    }
}

impl KernelRoute {
    /// The kernel replaces metric 0 of an IPv6 route with this value.
    const IPV6_DEFAULT_METRIC: u32 = 1024;

    pub fn new(
        key: impl Into<RouteKey>,
        metric: u32,
        protocol: u8,
        target: KernelRouteTarget,
    ) -> KernelRoute {
        let key = key.into();
        let metric = match key.destination {
            IpNet::V6(_) if metric == 0 => KernelRoute::IPV6_DEFAULT_METRIC,
            _ => metric,
        };
        KernelRoute { key, metric, protocol, target, source: None, mtu: None }
    }

    pub fn with_source(self, source: Option<IpAddr>) -> KernelRoute {
        KernelRoute { source, ..self }
    }

    pub fn with_mtu(self, mtu: Option<u32>) -> KernelRoute {
        KernelRoute { mtu, ..self }
    }

    pub fn destination(&self) -> IpNet {
        self.key.destination
    }

    /// Returns the address of a route to a single address.
    pub fn single_address(&self) -> Option<IpAddr> {
        let net = self.destination();
        (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
    }

    /// Returns whether both routes have the same key: the kernel accepts only one of them unless it is asked to append.
    pub fn same_place(&self, other: &KernelRoute) -> bool {
        self.key == other.key && self.metric == other.metric
    }
}

/// A policy routing rule, and the protocol that identifies its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleEntry {
    pub rule: RoutingRule,
    pub protocol: u8,
}

/// Key of a permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeighbourKey {
    pub device: u32,
    pub address: IpAddr,
}

impl NeighbourKey {
    /// Returns the range of all keys of an interface.
    pub fn all_of(device: u32) -> std::ops::RangeInclusive<NeighbourKey> {
        let first = Ipv4Addr::UNSPECIFIED.into();
        let last = Ipv6Addr::from_bits(u128::MAX).into();
        NeighbourKey { device, address: first }..=NeighbourKey { device, address: last }
    }
}

/// An address for which an interface answers ARP or ND requests, and the protocol that identifies the writer of the
/// entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyEntry {
    pub key: NeighbourKey,
    pub protocol: u8,
}

/// Key of an entry in a VXLAN device's forwarding database, which maps a MAC to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FdbKey {
    pub device: u32,
    pub mac: [u8; 6],
}

/// Parameters of a token bucket filter, in bytes and bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    pub rate: u64,
    pub burst: u32,
    /// Maximum number of queued bytes.
    pub limit: u32,
    /// Rate of bursts, and the number of bytes that may be sent at once.
    pub peak: Option<(u64, u32)>,
}

impl TokenBucket {
    /// Returns whether the two are equal apart from rounding by the kernel. The kernel stores bursts as durations, which is
    /// inexact; they need no comparison because `limit` grows with the burst.
    pub fn is_like(&self, other: &TokenBucket) -> bool {
        self.rate == other.rate && self.limit == other.limit && self.peak_rate() == other.peak_rate()
    }

    fn peak_rate(&self) -> Option<u64> {
        self.peak.map(|(rate, _)| rate)
    }
}

/// Traffic control of all interfaces, by interface index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscState {
    /// Our root qdiscs.
    pub buckets: BTreeMap<u32, TokenBucket>,
    /// Interfaces with an ingress qdisc, and the device to which their packets are redirected.
    pub redirected: BTreeMap<u32, Option<u32>>,
}

/// The complete kernel state that the dataplane reads at once.
#[derive(Clone, Debug, Default)]
pub struct KernelSnapshot {
    pub links: Vec<KernelLink>,
    pub addresses: Vec<(u32, IpNet)>,
    pub routes: Vec<KernelRoute>,
    pub neighbours: Vec<(NeighbourKey, [u8; 6])>,
    /// Entries of VXLAN devices.
    pub fdb: Vec<(FdbKey, IpAddr)>,
    pub rules: Vec<RuleEntry>,
    pub proxies: Vec<ProxyEntry>,
    pub qdiscs: QdiscState,
}
