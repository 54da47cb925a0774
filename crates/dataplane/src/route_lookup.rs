//! Looks up how the host reaches an address with its current routes, for programs that describe routes.

use crate::error::{DataplaneError, DataplaneResult};
use crate::kernel::{RouteLookupError, RtnetlinkClient};
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

/// The reason why the host has no next hop towards an address.
#[derive(Debug, thiserror::Error)]
pub enum NextHopError {
    #[error("{0}")]
    NoRoute(#[from] RouteLookupError),
    #[error("{0}")]
    Kernel(#[from] DataplaneError),
    #[error("its interface is gone")]
    InterfaceGone,
}

impl RouteLookup {
    pub fn open(host: &Netns) -> DataplaneResult<RouteLookup> {
        Ok(RouteLookup(RtnetlinkClient::open(host)?))
    }

    pub async fn next_hop(&self, address: IpAddr) -> Result<HostNextHop, NextHopError> {
        let (via, device) = self.0.lookup(address).await?;
        let link = self.0.link(device).await?.ok_or(NextHopError::InterfaceGone)?;
        Ok(HostNextHop { via, interface: link.name })
    }
}
