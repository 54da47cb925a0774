//! Reads the traffic counters of WireGuard devices from the kernel on request.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::kernel::WireguardClient;
use crate::netns::Netns;
use std::net::SocketAddr;
use std::time::SystemTime;

/// Traffic of a device by peer. Keys are in base64.
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
    /// Time of the last handshake; `None` if there was none.
    pub handshake: Option<SystemTime>,
    /// Sent and received bytes.
    pub sent: u64,
    pub received: u64,
}

impl WireguardTraffic {
    pub async fn read(netns: &Netns, device: &str) -> DataplaneResult<WireguardTraffic> {
        let read = WireguardClient::open(netns).await?.traffic(device).await;
        read.map_err(|refusal| DataplaneError::Kernel {
            object: KernelObject::interface(device),
            reason: refusal.reason,
        })
    }
}
