//! Access to rtnetlink, connection tracking, traffic control and WireGuard: reads, changes and events, in the types of
//! this crate.

mod conntrack;
mod decode;
mod encode;
mod proxies;
mod rules;
mod shaping;
mod tunnels;
mod types;
mod wireguard;
mod xdp;

pub use conntrack::{ConntrackCleanup, delete_denied_flows, forget_flows};
pub use decode::mac;
pub use types::{
    FdbKey, KernelLink, KernelRoute, KernelRouteTarget, KernelSnapshot, LinkSettings, NeighbourKey,
    ProxyEntry, QdiscState, RuleEntry, TokenBucket, VxlanAttributes,
};
pub use wireguard::{PrivateKey, WireguardChange, WireguardClient, WireguardPeerState, WireguardState};
pub use xdp::XdpPrograms;

use crate::error::{DataplaneError, DataplaneResult, kernel_error};
use crate::failure::KernelObject;
use crate::faults::KernelFaults;
use crate::netns::Netns;
use crate::socket_filter::ignore_ports;
use futures::StreamExt;
use nlink::netlink::neigh::Neighbor;
use nlink::netlink::netconf::NetconfDevice;
use nlink::netlink::{NetworkEvent, OwnedEventStream};
use nlink::{Connection, Route, RtnetlinkGroup};
use std::net::IpAddr;

/// Messages per batch: their acknowledgements must fit into the receive buffer.
const MAX_BATCH_MESSAGES: usize = 1000;
const REQUEST_BUFFER_BYTES: usize = 4 << 20;
/// Receive buffer for events that arrive while the engine is busy.
const EVENT_BUFFER_BYTES: usize = 32 << 20;

/// A connection for requests.
pub struct RtnetlinkClient {
    connection: Connection<Route>,
    faults: KernelFaults,
}

impl RtnetlinkClient {
    pub fn open(netns: &Netns) -> DataplaneResult<RtnetlinkClient> {
        let connection = netns.rtnetlink()?;
        connection.socket().set_rcvbuf(REQUEST_BUFFER_BYTES).map_err(kernel_error("netlink socket"))?;
        Ok(RtnetlinkClient { connection, faults: netns.faults().clone() })
    }

    pub async fn snapshot(&self) -> DataplaneResult<KernelSnapshot> {
        let links = self.links().await?;
        let addresses = self.addresses().await?;
        let neighbours = self.connection.get_neighbors().await.map_err(kernel_error("list of neighbours"))?;
        let permanent = neighbours.iter().filter_map(|message| {
            let (key, lladdr) = decode::neighbour(message)?;
            Some((key, lladdr?))
        });
        let neighbours = permanent.collect();
        let mut fdb = Vec::new();
        for link in links.iter().filter(|link| link.vxlan.is_some()) {
            fdb.extend(self.forwarding_entries(link.index).await?);
        }
        Ok(KernelSnapshot {
            links,
            addresses,
            routes: self.routes().await?,
            neighbours,
            fdb,
            rules: self.rules().await?,
            proxies: self.proxies().await?,
            qdiscs: self.qdiscs().await?,
        })
    }

    pub async fn links(&self) -> DataplaneResult<Vec<KernelLink>> {
        let messages = self.connection.get_links().await.map_err(kernel_error("list of links"))?;
        Ok(messages.iter().filter_map(decode::link).collect())
    }

    pub async fn addresses(&self) -> DataplaneResult<Vec<(u32, ipnet::IpNet)>> {
        let messages = self.connection.get_addresses().await.map_err(kernel_error("list of addresses"))?;
        Ok(messages.iter().filter_map(decode::address).collect())
    }

    pub async fn routes(&self) -> DataplaneResult<Vec<KernelRoute>> {
        let messages = self.connection.get_routes().await.map_err(kernel_error("list of routes"))?;
        Ok(messages.iter().filter_map(decode::route).collect())
    }

    /// Returns the current state of a link; `None` if it does not exist.
    pub async fn link(&self, index: u32) -> DataplaneResult<Option<KernelLink>> {
        match self.connection.get_link_by_index(index).await {
            Ok(message) => Ok(message.as_ref().and_then(decode::link)),
            Err(error) if error.is_not_found() || error.is_no_device() => Ok(None),
            Err(error) => Err(DataplaneError::kernel(KernelObject::interface(format!("#{index}")), &error)),
        }
    }

    pub async fn link_named(&self, name: &str) -> DataplaneResult<Option<KernelLink>> {
        match self.connection.get_link_by_name(name).await {
            Ok(message) => Ok(message.as_ref().and_then(decode::link)),
            Err(error) if error.is_not_found() || error.is_no_device() => Ok(None),
            Err(error) => Err(DataplaneError::kernel(KernelObject::interface(name), &error)),
        }
    }

    /// Returns the next hop towards `address` (the address itself on a direct link) and the interface.
    pub async fn lookup(&self, address: IpAddr) -> Result<(IpAddr, u32), RouteLookupError> {
        let route = self.connection.lookup_route(address).await.map_err(KernelRejection::from)?;
        let device = route.oif().ok_or(RouteLookupError::NoInterface)?;
        Ok((route.gateway().or(route.via()).copied().unwrap_or(address), device))
    }

