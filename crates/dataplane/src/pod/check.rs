//! Verifies that a workload is still connected as requested, and describes each deviation (CNI CHECK).

use super::{AttachRequest, GATEWAY_V4, HOST_MAC, link, setup};
use crate::error::{DataplaneResult, kernel_error};
use crate::failure::KernelObject;
use crate::netns::Netns;
use crate::sysctl;
use ipnet::IpNet;
use nlink::netlink::messages::{LinkMessage, RouteMessage};
use nlink::{Connection, Route};
use std::net::IpAddr;

/// Checks both ends of the veth pair. An error during the check is reported as a deviation.
pub async fn check(host: &Netns, request: &AttachRequest) -> std::result::Result<(), Vec<String>> {
    let mut wrong = Vec::new();
    match Netns::open(&request.netns) {
        Ok(container) => {
            if let Err(error) = inside(&container, request, &mut wrong).await {
                wrong.push(error.to_string());
            }
        }
        Err(error) => wrong.push(error.to_string()),
    }
    if let Err(error) = outside(host, request, &mut wrong).await {
        wrong.push(error.to_string());
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

async fn inside(container: &Netns, request: &AttachRequest, wrong: &mut Vec<String>) -> DataplaneResult<()> {
    let connection = container.rtnetlink()?;
    let name = &request.container_interface;
    let Some(link) = interface(&connection, "workload", name, wrong).await? else { return Ok(()) };
    if let Some(mtu) = request.mtu.filter(|mtu| link.mtu() != Some(*mtu)) {
        wrong.push(format!("MTU of {name} is {}, not {mtu}", link.mtu().unwrap_or(0)));
    }
    if request.mac.is_some_and(|mac| link.address() != Some(&mac[..])) {
        let found = link.mac_address().unwrap_or_else(|| "unknown".into());
        wrong.push(format!("MAC of {name} is {found}, not the requested one"));
    }
    let present = connection
        .get_addresses_by_index(link.ifindex())
        .await
        .map_err(|error| crate::DataplaneError::kernel(KernelObject::interface(name), &error))?;
    for address in &request.addresses {
        if !present.iter().any(|message| message.local().or(message.address()) == Some(address)) {
            wrong.push(format!("address {address} is missing on {name}"));
        }
    }
    let routes = connection.get_routes().await.map_err(kernel_error("list of routes"))?;
    let mut wanted = request.effective_routes();
    if request.has_v4() {
        wanted.push(IpNet::from(IpAddr::from(GATEWAY_V4)));
    }
    for net in wanted {
        if !routes.iter().any(|route| route.oif() == Some(link.ifindex()) && leads_to(route, &net)) {
            wrong.push(format!("route {net} through {name} is missing"));
        }
    }
    Ok(())
}

async fn outside(host: &Netns, request: &AttachRequest, wrong: &mut Vec<String>) -> DataplaneResult<()> {
    let connection = host.rtnetlink()?;
    let name = &request.host_interface;
    let Some(link) = interface(&connection, "host", name, wrong).await? else { return Ok(()) };
    if link.address() != Some(&HOST_MAC[..]) {
        let found = link.mac_address().unwrap_or_else(|| "unknown".into());
        wrong.push(format!("MAC of {name} is {found}, not ee:ee:ee:ee:ee:ee"));
    }
    for setting in setup::host_settings(request) {
        let found = sysctl::read(host, &setting.key).await?;
        if found.is_some_and(|found| found != setting.value) {
            wrong.push(format!("sysctl {} is not {}", setting.key.replace('/', "."), setting.value));
        }
    }
    let routes = connection.get_routes().await.map_err(kernel_error("list of routes"))?;
    for address in &request.addresses {
        let net = IpNet::from(*address);
        let found = routes.iter().any(|route| route.oif() == Some(link.ifindex()) && leads_to(route, &net));
        if !found {
            wrong.push(format!("the host has no route {net} through {name}"));
        }
    }
    Ok(())
}

async fn interface(
    connection: &Connection<Route>,
    whose: &str,
    name: &str,
    wrong: &mut Vec<String>,
) -> DataplaneResult<Option<LinkMessage>> {
    let Some(link) = link::find(connection, name).await? else {
        wrong.push(format!("{whose} interface {name} is missing"));
        return Ok(None);
    };
    if !(link.is_up() && link.is_running()) {
        wrong.push(format!("{whose} interface {name} is down"));
    }
    Ok(Some(link))
}

fn leads_to(route: &RouteMessage, net: &IpNet) -> bool {
    let family = route.is_ipv4() == net.addr().is_ipv4();
    let same = route.destination().map_or(net.prefix_len() == 0, |address| *address == net.network());
    family && same && route.dst_len() == net.prefix_len()
}
