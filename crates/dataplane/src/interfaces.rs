//! The interfaces of a host, for those who look for mistakes.

use crate::error::Result;
use crate::kernel::Kernel;
use crate::netns::Netns;

/// Names and MTUs of the interfaces that are up, without the loopback.
pub async fn interface_mtus(host: &Netns) -> Result<Vec<(String, u32)>> {
    let links = Kernel::open(host)?.links().await?;
    let up = links.into_iter().filter(|link| link.is_up() && link.name != "lo");
    Ok(up.map(|link| (link.name, link.mtu)).collect())
}