    /// Adds routes that do not exist yet. Returns the failures by position.
    pub async fn add_routes(&self, entries: &[&KernelRoute]) -> Vec<(usize, KernelRejection)> {
        if !self.faults.is_empty() {
            return self.add_routes_with_faults(entries).await;
        }
        self.in_batches(entries, |batch, entry| batch.add_route(encode::RouteRequest(entry))).await
    }

    /// Returns the rejection that is injected for a route.
    fn check_faults(&self, entry: &KernelRoute) -> Result<(), KernelRejection> {
        Ok(self.faults.check(|| KernelObject::route(entry.key))?)
    }

    /// Adds routes one by one, except those for which faults are injected.
    async fn add_routes_with_faults(&self, entries: &[&KernelRoute]) -> Vec<(usize, KernelRejection)> {
        let mut failures = Vec::new();
        for (position, entry) in entries.iter().enumerate() {
            let mut added = self.check_faults(entry);
            if added.is_ok() {
                added = self.connection.add_route(encode::RouteRequest(entry)).await.map_err(Into::into);
            }
            failures.extend(added.err().map(|rejection| (position, rejection)));
        }
        failures
    }

    /// Deletes routes; a route that no longer exists is not a failure.
    pub async fn delete_routes(&self, entries: &[&KernelRoute]) -> Vec<(usize, KernelRejection)> {
        let mut failures =
            self.in_batches(entries, |batch, entry| batch.del_route(encode::RouteRequest(entry))).await;
        failures.retain(|(_, refusal)| refusal.kind != RejectionKind::Missing);
        failures
    }

    async fn in_batches(
        &self,
        entries: &[&KernelRoute],
        push: impl for<'b> Fn(nlink::netlink::Batch<'b>, &KernelRoute) -> nlink::netlink::Batch<'b>,
    ) -> Vec<(usize, KernelRejection)> {
        let mut failures = Vec::new();
        for (number, chunk) in entries.chunks(MAX_BATCH_MESSAGES).enumerate() {
            let batch = chunk.iter().fold(self.connection.batch(), |batch, entry| push(batch, entry));
            let first = number * MAX_BATCH_MESSAGES;
            match batch.execute().await {
                Ok(results) => {
                    let errors = results.errors();
                    failures.extend(errors.map(|(position, error)| (first + position, error.into())));
                }
                Err(error) => {
                    let refusal = KernelRejection::from(&error);
                    failures.extend((first..first + chunk.len()).map(|position| (position, refusal.clone())));
                }
            }
        }
        failures
    }

    pub async fn replace_route(&self, entry: &KernelRoute) -> Result<(), KernelRejection> {
        self.check_faults(entry)?;
        Ok(self.connection.replace_route(encode::RouteRequest(entry)).await?)
    }

    /// Writes a permanent neighbour entry. `interface` is the name of the key's device.
    pub async fn set_neighbour(
        &self,
        key: NeighbourKey,
        interface: &str,
        mac: [u8; 6],
    ) -> Result<(), KernelRejection> {
        self.faults
            .check(|| KernelObject::Neighbour { address: key.address, interface: interface.to_owned() })?;
        let entry = Neighbor::with_index(key.device, key.address).lladdr(mac).permanent();
        Ok(self.connection.replace_neighbor(entry).await?)
    }

    pub async fn delete_neighbour(&self, key: NeighbourKey) -> Result<(), KernelRejection> {
        Ok(self.connection.del_neighbor(Neighbor::with_index(key.device, key.address)).await?)
    }
}

/// An error with which the kernel rejects one operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct KernelRejection {
    pub kind: RejectionKind,
    pub errno: Option<i32>,
    pub reason: String,
}

/// The reason why the kernel has no route to an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteLookupError {
    #[error("{0}")]
    Rejected(#[from] KernelRejection),
    #[error("the route to it has no interface")]
    NoInterface,
}

