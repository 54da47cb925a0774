//! Addresses of the tunnel devices of a node: assigning, verifying and releasing them. Also lookups of address holders.

use super::Allocator;
use super::request::{AssignRequest, SpecificRequest};
use crate::block::{self, ReleaseRequest};
use crate::handle::HandleRecord;
use crate::owner::attribute;
use crate::pool::{AddressUse, AllocationPool};
use crate::{IpamError, IpamResult};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use tortie_model::ipam::{AllocationAttribute, TunnelType};

/// Criteria that select the pools of a node's tunnel addresses.
#[derive(Clone, Copy, Debug)]
pub struct TunnelPools<'a> {
    pub pools: &'a [AllocationPool],
    pub node_labels: &'a BTreeMap<String, String>,
    /// The node has a WireGuard public key of the family and does not use host-to-host encryption.
    pub wireguard_v4: bool,
    pub wireguard_v6: bool,
}

impl TunnelPools<'_> {
    /// Returns the pools that the tunnel address may come from. If the list is empty, the tunnel needs no address.
    pub fn of(&self, tunnel: TunnelType) -> Vec<IpNet> {
        let usable = self.pools.iter().filter(|pool| {
            pool.enabled
                && pool.version() == tunnel.version()
                && pool.uses.contains(&AddressUse::Tunnel)
                && pool.selects_node(self.node_labels)
                && self.uses_tunnel(pool, tunnel)
        });
        usable.map(|pool| pool.cidr).collect()
    }

    fn uses_tunnel(&self, pool: &AllocationPool, tunnel: TunnelType) -> bool {
        match tunnel {
            TunnelType::WireguardV4 => self.wireguard_v4,
            TunnelType::WireguardV6 => self.wireguard_v6,
            TunnelType::Ipip => pool.ipip,
            TunnelType::VxlanV4 | TunnelType::VxlanV6 => pool.vxlan,
        }
    }
}

/// Relation of an assigned address to a tunnel.
#[derive(Debug, PartialEq, Eq)]
enum TunnelAddress {
    Free,
    Ours,
    /// Assigned by an old version that recorded neither handle nor attributes.
    Ancient,
    Foreign,
}

impl Allocator {
    /// Returns the address of the tunnel, assigning one if necessary. If no pool requires an address, releases the
    /// current one and returns `None`. The caller records the address in the Node.
    pub async fn ensure_tunnel(
        &self,
        tunnel: TunnelType,
        current: Option<IpAddr>,
        pools: &[IpNet],
    ) -> IpamResult<Option<IpAddr>> {
        if pools.is_empty() {
            return self.release_tunnel(tunnel, current).await.map(|()| None);
        }
        let held = match current {
            Some(address) => self.tunnel_address(tunnel, address).await?,
            None => TunnelAddress::Free,
        };
        match (held, current) {
            (TunnelAddress::Ours, Some(address)) if pools.iter().any(|pool| pool.contains(&address)) => {
                Ok(Some(address))
            }
            (TunnelAddress::Ancient, Some(address)) => {
                self.release(&[ReleaseRequest::of(address)]).await?;
                let holder = tunnel.holder(&self.owner.name);
                let request = SpecificRequest {
                    intended: Some(AddressUse::Tunnel),
                    ..SpecificRequest::new(address, holder)
                };
                match self.assign_address(&request).await {
                    Ok(_) => Ok(Some(address)),
                    Err(_) => self.assign_tunnel(tunnel, pools).await.map(Some),
                }
            }
            (TunnelAddress::Foreign, _) => self.assign_tunnel(tunnel, pools).await.map(Some),
            _ => {
                self.release_handle_if_any(&tunnel.handle(&self.owner.name)).await?;
                self.assign_tunnel(tunnel, pools).await.map(Some)
            }
        }
    }

    /// Releases the address of a tunnel.
    pub async fn release_tunnel(&self, tunnel: TunnelType, current: Option<IpAddr>) -> IpamResult<()> {
        let handle = tunnel.handle(&self.owner.name);
        if self.release_handle_if_any(&handle).await? {
            return Ok(());
        }
        let Some(address) = current else { return Ok(()) };
        let record = self.record_of(address).await?;
        let ours =
            record.is_some_and(|record| is_ancient(&record) || record.handle() == Some(handle.as_str()));
        if ours {
            self.release(&[ReleaseRequest::of(address)]).await?;
        }
        Ok(())
    }

