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

pub(crate) use conntrack::{ConntrackCleanup, delete_denied_flows, forget_flows};
pub(crate) use decode::mac;
pub(crate) use types::{
    Conf, Entry, FdbKey, Link, NeighbourKey, ProxyEntry, Qdiscs, RuleEntry, Snapshot, Target, TokenBucket,
    Vxlan,
};
pub(crate) use wireguard::{PeerState, PrivateKey, Wireguard, WireguardChange, WireguardState};
pub(crate) use xdp::XdpPrograms;

use crate::error::{Error, Result};
use crate::failure::KernelObject;
use crate::faults::Faults;
use crate::netns::Netns;
use crate::socket_filter::ignore_ports;
use futures::StreamExt;
use nlink::netlink::neigh::Neighbor;
use nlink::netlink::netconf::NetconfDevice;
use nlink::netlink::{NetworkEvent, OwnedEventStream};
use nlink::{Connection, Route, RtnetlinkGroup};
use std::net::IpAddr;

/// Messages per batch: their acknowledgements must fit into the receive buffer.
const BATCH: usize = 1000;
const REQUEST_BUFFER: usize = 4 << 20;
/// Receive buffer for events that arrive while the engine is busy.
const EVENT_BUFFER: usize = 32 << 20;

/// A connection for requests.
pub(crate) struct Kernel {
    connection: Connection<Route>,
    faults: Faults,
}

impl Kernel {
    pub fn open(netns: &Netns) -> Result<Kernel> {
        let connection = netns.rtnetlink()?;
        connection
            .socket()
            .set_rcvbuf(REQUEST_BUFFER)
            .map_err(|error| Error::kernel("netlink socket", &error))?;
        Ok(Kernel { connection, faults: netns.faults().clone() })
    }

    pub async fn snapshot(&self) -> Result<Snapshot> {
        let (links, addresses) = (self.links().await?, self.addresses().await?);
        let neighbours = self
            .connection
            .get_neighbors()
            .await
            .map_err(|error| Error::kernel("list of neighbours", &error))?
            .iter()
            .filter_map(|message| {
                let (key, lladdr) = decode::neighbour(message)?;
                Some((key, lladdr?))
            })
            .collect();
        let mut fdb = Vec::new();
        for link in links.iter().filter(|link| link.vxlan.is_some()) {
            fdb.extend(self.forwarding_entries(link.index).await?);
        }
        let (routes, rules, qdiscs) = (self.routes().await?, self.rules().await?, self.qdiscs().await?);
        let proxies = self.proxies().await?;
        Ok(Snapshot { links, addresses, routes, neighbours, fdb, rules, proxies, qdiscs })
    }

    pub async fn links(&self) -> Result<Vec<Link>> {
        let messages =
            self.connection.get_links().await.map_err(|error| Error::kernel("list of links", &error))?;
        Ok(messages.iter().filter_map(decode::link).collect())
    }

    pub async fn addresses(&self) -> Result<Vec<(u32, ipnet::IpNet)>> {
        let messages = self
            .connection
            .get_addresses()
            .await
            .map_err(|error| Error::kernel("list of addresses", &error))?;
        Ok(messages.iter().filter_map(decode::address).collect())
    }

    pub async fn routes(&self) -> Result<Vec<Entry>> {
        let messages =
            self.connection.get_routes().await.map_err(|error| Error::kernel("list of routes", &error))?;
        Ok(messages.iter().filter_map(decode::route).collect())
    }

    /// Returns the current state of a link; `None` if it does not exist.
    pub async fn link(&self, index: u32) -> Result<Option<Link>> {
        match self.connection.get_link_by_index(index).await {
            Ok(message) => Ok(message.as_ref().and_then(decode::link)),
            Err(error) if error.is_not_found() || error.is_no_device() => Ok(None),
            Err(error) => Err(Error::kernel(KernelObject::interface(format!("#{index}")), &error)),
        }
    }

    pub async fn link_named(&self, name: &str) -> Result<Option<Link>> {
        match self.connection.get_link_by_name(name).await {
            Ok(message) => Ok(message.as_ref().and_then(decode::link)),
            Err(error) if error.is_not_found() || error.is_no_device() => Ok(None),
            Err(error) => Err(Error::kernel(KernelObject::interface(name), &error)),
        }
    }

