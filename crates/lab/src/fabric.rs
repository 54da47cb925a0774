//! Builds the network between the nodes: one bridge per rack, in a separate namespace that is also the router.

use crate::error::{LabError, LabResult};
use crate::netns;
use crate::place::LabPaths;
use crate::topology::{self, LabNode, LabTopology};
use nlink::netlink::addr::{Ipv4Address, Ipv6Address};
use nlink::netlink::link::{BridgeLink, LinkCreateExt, VethLink};
use nlink::netlink::route::{Ipv4Route, Ipv6Route};
use nlink::{Connection, Route};

/// Name of a node's interface.
pub const NODE_INTERFACE: &str = "eth0";

pub async fn build(place: &LabPaths, topology: LabTopology, nodes: &[LabNode]) -> LabResult<()> {
    let fabric = netns::create(&place.fabric()).await?;
    if topology == LabTopology::L3 {
        fabric
            .sysctl()
            .set_many(&[("net.ipv4.ip_forward", "1"), ("net.ipv6.conf.all.forwarding", "1")])
            .map_err(|error| LabError::kernel("forwarding of the router", &error))?;
    }
    let inside = netns::connection(&fabric)?;
    for rack in topology::racks(nodes) {
        add_bridge(&inside, rack)
            .await
            .map_err(|error| LabError::kernel(format!("bridge {}", bridge_name(rack)), &error))?;
    }
    for node in nodes {
        connect(place, &inside, node)
            .await
            .map_err(|error| LabError::kernel(format!("link of {}", node.name), &error))?;
    }
    Ok(())
}

/// Connects an additional node in an existing rack.
pub async fn extend(place: &LabPaths, node: &LabNode) -> LabResult<()> {
    let fabric = netns::open(&place.fabric())?;
    connect(place, &netns::connection(&fabric)?, node)
        .await
        .map_err(|error| LabError::kernel(format!("link of {}", node.name), &error))
}

fn bridge_name(rack: u8) -> String {
    format!("rack{rack}")
}

async fn add_bridge(fabric: &Connection<Route>, rack: u8) -> nlink::Result<()> {
    let bridge = bridge_name(rack);
    let gateway = topology::gateway(rack);
    fabric.add_link(BridgeLink::new(&bridge).up()).await?;
    fabric.add_address(Ipv4Address::new(&bridge, gateway.ipv4, 24)).await?;
    fabric.add_address(Ipv6Address::new(&bridge, gateway.ipv6, 64).nodad()).await
}

/// Connects a node's existing namespace: creates its link, addresses and default routes.
async fn connect(place: &LabPaths, fabric: &Connection<Route>, node: &LabNode) -> nlink::Result<()> {
    let netns = nlink::netlink::namespace::Netns::open(&place.node_netns(&node.name))?;
    let inside = Connection::<Route>::new_in(&netns)?;
    let pair = VethLink::new(&node.name, NODE_INTERFACE).peer_netns_fd(&netns);
    fabric.add_link(pair.master(bridge_name(node.rack)).up()).await?;
    inside.set_link_up(NODE_INTERFACE).await?;
    inside.add_address(Ipv4Address::new(NODE_INTERFACE, node.ipv4.addr(), node.ipv4.prefix_len())).await?;
    inside
        .add_address(Ipv6Address::new(NODE_INTERFACE, node.ipv6.addr(), node.ipv6.prefix_len()).nodad())
        .await?;
    let gateway = topology::gateway(node.rack);
    inside.add_route(Ipv4Route::default_route().gateway(gateway.ipv4).dev(NODE_INTERFACE)).await?;
    inside.add_route(Ipv6Route::default_route().gateway(gateway.ipv6).dev(NODE_INTERFACE)).await
}