    /// Releases a handle. Returns whether it existed.
    async fn release_handle_if_any(&self, handle: &str) -> IpamResult<bool> {
        match self.release_by_handle(handle).await {
            Ok(_) => Ok(true),
            Err(IpamError::DoesNotExist { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn assign_tunnel(&self, tunnel: TunnelType, pools: &[IpNet]) -> IpamResult<IpAddr> {
        let (v4, v6) = if tunnel.version() == 4 { (1, 0) } else { (0, 1) };
        let mut request = AssignRequest::new(tunnel.holder(&self.owner.name), v4, v6);
        request.intended = AddressUse::Tunnel;
        if v4 == 1 {
            request.v4_pools = pools.to_vec()
        } else {
            request.v6_pools = pools.to_vec()
        }
        let assigned = self.auto_assign(&request).await.map_err(|failed| failed.error)?;
        let address = assigned.addresses().next().map(|net| net.addr());
        let family = if v4 == 1 { assigned.v4 } else { assigned.v6 };
        address.ok_or_else(|| IpamError::Exhausted { reason: family.shortfall().unwrap_or_default() })
    }

    async fn tunnel_address(&self, tunnel: TunnelType, address: IpAddr) -> IpamResult<TunnelAddress> {
        let Some(record) = self.record_of(address).await? else { return Ok(TunnelAddress::Free) };
        let kind = record.secondary.get(attribute::TYPE_ATTRIBUTE);
        let node = record.secondary.get(attribute::NODE_ATTRIBUTE);
        if kind.is_some_and(|kind| kind == tunnel.attribute()) && node == Some(&self.owner.name) {
            return Ok(TunnelAddress::Ours);
        }
        Ok(if is_ancient(&record) { TunnelAddress::Ancient } else { TunnelAddress::Foreign })
    }

    /// Returns the addresses of a handle with the prefix lengths of their blocks. They are the response to a repeated
    /// request.
    pub async fn addresses_of(&self, handle: &str) -> IpamResult<Vec<IpNet>> {
        let record = HandleRecord::new(handle, self.records.handle(handle).await?);
        let mut addresses = self.held_by(&record, 4).await?;
        addresses.extend(self.held_by(&record, 6).await?);
        Ok(addresses)
    }

    /// Returns the holder of an address; `None` if the address is free or in cooldown.
    pub async fn record_of(&self, address: IpAddr) -> IpamResult<Option<AllocationAttribute>> {
        Ok(self.records_of(&[address]).await?.remove(&address))
    }

    /// Returns the holders of these addresses, reading each block once. Addresses that are free or in cooldown are
    /// omitted.
    pub async fn records_of(
        &self,
        addresses: &[IpAddr],
    ) -> IpamResult<BTreeMap<IpAddr, AllocationAttribute>> {
        let facts = self.facts().await?;
        let mut blocks = BTreeMap::new();
        let mut records = BTreeMap::new();
        for address in addresses {
            let mut cache = self.cache.lock().await;
            let Some(cidr) = self.block_of(&facts, &mut cache, *address).await? else { continue };
            let found = match blocks.entry(cidr) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.records.block(cidr).await?),
            };
            let record = found.as_ref().and_then(|found| block::record(&found.value, *address));
            let record = record.filter(|record| record.released_at.is_none()).cloned();
            records.extend(record.map(|record| (*address, record)));
        }
        Ok(records)
    }
}

fn is_ancient(record: &AllocationAttribute) -> bool {
    record.handle().is_none() && record.secondary.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pools_of_tunnels() {
        let pool = |cidr: &str, spec: serde_json::Value| {
            let mut object = json!({"metadata": {"name": cidr}, "spec": spec});
            object["spec"]["cidr"] = json!(cidr);
            crate::pool::from_json(object).unwrap()
        };
        let pools = [
            pool("10.1.0.0/16", json!({"vxlanMode": "Always"})),
            pool("10.2.0.0/16", json!({"ipipMode": "CrossSubnet"})),
            pool("10.3.0.0/16", json!({"vxlanMode": "Always", "disabled": true})),
            pool("10.4.0.0/16", json!({"vxlanMode": "Always", "nodeSelector": "has(x)"})),
            pool("10.5.0.0/16", json!({"vxlanMode": "Always", "allowedUses": ["Workload"]})),
            pool("fd00::/48", json!({"vxlanMode": "Always"})),
        ];
        let labels = BTreeMap::new();
        let node_labels = &labels;
        let given = TunnelPools { pools: &pools, node_labels, wireguard_v4: false, wireguard_v6: false };
        let found = |tunnel: TunnelType, given: &TunnelPools<'_>| {
            given.of(tunnel).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found(TunnelType::VxlanV4, &given), "10.1.0.0/16");
        assert_eq!(found(TunnelType::Ipip, &given), "10.2.0.0/16");
        assert_eq!(found(TunnelType::VxlanV6, &given), "fd00::/48");
        assert_eq!(found(TunnelType::WireguardV4, &given), "");
        let with_key = TunnelPools { wireguard_v4: true, ..given };
        assert_eq!(found(TunnelType::WireguardV6, &with_key), "", "there is no key of this family");
        assert_eq!(found(TunnelType::WireguardV4, &with_key), "10.1.0.0/16 10.2.0.0/16");
    }
}