    /// Returns the next hop towards `address` (the address itself on a direct link) and the interface.
    pub async fn lookup(&self, address: IpAddr) -> std::result::Result<(IpAddr, u32), String> {
        let route = self.connection.lookup_route(address).await.map_err(|error| error.to_string())?;
        let device = route.oif().ok_or("the route to it has no interface")?;
        Ok((route.gateway().or(route.via()).copied().unwrap_or(address), device))
    }

    /// Adds routes that do not exist yet. Returns the failures by position.
    pub async fn add_routes(&self, entries: &[&Entry]) -> Vec<(usize, Refusal)> {
        if !self.faults.is_empty() {
            return self.add_routes_but_refused(entries).await;
        }
        self.in_batches(entries, |batch, entry| batch.add_route(encode::Wire(entry))).await
    }

    fn refuses_route(&self, entry: &Entry) -> std::result::Result<(), Refusal> {
        Ok(self.faults.check(|| KernelObject::route(entry.key))?)
    }

    /// Adds the routes that injected faults let through.
    async fn add_routes_but_refused(&self, entries: &[&Entry]) -> Vec<(usize, Refusal)> {
        let (mut failures, mut positions, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for (position, entry) in entries.iter().enumerate() {
            match self.refuses_route(entry) {
                Err(refusal) => failures.push((position, refusal)),
                Ok(()) => {
                    positions.push(position);
                    rest.push(*entry);
                }
            }
        }
        let others = self.in_batches(&rest, |batch, entry| batch.add_route(encode::Wire(entry))).await;
        let at = |number: usize| positions.get(number).copied().unwrap_or_default();
        failures.extend(others.into_iter().map(|(number, refusal)| (at(number), refusal)));
        failures
    }

    /// Deletes routes; a route that no longer exists is not a failure.
    pub async fn delete_routes(&self, entries: &[&Entry]) -> Vec<(usize, Refusal)> {
        let mut failures =
            self.in_batches(entries, |batch, entry| batch.del_route(encode::Wire(entry))).await;
        failures.retain(|(_, refusal)| refusal.kind != RefusalKind::Missing);
        failures
    }

    async fn in_batches(
        &self,
        entries: &[&Entry],
        push: impl for<'b> Fn(nlink::netlink::Batch<'b>, &Entry) -> nlink::netlink::Batch<'b>,
    ) -> Vec<(usize, Refusal)> {
        let mut failures = Vec::new();
        for (number, chunk) in entries.chunks(BATCH).enumerate() {
            let batch = chunk.iter().fold(self.connection.batch(), |batch, entry| push(batch, entry));
            let first = number * BATCH;
            match batch.execute().await {
                Ok(results) => {
                    let errors = results.errors();
                    failures.extend(errors.map(|(position, error)| (first + position, error.into())));
                }
                Err(error) => {
                    let refusal = Refusal::from(&error);
                    failures.extend((first..first + chunk.len()).map(|position| (position, refusal.clone())));
                }
            }
        }
        failures
    }

    pub async fn replace_route(&self, entry: &Entry) -> std::result::Result<(), Refusal> {
        self.refuses_route(entry)?;
        Ok(self.connection.replace_route(encode::Wire(entry)).await?)
    }

    /// Writes a permanent neighbour entry. `interface` is the name of the key's device.
    pub async fn set_neighbour(
        &self,
        key: NeighbourKey,
        interface: &str,
        mac: [u8; 6],
    ) -> std::result::Result<(), Refusal> {
        let interface = || interface.to_owned();
        self.faults.check(|| KernelObject::Neighbour { address: key.address, interface: interface() })?;
        let entry = Neighbor::with_index(key.device, key.address).lladdr(mac).permanent();
        Ok(self.connection.replace_neighbor(entry).await?)
    }

    pub async fn delete_neighbour(&self, key: NeighbourKey) -> std::result::Result<(), Refusal> {
        Ok(self.connection.del_neighbor(Neighbor::with_index(key.device, key.address)).await?)
    }
}

