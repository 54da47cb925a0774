//! Lists a node's routes in the format of `ip route`.

use crate::error::{LabError, LabResult};
use nlink::netlink::messages::RouteMessage;
use nlink::netlink::types::route::{RouteProtocol, RouteScope, RouteType, rt_table};
use nlink::{Connection, Route};
use std::collections::HashMap;
use std::fmt::Write;
use std::net::IpAddr;

/// Returns the routes of the main table, IPv4 first, without link-local and multicast destinations.
pub async fn list(connection: &Connection<Route>) -> LabResult<Vec<String>> {
    try_list(connection).await.map_err(|error| LabError::kernel("list of routes", &error))
}

async fn try_list(connection: &Connection<Route>) -> nlink::Result<Vec<String>> {
    let names = connection.get_interface_names().await?;
    let mut routes = connection.get_routes().await?;
    routes.retain(|route| route.table_id() == u32::from(rt_table::MAIN) && !is_link_local(route));
    routes.sort_by_key(|route| (route.is_ipv6(), route.destination().copied(), route.dst_len()));
    Ok(routes.iter().map(|route| describe(route, &names)).collect())
}

/// Returns the next hop of packets to an address; `None` if there is no gateway or no route.
pub async fn next_hop(connection: &Connection<Route>, address: IpAddr) -> Option<IpAddr> {
    connection.lookup_route(address).await.ok()?.gateway().copied()
}

fn is_link_local(route: &RouteMessage) -> bool {
    match route.destination() {
        Some(IpAddr::V6(address)) => address.is_unicast_link_local() || address.is_multicast(),
        _ => false,
    }
}

fn describe(route: &RouteMessage, names: &HashMap<u32, String>) -> String {
    let mut text = String::new();
    let kind = route.route_type();
    let word = match kind {
        RouteType::Unicast => "",
        RouteType::Blackhole => "blackhole ",
        RouteType::Unreachable => "unreachable ",
        RouteType::Prohibit => "prohibit ",
        _ => "other ",
    };
    text.push_str(word);
    match route.destination() {
        None => text.push_str("default"),
        Some(address) if route.is_host() => text.push_str(&address.to_string()),
        Some(address) => {
            let _ = write!(text, "{address}/{}", route.dst_len());
        }
    }
    if let Some(gateway) = route.gateway() {
        let _ = write!(text, " via {gateway}");
    }
    // The kernel attaches unreachable and similar IPv6 routes to the loopback device.
    if kind == RouteType::Unicast
        && let Some(name) = route.oif().and_then(|index| names.get(&index))
    {
        let _ = write!(text, " dev {name}");
    }
    match route.protocol() {
        RouteProtocol::Boot => {}
        RouteProtocol::Kernel => text.push_str(" proto kernel"),
        RouteProtocol::Static => text.push_str(" proto static"),
        other => {
            let _ = write!(text, " proto {}", u8::from(other));
        }
    }
    if kind == RouteType::Unicast && route.is_ipv4() && route.scope() == RouteScope::Link {
        text.push_str(" scope link");
    }
    text
}