/// Ignores a rejection of this kind, after which the object is as desired.
pub fn tolerate(kind: RejectionKind, result: Result<(), KernelRejection>) -> Result<(), KernelRejection> {
    match result {
        Err(rejection) if rejection.kind == kind => Ok(()),
        other => other,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// An object with the same key already exists.
    Exists,
    /// The object or its interface does not exist.
    Missing,
    /// The kernel does not support the operation.
    Unsupported,
    Other,
}

impl From<&nlink::Error> for KernelRejection {
    fn from(error: &nlink::Error) -> KernelRejection {
        const ESRCH: i32 = 3;
        const EOPNOTSUPP: i32 = 95;
        let errno = error.errno().map(i32::abs);
        let kind = if error.is_already_exists() {
            RejectionKind::Exists
        } else if error.is_not_found() || error.is_no_device() || errno == Some(ESRCH) {
            RejectionKind::Missing
        } else if errno == Some(EOPNOTSUPP) {
            RejectionKind::Unsupported
        } else {
            RejectionKind::Other
        };
        KernelRejection { kind, errno, reason: error.to_string() }
    }
}

impl From<nlink::Error> for KernelRejection {
    fn from(error: nlink::Error) -> KernelRejection {
        KernelRejection::from(&error)
    }
}

/// A change reported by the kernel.
#[derive(Debug)]
pub enum KernelEvent {
    /// The link has to be read again; `down` if it lost its IPv4 routes.
    Link {
        index: u32,
        down: bool,
    },
    Address {
        device: u32,
        net: ipnet::IpNet,
        present: bool,
    },
    Route {
        entry: KernelRoute,
        present: bool,
    },
    Neighbour {
        key: NeighbourKey,
        mac: Option<[u8; 6]>,
    },
    ForwardingEntry {
        key: FdbKey,
        node: IpAddr,
        present: bool,
    },
    /// Policy routing rules were added or removed.
    RoutingRules,
    /// Queueing disciplines or filters were added or removed.
    TrafficControl,
    /// Settings for all interfaces, or defaults for new interfaces, have changed.
    GlobalSettings,
    /// Events were lost because the receive buffer was full.
    Overrun,
}

pub struct KernelEventStream {
    stream: OwnedEventStream<Route>,
}

impl KernelEventStream {
    /// Subscribes to events. Changes made through `own` are filtered out.
    pub async fn open(netns: &Netns, own: &RtnetlinkClient) -> DataplaneResult<KernelEventStream> {
        let connection = netns.rtnetlink()?;
        let filter = ignore_ports(&[own.connection.socket().pid()]);
        let prepared = connection.socket().set_rcvbuf(EVENT_BUFFER_BYTES);
        let prepared = prepared.and_then(|()| connection.socket().attach_filter(&filter));
        let subscribed = prepared.and_then(|()| {
            connection.subscribe(&[
                RtnetlinkGroup::Link,
                RtnetlinkGroup::Ipv4Addr,
                RtnetlinkGroup::Ipv6Addr,
                RtnetlinkGroup::Ipv4Route,
                RtnetlinkGroup::Ipv6Route,
                RtnetlinkGroup::Ipv4Rule,
                RtnetlinkGroup::Ipv6Rule,
                RtnetlinkGroup::Neigh,
                RtnetlinkGroup::Tc,
                RtnetlinkGroup::Ipv4Netconf,
                RtnetlinkGroup::Ipv6Netconf,
            ])
        });
        subscribed.map_err(|error| DataplaneError::kernel("netlink events", &error))?;
        Ok(KernelEventStream { stream: connection.into_events().await })
    }

    /// Returns the next event of interest; an error ends the stream.
    pub async fn next(&mut self) -> DataplaneResult<KernelEvent> {
        loop {
            match self.stream.next().await {
                Some(Ok(event)) => {
                    if let Some(event) = translate(&event) {
                        return Ok(event);
                    }
                }
                Some(Err(error)) if error.is_no_buffer_space() => return Ok(KernelEvent::Overrun),
                Some(Err(error)) => return Err(DataplaneError::kernel("netlink events", &error)),
                None => return Err(DataplaneError::Stopped),
            }
        }
    }
}

fn translate(event: &NetworkEvent) -> Option<KernelEvent> {
    match event {
        NetworkEvent::NewLink(message) => {
            Some(KernelEvent::Link { index: message.ifindex(), down: decode::is_disabled(message) })
        }
        NetworkEvent::DelLink(message) => Some(KernelEvent::Link { index: message.ifindex(), down: false }),
        NetworkEvent::NewAddress(message) | NetworkEvent::DelAddress(message) => {
            let (device, net) = decode::address(message)?;
            Some(KernelEvent::Address { device, net, present: event.is_new() })
        }
        NetworkEvent::NewRoute(message) | NetworkEvent::DelRoute(message) => {
            Some(KernelEvent::Route { entry: decode::route(message)?, present: event.is_new() })
        }
        NetworkEvent::NewNeighbor(message) => {
            let (key, mac) = decode::neighbour(message)?;
            Some(KernelEvent::Neighbour { key, mac })
        }
        NetworkEvent::DelNeighbor(message) => {
            let (key, _) = decode::neighbour(message)?;
            Some(KernelEvent::Neighbour { key, mac: None })
        }
        NetworkEvent::NewFdb(entry) | NetworkEvent::DelFdb(entry) => {
            let (key, node) = decode::forwarding(entry)?;
            Some(KernelEvent::ForwardingEntry { key, node, present: event.is_new() })
        }
        NetworkEvent::NewRule(_) | NetworkEvent::DelRule(_) => Some(KernelEvent::RoutingRules),
        NetworkEvent::NewQdisc(_)
        | NetworkEvent::DelQdisc(_)
        | NetworkEvent::NewFilter(_)
        | NetworkEvent::DelFilter(_) => Some(KernelEvent::TrafficControl),
        NetworkEvent::NewNetconf(message) => match message.device()? {
            NetconfDevice::Index(index) => Some(KernelEvent::Link { index, down: false }),
            _ => Some(KernelEvent::GlobalSettings),
        },
        _ => None,
    }
}
