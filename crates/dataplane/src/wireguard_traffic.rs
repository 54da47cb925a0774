//! What WireGuard devices have carried. The kernel counts; it is read when somebody asks.

use crate::error::{Error, Result};
use crate::failure::KernelObject;
use crate::kernel::Wireguard;
use crate::netns::Netns;
use std::net::SocketAddr;
use std::time::SystemTime;

/// Of a device, by its peers. Keys are written as people write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardTraffic {
    pub device: String,
    pub public_key: String,
    pub port: u16,
    pub peers: Vec<PeerTraffic>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTraffic {
    pub public_key: String,
    pub endpoint: Option<SocketAddr>,
    /// None if there never was one.
    pub handshake: Option<SystemTime>,
    /// In bytes, both.
    pub sent: u64,
    pub received: u64,
}

impl WireguardTraffic {
    pub async fn read(netns: &Netns, device: &str) -> Result<WireguardTraffic> {
        let read = Wireguard::open(netns).await?.traffic(device).await;
        read.map_err(|refusal| Error::Kernel {
            object: KernelObject::interface(device),
            reason: refusal.reason,
        })
    }
}
