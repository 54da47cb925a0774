//! Verifies that a workload is still connected as requested, and describes each deviation (CNI CHECK).

use super::{AttachRequest, GATEWAY_V4, HOST_MAC, link, setup};
use crate::error::{DataplaneError, DataplaneResult, kernel_error};
use crate::failure::KernelObject;
use crate::netns::Netns;
use crate::sysctl;
use ipnet::IpNet;
use nlink::netlink::messages::{LinkMessage, RouteMessage};
use nlink::{Connection, Route};
use std::net::IpAddr;

/// Checks both ends of the veth pair. An error during the check is reported as a deviation.
pub async fn check(host: &Netns, request: &AttachRequest) -> std::result::Result<(), Vec<String>> {
    let mut deviations = Vec::new();
    match Netns::open(&request.netns) {
        Ok(container) => {
            if let Err(error) = check_container_end(&container, request, &mut deviations).await {
                deviations.push(error.to_string());
            }
        }
        Err(error) => deviations.push(error.to_string()),
    }
    if let Err(error) = check_host_end(host, request, &mut deviations).await {
        deviations.push(error.to_string());
    }
    if deviations.is_empty() { Ok(()) } else { Err(deviations) }
}

async fn check_container_end(
    container: &Netns,
    request: &AttachRequest,
    deviations: &mut Vec<String>,
) -> DataplaneResult<()> {
    let connection = container.rtnetlink()?;
    let name = &request.container_interface;
    let Some(link) = check_interface(&connection, "workload", name, deviations).await? else { return Ok(()) };
    if let Some(mtu) = request.mtu.filter(|mtu| link.mtu() != Some(*mtu)) {
        deviations.push(format!("MTU of {name} is {}, not {mtu}", link.mtu().unwrap_or(0)));
    }
    if request.mac.is_some_and(|mac| link.address() != Some(&mac[..])) {
        let found = link.mac_address().unwrap_or_else(|| "unknown".into());
        deviations.push(format!("MAC of {name} is {found}, not the requested one"));
    }
    let present = connection
        .get_addresses_by_index(link.ifindex())
        .await
        .map_err(|error| DataplaneError::kernel(KernelObject::interface(name), &error))?;
    for address in &request.addresses {
        if !present.iter().any(|message| message.local().or(message.address()) == Some(address)) {
            deviations.push(format!("address {address} is missing on {name}"));
        }
    }
    let routes = connection.get_routes().await.map_err(kernel_error("list of routes"))?;
    let mut wanted = request.effective_routes();
    if request.has_v4() {
        wanted.push(IpNet::from(IpAddr::from(GATEWAY_V4)));
    }
    for net in wanted {
        if !routes.iter().any(|route| route.oif() == Some(link.ifindex()) && is_route_to(route, &net)) {
            deviations.push(format!("route {net} through {name} is missing"));
        }
    }
    Ok(())
}

async fn check_host_end(
    host: &Netns,
    request: &AttachRequest,
    deviations: &mut Vec<String>,
) -> DataplaneResult<()> {
    let connection = host.rtnetlink()?;
    let name = &request.host_interface;
    let Some(link) = check_interface(&connection, "host", name, deviations).await? else { return Ok(()) };
    if link.address() != Some(&HOST_MAC[..]) {
        let found = link.mac_address().unwrap_or_else(|| "unknown".into());
        deviations.push(format!("MAC of {name} is {found}, not ee:ee:ee:ee:ee:ee"));
    }
    for setting in setup::host_settings(request) {
        let found = sysctl::read(host, &setting.key).await?;
        if found.is_some_and(|found| found != setting.value) {
            deviations.push(format!("sysctl {} is not {}", setting.key.replace('/', "."), setting.value));
        }
    }
    let routes = connection.get_routes().await.map_err(kernel_error("list of routes"))?;
    for address in &request.addresses {
        let net = IpNet::from(*address);
        let found =
            routes.iter().any(|route| route.oif() == Some(link.ifindex()) && is_route_to(route, &net));
        if !found {
            deviations.push(format!("the host has no route {net} through {name}"));
        }
    }
    Ok(())
}

/// Returns the interface; reports it if it is missing or down.
async fn check_interface(
    connection: &Connection<Route>,
    side: &str,
    name: &str,
    deviations: &mut Vec<String>,
) -> DataplaneResult<Option<LinkMessage>> {
    let Some(link) = link::find(connection, name).await? else {
        deviations.push(format!("{side} interface {name} is missing"));
        return Ok(None);
    };
    if !(link.is_up() && link.is_running()) {
        deviations.push(format!("{side} interface {name} is down"));
    }
    Ok(Some(link))
}

fn is_route_to(route: &RouteMessage, net: &IpNet) -> bool {
    let family = route.is_ipv4() == net.addr().is_ipv4();
    let same = route.destination().map_or(net.prefix_len() == 0, |address| *address == net.network());
    family && same && route.dst_len() == net.prefix_len()
}
