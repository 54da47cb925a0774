//! How the host reaches an address by the routes it has now, for those who describe routes.

use crate::error::Result;
use crate::kernel::Kernel;
use crate::netns::Netns;
use std::net::IpAddr;

/// Asks the kernel for its routes.
pub struct RouteLookup(Kernel);

/// The next hop to an address, which may be the address itself, and the interface it is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub via: IpAddr,
    pub interface: String,
}

impl RouteLookup {
    pub fn open(host: &Netns) -> Result<RouteLookup> {
        Ok(RouteLookup(Kernel::open(host)?))
    }

    /// An error says why there is none.
    pub async fn next_hop(&self, address: IpAddr) -> std::result::Result<NextHop, String> {
        let (via, device) = self.0.lookup(address).await?;
        let link = self.0.link(device).await.map_err(|error| error.to_string())?;
        let interface = link.ok_or("its interface is gone")?.name;
        Ok(NextHop { via, interface })
    }
}
