//! Creates and configures tunnel devices, their addresses and their forwarding entries.

use super::types::{FdbKey, VxlanAttributes};
use super::{KernelRejection, RtnetlinkClient, decode};
use crate::error::{DataplaneResult, kernel_error};
use crate::failure::KernelObject;
use ipnet::IpNet;
use nlink::netlink::addr::{Ipv4Address, Ipv6Address};
use nlink::netlink::fdb::FdbEntryBuilder;
use nlink::netlink::link::{IpipLink, VxlanLink, WireguardLink};
use std::net::IpAddr;

type TunnelResult = Result<(), KernelRejection>;

impl RtnetlinkClient {
    /// Returns the forwarding entries of a VXLAN device.
    pub async fn forwarding_entries(&self, device: u32) -> DataplaneResult<Vec<(FdbKey, IpAddr)>> {
        let entries = self.connection.get_fdb_by_index(device).await;
        let entries = entries.map_err(kernel_error("list of forwarding entries"))?;
        Ok(entries.iter().filter_map(decode::forwarding).collect())
    }

    pub async fn create_vxlan(
        &self,
        name: &str,
        vxlan: &VxlanAttributes,
        mac: [u8; 6],
        mtu: u32,
    ) -> TunnelResult {
        self.faults.check(|| KernelObject::interface(name))?;
        let link = VxlanLink::new(name, vxlan.vni)
            .port(vxlan.port)
            .learning(vxlan.learning)
            .udp_csum(true)
            .address(mac)
            .mtu(mtu);
        let link = match vxlan.local {
            Some(IpAddr::V4(local)) => link.local(local),
            Some(IpAddr::V6(local)) => link.local6(local),
            None => link,
        };
        let link = match vxlan.parent {
            Some(parent) => link.dev_index(parent),
            None => link,
        };
        Ok(self.connection.add_link(link).await?)
    }

    /// Creates an IPIP device. The kernel creates one by itself when it loads the IPIP module; the request is then
    /// rejected with `RejectionKind::Exists`.
    pub async fn create_ipip(&self, name: &str) -> TunnelResult {
        self.faults.check(|| KernelObject::interface(name))?;
        Ok(self.connection.add_link(IpipLink::new(name)).await?)
    }

    pub async fn create_wireguard(&self, name: &str, mtu: u32) -> TunnelResult {
        self.faults.check(|| KernelObject::interface(name))?;
        Ok(self.connection.add_link(WireguardLink::new(name).mtu(mtu)).await?)
    }

    pub async fn delete_link(&self, index: u32) -> TunnelResult {
        Ok(self.connection.del_link_by_index(index).await?)
    }

    pub async fn set_link_up(&self, index: u32) -> TunnelResult {
        Ok(self.connection.set_link_up_by_index(index).await?)
    }

    pub async fn set_link_mtu(&self, index: u32, mtu: u32) -> TunnelResult {
        Ok(self.connection.set_link_mtu_by_index(index, mtu).await?)
    }

    /// Adds an address. `interface` is the name of the device.
    pub async fn add_address(&self, index: u32, interface: &str, net: IpNet) -> TunnelResult {
        self.faults
            .check(|| KernelObject::Address { address: net.addr(), interface: interface.to_owned() })?;
        match net {
            IpNet::V4(net) => {
                let address = Ipv4Address::with_index(index, net.addr(), net.prefix_len());
                self.connection.add_address(address).await?;
            }
            IpNet::V6(net) => {
                let address = Ipv6Address::with_index(index, net.addr(), net.prefix_len()).nodad();
                self.connection.add_address(address).await?;
            }
        }
        Ok(())
    }

    pub async fn delete_address(&self, index: u32, net: IpNet) -> TunnelResult {
        Ok(self.connection.del_address_by_index(index, net.addr(), net.prefix_len()).await?)
    }

    /// Writes a forwarding entry. `interface` is the name of the key's device.
    pub async fn set_forwarding_entry(&self, key: FdbKey, interface: &str, node: IpAddr) -> TunnelResult {
        self.faults
            .check(|| KernelObject::ForwardingEntry { mac: key.mac, interface: interface.to_owned() })?;
        Ok(self.connection.replace_fdb(build_forwarding_entry(key, node)).await?)
    }

    pub async fn delete_forwarding_entry(&self, key: FdbKey, node: IpAddr) -> TunnelResult {
        Ok(self.connection.del_fdb_entry(build_forwarding_entry(key, node)).await?)
    }
}

fn build_forwarding_entry(key: FdbKey, node: IpAddr) -> FdbEntryBuilder {
    FdbEntryBuilder::new(key.mac).ifindex(key.device).dst(node).permanent().self_()
}
