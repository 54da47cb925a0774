//! How the host reaches an address by the routes it has now, for those who describe routes.

use crate::error::Result;
use crate::kernel::Kernel;
use crate::netns::Netns;
use std::net::IpAddr;

pub struct Ways(Kernel);

/// The next hop on the way, which may be the address itself, and the interface it is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    pub via: IpAddr,
    pub interface: String,
}

impl Ways {
    pub fn open(host: &Netns) -> Result<Ways> {
        Ok(Ways(Kernel::open(host)?))
    }

    /// An error says why there is none.
    pub async fn to(&self, address: IpAddr) -> std::result::Result<Way, String> {
        let (via, device) = self.0.lookup(address).await?;
        let link = self.0.link(device).await.map_err(|error| error.to_string())?;
        let interface = link.ok_or("its interface is gone")?.name;
        Ok(Way { via, interface })
    }
}
