//! Looks up how the host reaches an address with its current routes, for programs that describe routes.

use crate::error::DataplaneResult;
use crate::kernel::RtnetlinkClient;
use crate::netns::Netns;
use std::net::IpAddr;

/// Looks up routes in the kernel.
pub struct RouteLookup(RtnetlinkClient);

/// The next hop towards an address, which may be the address itself, and the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNextHop {
    pub via: IpAddr,
    pub interface: String,
}

impl RouteLookup {
    pub fn open(host: &Netns) -> DataplaneResult<RouteLookup> {
        Ok(RouteLookup(RtnetlinkClient::open(host)?))
    }

    /// Returns the next hop; the error is the reason why there is no route.
    pub async fn next_hop(&self, address: IpAddr) -> std::result::Result<HostNextHop, String> {
        let (via, device) = self.0.lookup(address).await?;
        let link = self.0.link(device).await.map_err(|error| error.to_string())?;
        let interface = link.ok_or("its interface is gone")?.name;
        Ok(HostNextHop { via, interface })
    }
}
