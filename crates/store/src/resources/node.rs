//! Deletion of a node, with the addresses it held and the objects that were configured for it alone.

use super::addresses::AddressReleaser;
use super::{ResourceClient, read, typed};
use crate::{Revision, StoreError, StoreResult};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_model::kinds::{BGPPeerSpec, HostEndpointSpec, NodeSpec, WorkloadEndpoint, WorkloadEndpointSpec};
use tortie_model::{Kind, Resource, ResourceSpec, StoreKey, TypedObject};

impl ResourceClient {
    /// Deletes a node. Attempts all of the clean-up; if any of it fails, the Node object stays, so that deleting it
    /// again finds the rest. Also cleans up after a node whose Node object is already deleted.
    pub(super) async fn delete_node(&self, name: &str, revision: Option<Revision>) -> StoreResult<Resource> {
        let key = StoreKey::resource(Kind::Node, "", name);
        let node: Option<TypedObject<NodeSpec>> = match self.client.get(&key).await {
            Ok(entry) if revision.as_ref().is_some_and(|revision| *revision != entry.revision) => {
                return Err(StoreError::Conflict {
                    id: key.to_string(),
                    current: read(entry).ok().map(Box::new),
                });
            }
            Ok(entry) => Some(typed(read(entry)?)?),
            Err(StoreError::DoesNotExist { .. }) => None,
            Err(error) => return Err(error),
        };
        let endpoints = self.endpoints_of(name).await?;

        let mut addresses =
            node.iter().flat_map(|node| list_tunnel_addresses(&node.spec)).collect::<BTreeSet<_>>();
        addresses.extend(endpoints.iter().flat_map(|endpoint| list_workload_addresses(&endpoint.spec)));
        let claims = AddressReleaser::new(&self.client);
        addresses.extend(claims.tunnels_of(name).await?);
        let mut outcome = claims.release(name, &addresses).await;
        for endpoint in &endpoints {
            outcome = outcome.and(self.remove(&endpoint.metadata.namespace, endpoint).await);
        }
        outcome = outcome.and(claims.release_host(name).await);
        outcome = outcome.and(self.remove_where::<BGPPeerSpec>(|peer| peer.node == name).await);
        let own = format!("node.{name}");
        for kind in [Kind::FelixConfiguration, Kind::BGPConfiguration] {
            outcome = outcome.and(self.remove_key(&StoreKey::resource(kind, "", &own)).await);
        }
        outcome = outcome.and(self.remove_where::<HostEndpointSpec>(|endpoint| endpoint.node == name).await);
        outcome?;
        read(self.client.delete(&key, revision.as_ref()).await?)
    }

    async fn endpoints_of(&self, node: &str) -> StoreResult<Vec<WorkloadEndpoint>> {
        let all = self.list_as::<WorkloadEndpointSpec>(None).await?;
        Ok(all.into_iter().filter(|endpoint| endpoint.spec.node == node).collect())
    }

    async fn remove_where<S: ResourceSpec>(&self, wanted: impl Fn(&S) -> bool) -> StoreResult<()>
    where
        TypedObject<S>: TryFrom<Resource, Error = Resource>,
    {
        let mut outcome = Ok(());
        for object in self.list_as::<S>(None).await? {
            if wanted(&object.spec) {
                outcome = outcome.and(self.remove("", &object).await);
            }
        }
        outcome
    }

    async fn remove<S: ResourceSpec>(&self, namespace: &str, object: &TypedObject<S>) -> StoreResult<()> {
        self.remove_key(&StoreKey::resource(S::KIND, namespace, &object.metadata.name)).await
    }

    async fn remove_key(&self, key: &StoreKey) -> StoreResult<()> {
        match self.client.delete(key, None).await {
            Ok(_) | Err(StoreError::DoesNotExist { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the addresses of the node's tunnels.
fn list_tunnel_addresses(spec: &NodeSpec) -> BTreeSet<IpAddr> {
    let bgp = spec.bgp.as_ref().map(|bgp| bgp.ipv4_ipip_tunnel_addr.as_str());
    let wireguard = spec.wireguard.as_ref();
    let texts = [
        bgp,
        Some(spec.ipv4_vxlan_tunnel_addr.as_str()),
        Some(spec.ipv6_vxlan_tunnel_addr.as_str()),
        wireguard.map(|wireguard| wireguard.interface_ipv4_address.as_str()),
        wireguard.map(|wireguard| wireguard.interface_ipv6_address.as_str()),
    ];
    texts.into_iter().flatten().filter_map(parse_address).collect()
}

fn list_workload_addresses(spec: &WorkloadEndpointSpec) -> impl Iterator<Item = IpAddr> {
    spec.ip_networks.iter().filter_map(|text| parse_address(text))
}

/// Parses an address with or without a prefix length.
fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| text.parse::<IpNet>().ok().map(|net| net.addr()))
}
