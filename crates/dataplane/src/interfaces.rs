//! Lists the interfaces of a host, for diagnostics.

use crate::error::DataplaneResult;
use crate::kernel::RtnetlinkClient;
use crate::netns::Netns;
use std::collections::BTreeMap;

/// Returns the names and MTUs of the interfaces that are up, except the loopback interface.
pub async fn interface_mtus(host: &Netns) -> DataplaneResult<Vec<(String, u32)>> {
    let links = RtnetlinkClient::open(host)?.links().await?;
    let up = links.into_iter().filter(|link| link.is_up() && link.name != "lo");
    Ok(up.map(|link| (link.name, link.mtu)).collect())
}

/// Returns the names of all interfaces, each with whether it is a veth device, as the interfaces of containers are.
pub async fn interface_names(host: &Netns) -> DataplaneResult<BTreeMap<String, bool>> {
    let links = host.rtnetlink()?.get_links().await;
    let links = links.map_err(|error| crate::DataplaneError::kernel("list of interfaces", &error))?;
    let named = links.iter().filter_map(|link| Some((link.name()?.to_owned(), link.kind() == Some("veth"))));
    Ok(named.collect())
}
