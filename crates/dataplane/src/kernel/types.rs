//! Links and routes as the kernel holds them, reduced to what the dataplane decides by.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tortie_plan::{RouteKey, RoutingRule};

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub index: u32,
    pub name: String,
    /// Set up by an administrator (IFF_UP).
    pub enabled: bool,
    /// Able to pass packets (IFF_RUNNING).
    pub running: bool,
    pub mtu: u32,
    pub kind: Option<String>,
    /// The interface that it is a part of: a bridge, for one.
    pub master: Option<u32>,
    pub mac: Option<[u8; 6]>,
    pub vxlan: Option<Vxlan>,
    pub conf: Conf,
}

/// What makes a VXLAN device the one it is; none of it can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vxlan {
    pub vni: u32,
    pub port: u16,
    pub local: Option<IpAddr>,
    /// The index of the interface that carries its packets.
    pub parent: Option<u32>,
    /// It finds out by itself where MACs are.
    pub learning: bool,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.enabled && self.running
    }

    pub fn is_wireguard(&self) -> bool {
        self.kind.as_deref() == Some("wireguard")
    }

    /// Whether packets leave it wrapped, by another interface.
    pub fn is_tunnel(&self) -> bool {
        let kinds = ["ip6gre", "ip6tnl", "ipip", "gre", "geneve", "sit", "vxlan", "wireguard"];
        self.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
    }
}

/// The per-interface settings that a link message carries; `None` where the kernel says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conf {
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
pub(crate) struct Entry {
    pub key: RouteKey,
    pub metric: u32,
    pub protocol: u8,
    pub target: Target,
    /// The own address for what the host sends this way.
    pub source: Option<IpAddr>,
    /// The largest packet that it takes, where that is not left to the interface.
    pub mtu: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    Blackhole,
    /// Look in the next table.
    Throw,
    /// Straight out of an interface, scope link.
    Device(u32),
    /// Through a next hop on an interface, taken to be on that link whatever its addresses say.
    Gateway {
        via: IpAddr,
        device: u32,
    },
    /// Spread over several next hops, which are sorted.
    Multipath(Vec<(IpAddr, u32)>),
    /// Any other shape; never one of ours, but possibly in our way.
    Other {
        device: Option<u32>,
    },
}

impl Target {
    /// Of one or several next hops.
    pub fn gateways(mut hops: Vec<(IpAddr, u32)>) -> Option<Target> {
        hops.sort_unstable();
        hops.dedup();
        match hops[..] {
            [] => None,
            [(via, device)] => Some(Target::Gateway { via, device }),
            _ => Some(Target::Multipath(hops)),
        }
    }

    /// The one interface it leads to.
    pub fn device(&self) -> Option<u32> {
        match self {
            Target::Blackhole | Target::Throw | Target::Multipath(_) => None,
            Target::Device(device) | Target::Gateway { device, .. } => Some(*device),
            Target::Other { device } => *device,
        }
    }

    pub fn uses(&self, device: u32) -> bool {
        match self {
            Target::Multipath(hops) => hops.iter().any(|(_, hop)| *hop == device),
            other => other.device() == Some(device),
        }
    }
}

impl Entry {
    /// The kernel turns metric 0 of an IPv6 route into this.
    const IPV6_DEFAULT_METRIC: u32 = 1024;

    pub fn new(key: impl Into<RouteKey>, metric: u32, protocol: u8, target: Target) -> Entry {
        let key = key.into();
        let metric = match key.destination {
            IpNet::V6(_) if metric == 0 => Entry::IPV6_DEFAULT_METRIC,
            _ => metric,
        };
        Entry { key, metric, protocol, target, source: None, mtu: None }
    }

    pub fn with_source(self, source: Option<IpAddr>) -> Entry {
        Entry { source, ..self }
    }

    pub fn with_mtu(self, mtu: Option<u32>) -> Entry {
        Entry { mtu, ..self }
    }

    pub fn destination(&self) -> IpNet {
        self.key.destination
    }

    /// Whether the kernel lets only one of the two exist unless asked to append.
    pub fn same_place(&self, other: &Entry) -> bool {
        self.key == other.key && self.metric == other.metric
    }
}

/// A rule of policy routing, and who wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleEntry {
    pub rule: RoutingRule,
    pub protocol: u8,
}

/// A permanent neighbour entry's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NeighbourKey {
    pub device: u32,
    pub address: IpAddr,
}

impl NeighbourKey {
    /// Every key of an interface.
    pub fn all_of(device: u32) -> std::ops::RangeInclusive<NeighbourKey> {
        let key = |address: IpAddr| NeighbourKey { device, address };
        key(Ipv4Addr::UNSPECIFIED.into())..=key(Ipv6Addr::from_bits(u128::MAX).into())
    }
}

/// An address that an interface answers for, and who wrote that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProxyEntry {
    pub key: NeighbourKey,
    pub protocol: u8,
}

/// An entry of a VXLAN device's forwarding database: behind which node a MAC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FdbKey {
    pub device: u32,
    pub mac: [u8; 6],
}

impl FdbKey {
    /// Every key of an interface.
    pub fn all_of(device: u32) -> std::ops::RangeInclusive<FdbKey> {
        FdbKey { device, mac: [0; 6] }..=FdbKey { device, mac: [0xff; 6] }
    }
}

/// A bucket of tokens, in bytes and bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    pub rate: u64,
    pub burst: u32,
    /// How much may wait.
    pub limit: u32,
    /// The rate of bursts, and what may be sent at once.
    pub peak: Option<(u64, u32)>,
}

impl TokenBucket {
    /// Whether the kernel may tell this of the other. It keeps bursts as spans of time, and not exactly; but what may wait
    /// is more by as much.
    pub fn is_like(&self, other: &TokenBucket) -> bool {
        let peak = |bucket: &TokenBucket| bucket.peak.map(|(rate, _)| rate);
        (self.rate, self.limit, peak(self)) == (other.rate, other.limit, peak(other))
    }
}

/// Traffic control of all interfaces, by their index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Qdiscs {
    /// Those that are ours, at the root.
    pub buckets: BTreeMap<u32, TokenBucket>,
    /// Interfaces where something is done to what arrives, and where it is redirected to.
    pub redirected: BTreeMap<u32, Option<u32>>,
}

/// Everything one look at the kernel gives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub links: Vec<Link>,
    pub addresses: Vec<(u32, IpNet)>,
    pub routes: Vec<Entry>,
    pub neighbours: Vec<(NeighbourKey, [u8; 6])>,
    /// Of VXLAN devices.
    pub fdb: Vec<(FdbKey, IpAddr)>,
    pub rules: Vec<RuleEntry>,
    pub proxies: Vec<ProxyEntry>,
    pub qdiscs: Qdiscs,
}