/// An error with which the kernel rejects one operation.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub kind: RefusalKind,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// An object with the same key already exists.
    Exists,
    /// The object or its interface does not exist.
    Missing,
    /// The kernel does not support the operation.
    Unsupported,
    Other,
}

impl From<&nlink::Error> for Refusal {
    fn from(error: &nlink::Error) -> Refusal {
        const ESRCH: i32 = 3;
        const EOPNOTSUPP: i32 = 95;
        let missing = error.is_not_found()
            || error.is_no_device()
            || error.errno().is_some_and(|errno| errno.abs() == ESRCH);
        let kind = match () {
            () if error.is_already_exists() => RefusalKind::Exists,
            () if missing => RefusalKind::Missing,
            () if error.errno().is_some_and(|errno| errno.abs() == EOPNOTSUPP) => RefusalKind::Unsupported,
            () => RefusalKind::Other,
        };
        Refusal { kind, reason: error.to_string() }
    }
}

impl From<nlink::Error> for Refusal {
    fn from(error: nlink::Error) -> Refusal {
        Refusal::from(&error)
    }
}

/// A change reported by the kernel.
#[derive(Debug)]
pub(crate) enum Event {
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
        entry: Entry,
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

pub(crate) struct Events {
    stream: OwnedEventStream<Route>,
}

impl Events {
    /// Subscribes to events. Changes made through `own` are filtered out.
    pub async fn open(netns: &Netns, own: &Kernel) -> Result<Events> {
        let connection = netns.rtnetlink()?;
        let filter = ignore_ports(&[own.connection.socket().pid()]);
        let prepared = connection.socket().set_rcvbuf(EVENT_BUFFER);
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
        subscribed.map_err(|error| Error::kernel("netlink events", &error))?;
        Ok(Events { stream: connection.into_events().await })
    }

    /// Returns the next event of interest; an error ends the stream.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            match self.stream.next().await {
                Some(Ok(event)) => {
                    if let Some(event) = translate(&event) {
                        return Ok(event);
                    }
                }
                Some(Err(error)) if error.is_no_buffer_space() => return Ok(Event::Overrun),
                Some(Err(error)) => return Err(Error::kernel("netlink events", &error)),
                None => return Err(Error::Stopped),
            }
        }
    }
}

fn translate(event: &NetworkEvent) -> Option<Event> {
    match event {
        NetworkEvent::NewLink(message) => {
            Some(Event::Link { index: message.ifindex(), down: decode::is_disabled(message) })
        }
        NetworkEvent::DelLink(message) => Some(Event::Link { index: message.ifindex(), down: false }),
        NetworkEvent::NewAddress(message) | NetworkEvent::DelAddress(message) => {
            let (device, net) = decode::address(message)?;
            Some(Event::Address { device, net, present: event.is_new() })
        }
        NetworkEvent::NewRoute(message) | NetworkEvent::DelRoute(message) => {
            Some(Event::Route { entry: decode::route(message)?, present: event.is_new() })
        }
        NetworkEvent::NewNeighbor(message) => {
            let (key, mac) = decode::neighbour(message)?;
            Some(Event::Neighbour { key, mac })
        }
        NetworkEvent::DelNeighbor(message) => {
            let (key, _) = decode::neighbour(message)?;
            Some(Event::Neighbour { key, mac: None })
        }
        NetworkEvent::NewFdb(entry) | NetworkEvent::DelFdb(entry) => {
            let (key, node) = decode::forwarding(entry)?;
            Some(Event::ForwardingEntry { key, node, present: event.is_new() })
        }
        NetworkEvent::NewRule(_) | NetworkEvent::DelRule(_) => Some(Event::RoutingRules),
        NetworkEvent::NewQdisc(_)
        | NetworkEvent::DelQdisc(_)
        | NetworkEvent::NewFilter(_)
        | NetworkEvent::DelFilter(_) => Some(Event::TrafficControl),
        NetworkEvent::NewNetconf(message) => match message.device()? {
            NetconfDevice::Index(index) => Some(Event::Link { index, down: false }),
            _ => Some(Event::GlobalSettings),
        },
        _ => None,
    }
}
