//! Assigns the addresses of the node's tunnels: allocates them while a pool requires tunnels, writes them to the Node
//! object, and releases them afterwards.
//!
//! An address is allocated under its own handle before it is written to the Node object, and removed from the Node
//! object before it is released. After a crash at any point, the next pass finds the handle and corrects the state.

use crate::state::NodeState;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tortie_ipam::Allocator;
use tortie_ipam::pool::AllocationPool;
use tortie_ipam::{TunnelPools, TunnelType};
use tortie_model::kinds::{IPPoolSpec, Node, NodeBGPSpec, NodeSpec, NodeWireguardSpec};
use tortie_model::{FeedEvent, KeyRange, Kind};
use tortie_store::{ResourceClient, StoreClient};

/// Delay after a failure.
const TUNNEL_ADDRESS_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of attempts if other clients change the Node object concurrently.
const MAX_NODE_UPDATE_ATTEMPTS: usize = 10;
/// Component name of the warning on the health page.
const TUNNEL_ADDRESSES_COMPONENT: &str = "tunnel addresses";

/// The tunnels whose addresses this module assigns.
const MANAGED_TUNNELS: [TunnelType; 5] = TunnelType::ALL;

#[derive(Debug, thiserror::Error)]
enum TunnelAddressError {
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error(transparent)]
    Ipam(#[from] tortie_ipam::IpamError),
    #[error("the Node keeps changing; trying again")]
    Contended,
}

