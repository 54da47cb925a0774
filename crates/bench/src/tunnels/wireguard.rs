//! Configures WireGuard between two nodes over netlink, since the `wg` tool is not installed everywhere.

use crate::namespace::BenchResult;
use ipnet::IpNet;
use nlink::Connection;
use nlink::netlink::Wireguard;
use nlink::netlink::genl::wireguard::{AllowedIp, WgDeviceBuilder, WgPeerBuilder};
use nlink::netlink::namespace::Netns;
use std::net::SocketAddr;
use std::path::PathBuf;

/// One end of the tunnel: its namespace, its endpoint address, and its allowed IPs.
pub struct WireguardTunnelEnd {
    pub netns: PathBuf,
    pub endpoint: SocketAddr,
    pub allowed: IpNet,
}

/// Sets the keys of both devices and makes each the peer of the other.
pub async fn connect(device: &str, ends: &[WireguardTunnelEnd; 2]) -> BenchResult<()> {
    let mut keys = Vec::new();
    let mut connections = Vec::new();
    for (number, end) in (1_u8..).zip(ends) {
        let netns = Netns::from_path(&end.netns)?;
        let connection: Connection<Wireguard> = Connection::new_in_async(&netns).await?;
        let configure =
            |builder: WgDeviceBuilder| builder.private_key([number; 32]).listen_port(end.endpoint.port());
        connection.set_device_by_name(device, configure).await?;
        let made = connection.get_device_by_name(device).await?;
        keys.push(made.public_key.ok_or("the device has no key")?);
        connections.push(connection);
    }
    for (own, other) in [(0, 1), (1, 0)] {
        let WireguardTunnelEnd { endpoint, allowed, .. } = &ends[other];
        let allowed = match allowed {
            IpNet::V4(net) => AllowedIp::v4(net.network(), net.prefix_len()),
            IpNet::V6(net) => AllowedIp::v6(net.network(), net.prefix_len()),
        };
        let peer = WgPeerBuilder::new(keys[other]).endpoint(*endpoint).allowed_ips([allowed]);
        connections[own].set_device_by_name(device, |builder: WgDeviceBuilder| builder.peer(peer)).await?;
    }
    Ok(())
}
