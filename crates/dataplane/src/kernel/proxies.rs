//! Proxy entries: addresses for which an interface answers ARP or ND requests without having them.

use super::decode::attributes;
use super::types::{NeighbourKey, ProxyEntry};
use super::{KernelRejection, RtnetlinkClient};
use crate::error::{DataplaneResult, kernel_error};
use crate::failure::KernelObject;
use nlink::netlink::message::NlMsgType;
use nlink::netlink::messages::NeighborMessage;
use nlink::netlink::neigh::{Neighbor, NeighborConfig, ntf};
use nlink::netlink::parse::PResult;
use nlink::netlink::types::neigh::NdMsg;
use nlink::netlink::{FromNetlink, InterfaceRef, MessageBuilder};

/// Attribute that identifies the program which wrote an entry.
const NDA_PROTOCOL: u16 = 12;

impl RtnetlinkClient {
    /// Returns all proxy entries, including those of other programs.
    pub async fn proxies(&self) -> DataplaneResult<Vec<ProxyEntry>> {
        let messages = self.connection.dump_typed::<ProxyMessage>(NlMsgType::RTM_GETNEIGH).await;
        let messages = messages.map_err(kernel_error("list of proxied addresses"))?;
        Ok(messages.iter().filter_map(ProxyMessage::entry).collect())
    }

    /// Adds a proxy entry. `interface` is the name of the key's device.
    pub async fn add_proxy(&self, entry: ProxyEntry, interface: &str) -> Result<(), KernelRejection> {
        let address = entry.key.address;
        self.faults.check(|| KernelObject::Proxy { address, interface: interface.to_owned() })?;
        Ok(self.connection.add_neighbor(ProxyRequest::new(entry)).await?)
    }

    pub async fn delete_proxy(&self, entry: ProxyEntry) -> Result<(), KernelRejection> {
        Ok(self.connection.del_neighbor(ProxyRequest::new(entry)).await?)
    }
}

/// A proxy entry in its form for requests.
struct ProxyRequest {
    neighbour: Neighbor,
    protocol: u8,
}

impl ProxyRequest {
    fn new(ProxyEntry { key: NeighbourKey { device, address }, protocol }: ProxyEntry) -> ProxyRequest {
        ProxyRequest { neighbour: Neighbor::with_index(device, address).proxy().permanent(), protocol }
    }
}

impl NeighborConfig for ProxyRequest {
    fn interface_ref(&self) -> &InterfaceRef {
        self.neighbour.interface_ref()
    }

    fn family(&self) -> u8 {
        self.neighbour.family()
    }

    fn write_add(&self, builder: &mut MessageBuilder, device: u32) -> nlink::Result<()> {
        self.neighbour.write_add(builder, device)?;
        builder.append_attr(NDA_PROTOCOL, &[self.protocol]);
        Ok(())
    }

    fn write_delete(&self, builder: &mut MessageBuilder, device: u32) -> nlink::Result<()> {
        self.neighbour.write_delete(builder, device)
    }
}

/// A proxy entry in its form for dumps. The kernel lists proxy entries only if the request asks for them.
struct ProxyMessage {
    neighbour: NeighborMessage,
    protocol: u8,
}

impl ProxyMessage {
    fn entry(&self) -> Option<ProxyEntry> {
        let address = *self.neighbour.destination().filter(|_| self.neighbour.is_proxy())?;
        let key = NeighbourKey { device: self.neighbour.ifindex(), address };
        Some(ProxyEntry { key, protocol: self.protocol })
    }
}

impl FromNetlink for ProxyMessage {
    fn parse(input: &mut &[u8]) -> PResult<ProxyMessage> {
        let whole = *input;
        let neighbour = NeighborMessage::parse(input)?;
        let mut attributes = attributes(whole.get(NdMsg::SIZE..).unwrap_or_default());
        let protocol = attributes.find(|(kind, _)| *kind == NDA_PROTOCOL);
        let protocol = protocol.and_then(|(_, value)| value.first().copied()).unwrap_or_default();
        Ok(ProxyMessage { neighbour, protocol })
    }

    fn write_dump_header(buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(NdMsg::new().with_flags(ntf::PROXY).as_bytes());
    }
}