/// Returns a receiver that signals when pools or this node's Node object may have changed.
pub fn follow(client: &StoreClient, node: &str) -> watch::Receiver<()> {
    let own = KeyRange::Resources { kind: Kind::Node, namespace: None, name_prefix: node.to_owned() };
    let mut feed = tortie_sync::follow_unprobed(client, vec![KeyRange::all(Kind::IPPool), own]);
    let (changed, receiver) = watch::channel(());
    tokio::spawn(async move {
        while let Some(event) = feed.recv().await {
            let news = matches!(event, FeedEvent::Put { .. } | FeedEvent::Delete { .. } | FeedEvent::InSync);
            if news && changed.send(()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Keeps the tunnel addresses as the pools require. Never returns.
pub async fn keep(
    allocator: &Allocator,
    resources: &ResourceClient,
    state: &NodeState,
    mut changed: watch::Receiver<()>,
) {
    let mut reported = None;
    let mut parameters = state.parameters();
    loop {
        changed.mark_unchanged();
        let hosts_encrypt = parameters.borrow_and_update().wireguard_host_encryption_enabled;
        let trouble =
            reconcile(allocator, resources, hosts_encrypt).await.err().map(|failure| failure.to_string());
        if trouble != reported {
            match &trouble {
                Some(trouble) => {
                    tracing::warn!(trouble, "cannot assign tunnel addresses as the pools require; retrying")
                }
                None => tracing::info!("the tunnel addresses match the pools"),
            }
            reported.clone_from(&trouble);
        }
        state.set_warning(TUNNEL_ADDRESSES_COMPONENT, trouble.clone());
        let news = async {
            let ended = tokio::select! {
                changed = changed.changed() => changed.is_err(),
                changed = parameters.changed() => changed.is_err(),
            };
            if ended {
                // The feed has ended, and the node is stopping.
                std::future::pending::<()>().await;
            }
        };
        match trouble {
            Some(_) => drop(tokio::time::timeout(TUNNEL_ADDRESS_RETRY_DELAY, news).await),
            None => news.await,
        }
    }
}

/// Runs one pass: assigns each tunnel its address and writes the addresses to the Node object.
async fn reconcile(
    allocator: &Allocator,
    resources: &ResourceClient,
    hosts_encrypt: bool,
) -> Result<(), TunnelAddressError> {
    let name = &allocator.owner().name;
    for _ in 0..MAX_NODE_UPDATE_ATTEMPTS {
        let node = match resources.get_as::<NodeSpec>("", name).await {
            Ok(node) => node,
            // The addresses are released by the client that deletes the Node object.
            Err(tortie_store::StoreError::DoesNotExist { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let pools = resources.list_as::<IPPoolSpec>(None).await?;
        let pools: Vec<AllocationPool> = pools.iter().filter_map(AllocationPool::of).collect();
        let given = TunnelPools {
            pools: &pools,
            node_labels: &node.metadata.labels,
            wireguard_v4: !hosts_encrypt && !node.status.wireguard_public_key.is_empty(),
            wireguard_v6: !hosts_encrypt && !node.status.wireguard_public_key_v6.is_empty(),
        };
        let mut written = node.clone();
        let mut assigned = Vec::new();
        let mut ended = Vec::new();
        let mut failure = None;
        for tunnel in MANAGED_TUNNELS {
            let current = address(&node, tunnel);
            let pools = given.of(tunnel);
            if pools.is_empty() {
                set(&mut written, tunnel, None);
                ended.push((tunnel, current));
                continue;
            }
            match allocator.ensure_tunnel(tunnel, current, &pools).await {
                Ok(address) => {
                    if address != current {
                        assigned.push((tunnel, address));
                    }
                    set(&mut written, tunnel, address);
                }
                // Continue with the other tunnels.
                Err(error) => failure = Some(TunnelAddressError::from(error)),
            }
        }
        if written != node {
            match resources.update(written.into()).await {
                Ok(_) => {
                    for (tunnel, address) in &assigned {
                        tracing::info!(?tunnel, ?address, "assigned an address to the tunnel");
                    }
                }
                Err(tortie_store::StoreError::Conflict { .. }) => continue,
                Err(error) => {
                    give_back(allocator, &assigned).await;
                    return Err(error.into());
                }
            }
        }
        // Release the addresses only now that the Node object does not contain them any more.
        for (tunnel, current) in ended {
            allocator.release_tunnel(tunnel, current).await?;
        }
        return failure.map_or(Ok(()), Err);
    }
    Err(TunnelAddressError::Contended)
}

/// Releases addresses that were assigned for a Node object that could not be written.
async fn give_back(allocator: &Allocator, assigned: &[(TunnelType, Option<IpAddr>)]) {
    for (tunnel, address) in assigned {
        if let Err(error) = allocator.release_tunnel(*tunnel, *address).await {
            tracing::warn!(%error, ?tunnel, "cannot release the address of a tunnel; the next pass retries");
        }
    }
}

fn address(node: &Node, tunnel: TunnelType) -> Option<IpAddr> {
    let spec = &node.spec;
    let text = match tunnel {
        TunnelType::Ipip => spec.bgp.as_ref().map_or("", |bgp| &bgp.ipv4_ipip_tunnel_addr),
        TunnelType::VxlanV4 => &spec.ipv4_vxlan_tunnel_addr,
        TunnelType::VxlanV6 => &spec.ipv6_vxlan_tunnel_addr,
        TunnelType::WireguardV4 => spec.wireguard.as_ref().map_or("", |ends| &ends.interface_ipv4_address),
        TunnelType::WireguardV6 => spec.wireguard.as_ref().map_or("", |ends| &ends.interface_ipv6_address),
    };
    text.parse().ok()
}

fn set(node: &mut Node, tunnel: TunnelType, address: Option<IpAddr>) {
    let text = address.map(|address| address.to_string()).unwrap_or_default();
    let spec = &mut node.spec;
    match tunnel {
        TunnelType::VxlanV4 => spec.ipv4_vxlan_tunnel_addr = text,
        TunnelType::VxlanV6 => spec.ipv6_vxlan_tunnel_addr = text,
        TunnelType::Ipip => {
            spec.bgp.get_or_insert_default().ipv4_ipip_tunnel_addr = text;
            // The API rejects an empty object.
            spec.bgp = spec.bgp.take().filter(|bgp| *bgp != NodeBGPSpec::default());
        }
        TunnelType::WireguardV4 | TunnelType::WireguardV6 => {
            let ends = spec.wireguard.get_or_insert_default();
            match tunnel.version() {
                4 => ends.interface_ipv4_address = text,
                _ => ends.interface_ipv6_address = text,
            }
            spec.wireguard = spec.wireguard.take().filter(|ends| *ends != NodeWireguardSpec::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::ObjectMeta;

    #[test]
    fn tunnel_addresses_read_back_as_written() {
        let empty = Node::new(ObjectMeta { name: "n1".into(), ..ObjectMeta::default() }, NodeSpec::default());
        let mut node = empty.clone();
        for (tunnel, text) in [
            (TunnelType::Ipip, "10.1.0.1"),
            (TunnelType::VxlanV4, "10.1.0.2"),
            (TunnelType::VxlanV6, "fd00::2"),
            (TunnelType::WireguardV4, "10.1.0.3"),
            (TunnelType::WireguardV6, "fd00::3"),
        ] {
            set(&mut node, tunnel, Some(text.parse().unwrap()));
            assert_eq!(address(&node, tunnel), Some(text.parse().unwrap()));
        }
        assert_eq!(node.spec.bgp.as_ref().unwrap().ipv4_ipip_tunnel_addr, "10.1.0.1");
        for tunnel in MANAGED_TUNNELS {
            set(&mut node, tunnel, None);
        }
        assert_eq!(node, empty);
    }
}
