//! Reads and changes WireGuard devices: keys, peers and their allowed IPs.

use super::KernelRejection;
use crate::error::DataplaneResult;
use crate::netns::Netns;
use crate::wireguard_traffic::{PeerTraffic, WireguardTraffic};
use ipnet::IpNet;
use nlink::Connection;
use nlink::netlink::Wireguard as Family;
use nlink::netlink::genl::wireguard::{
    AllowedIp, PublicKey, WgDevice, WgDeviceBuilder, WgPeer, WgPeerBuilder,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

pub use nlink::netlink::genl::wireguard::PrivateKey;

type WireguardResult<T = ()> = Result<T, KernelRejection>;

/// State of a device in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireguardState {
    pub private_key: Option<PrivateKey>,
    pub public_key: Option<PublicKey>,
    pub port: u16,
    pub mark: u32,
    /// Peers by public key.
    pub peers: BTreeMap<[u8; 32], WireguardPeerState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireguardPeerState {
    pub endpoint: Option<SocketAddr>,
    /// In seconds; 0 disables keepalives.
    pub keepalive: u16,
    pub allowed: BTreeSet<IpNet>,
}

/// A change to a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireguardChange {
    pub private_key: Option<PrivateKey>,
    pub port: Option<u16>,
    pub mark: Option<u32>,
    /// New and changed peers. Their allowed IPs are added to the existing ones.
    pub set: BTreeMap<[u8; 32], WireguardPeerState>,
    /// The peers in `set` that are new.
    pub new: BTreeSet<[u8; 32]>,
    /// Peers with too many allowed IPs, each with the complete list that replaces theirs.
    pub narrowed: BTreeMap<[u8; 32], BTreeSet<IpNet>>,
    pub removed: BTreeSet<[u8; 32]>,
}

impl WireguardChange {
    /// Returns whether the change removes peers or allowed IPs.
    pub fn is_removal(&self) -> bool {
        !self.removed.is_empty() || !self.narrowed.is_empty()
    }
}

impl WireguardChange {
    /// Returns whether a peer is new and has no keepalive. A keepalive is sent immediately when it is enabled and starts the
    /// handshake. So the first packet need not wait for the handshake, and a peer that has changed its key is reachable
    /// again.
    fn is_greeted(&self, key: &[u8; 32]) -> bool {
        self.new.contains(key) && self.set.get(key).is_some_and(|peer| peer.keepalive == 0)
    }

    fn configure(&self, mut builder: WgDeviceBuilder) -> WgDeviceBuilder {
        if let Some(key) = &self.private_key {
            builder = builder.private_key(key.clone().into());
        }
        if let Some(port) = self.port {
            builder = builder.listen_port(port);
        }
        if let Some(mark) = self.mark {
            builder = builder.fwmark(mark);
        }
        let peers = self.set.iter().map(|(key, peer)| {
            set(*key, peer).persistent_keepalive(if self.is_greeted(key) { 1 } else { peer.keepalive })
        });
        let narrowed = self.narrowed.iter().map(|(key, allowed)| {
            let peer = WgPeerBuilder::new(*key).update_only().replace_allowed_ips();
            peer.allowed_ips(allowed.iter().map(encode_allowed_ip))
        });
        let removed = self.removed.iter().map(|key| WgPeerBuilder::new(*key).remove());
        peers.chain(narrowed).chain(removed).fold(builder, WgDeviceBuilder::peer)
    }
}

/// A connection for WireGuard requests. It is opened when it is first needed, because opening it makes the kernel load
/// the WireGuard module.
pub struct WireguardClient {
    connection: Connection<Family>,
}

impl WireguardClient {
    pub async fn open(netns: &Netns) -> DataplaneResult<WireguardClient> {
        Ok(WireguardClient { connection: netns.wireguard().await? })
    }

    pub async fn read(&self, device: &str) -> WireguardResult<WireguardState> {
        Ok(state(self.connection.get_device_by_name(device).await?))
    }

    /// Returns the traffic counters of a device and its peers.
    pub async fn traffic(&self, device: &str) -> WireguardResult<WireguardTraffic> {
        Ok(traffic(device, self.connection.get_device_by_name(device).await?))
    }

    pub async fn change(&self, device: &str, change: &WireguardChange) -> WireguardResult {
        self.connection.set_device_by_name(device, |builder| change.configure(builder)).await?;
        if change.new.iter().any(|key| change.is_greeted(key)) {
            let greeted = change.new.iter().filter(|key| change.is_greeted(key));
            let peers = greeted.map(|key| WgPeerBuilder::new(*key).update_only().persistent_keepalive(0));
            let peers: Vec<WgPeerBuilder> = peers.collect();
            let silence = self
                .connection
                .set_device_by_name(device, |builder| peers.into_iter().fold(builder, WgDeviceBuilder::peer));
            silence.await?;
        }
        Ok(())
    }
}

fn set(key: [u8; 32], peer: &WireguardPeerState) -> WgPeerBuilder {
    let builder = WgPeerBuilder::new(key).allowed_ips(peer.allowed.iter().map(encode_allowed_ip));
    match peer.endpoint {
        Some(endpoint) => builder.endpoint(endpoint),
        None => builder,
    }
}

fn encode_allowed_ip(net: &IpNet) -> AllowedIp {
    match net {
        IpNet::V4(net) => AllowedIp::v4(net.network(), net.prefix_len()),
        IpNet::V6(net) => AllowedIp::v6(net.network(), net.prefix_len()),
    }
}

fn traffic(name: &str, device: WgDevice) -> WireguardTraffic {
    let key = |key: [u8; 32]| PublicKey::from_bytes(key).to_string();
    let peer = |peer: WgPeer| PeerTraffic {
        public_key: key(peer.public_key),
        endpoint: peer.endpoint,
        handshake: peer.last_handshake,
        sent: peer.tx_bytes,
        received: peer.rx_bytes,
    };
    WireguardTraffic {
        device: name.to_owned(),
        public_key: device.public_key.map(key).unwrap_or_default(),
        port: device.listen_port.unwrap_or_default(),
        peers: device.peers.into_iter().map(peer).collect(),
    }
}

fn state(device: WgDevice) -> WireguardState {
    let peer = |peer: WgPeer| {
        let allowed = peer.allowed_ips.iter().filter_map(|ip| IpNet::new(ip.addr, ip.cidr).ok()).collect();
        let keepalive = peer.persistent_keepalive.unwrap_or_default();
        (peer.public_key, WireguardPeerState { endpoint: peer.endpoint, keepalive, allowed })
    };
    WireguardState {
        private_key: device.private_key.map(PrivateKey::from_bytes),
        public_key: device.public_key.map(PublicKey::from_bytes),
        port: device.listen_port.unwrap_or_default(),
        mark: device.fwmark.unwrap_or_default(),
        peers: device.peers.into_iter().map(peer).collect(),
    }
}
