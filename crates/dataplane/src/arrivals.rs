//! Detects that virtual machines which migrate to this node run here: receives the gratuitous ARP that the guest sends
//! on its link, or the RARP that a hypervisor sends for a guest that it resumes.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::netns::Netns;
use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;
use tokio::io::Interest;
use tokio::net::UdpSocket;

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;

/// Listens for announcements only while a virtual machine is expected to arrive.
#[derive(Default)]
pub struct ArrivalListener {
    sockets: Option<ArrivalSockets>,
    /// Indexes of the interfaces on which a virtual machine is expected.
    expected: BTreeSet<u32>,
    /// Whether the failure to open the sockets has been logged.
    deaf: bool,
}

/// Packet sockets that receive from all links of the namespace, but not packets that the host itself sends. Tokio has
/// no type for packet sockets; `UdpSocket` serves only to wait for readiness.
struct ArrivalSockets {
    arp: UdpSocket,
    rarp: UdpSocket,
}

impl ArrivalListener {
    pub async fn expect(&mut self, netns: &Netns, interfaces: BTreeSet<u32>) {
        self.expected = interfaces;
        if self.expected.is_empty() {
            self.sockets = None;
        } else if self.sockets.is_none() {
            self.sockets = match ArrivalSockets::open(netns).await {
                Ok(sockets) => {
                    self.deaf = false;
                    Some(sockets)
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.deaf, true) {
                        tracing::warn!(%error, "cannot listen for ARP of arriving virtual machines; they get their routes when their migration completes");
                    }
                    None
                }
            };
        }
    }

    /// Returns the next expected interface on which an announcement arrives.
    pub async fn next(&self) -> u32 {
        let Some(ArrivalSockets { arp, rarp }) = &self.sockets else { return std::future::pending().await };
        loop {
            let index = tokio::select! {
                index = wait_for_packet(arp, is_gratuitous) => index,
                index = wait_for_packet(rarp, |_| true) => index,
            };
            if self.expected.contains(&index) {
                return index;
            }
            // A guest that floods its link must not starve the other branches of the engine's loop.
            tokio::task::yield_now().await;
        }
    }
}

impl ArrivalSockets {
    async fn open(netns: &Netns) -> DataplaneResult<ArrivalSockets> {
        let opened: io::Result<_> =
            netns.within(|| Ok((open(ETHERTYPE_ARP)?, open(ETHERTYPE_RARP)?))).await?;
        let (arp, rarp) = opened.map_err(cannot_listen)?;
        Ok(ArrivalSockets {
            arp: UdpSocket::from_std(arp.into()).map_err(cannot_listen)?,
            rarp: UdpSocket::from_std(rarp.into()).map_err(cannot_listen)?,
        })
    }
}

fn cannot_listen(error: io::Error) -> DataplaneError {
    DataplaneError::Kernel {
        object: KernelObject::KernelState("announcements of machines"),
        reason: error.to_string(),
    }
}

/// Opens a packet socket that delivers packets without their link-layer header.
fn open(protocol: u16) -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(protocol.to_be()));
    Socket::new(Domain::PACKET, Type::DGRAM.nonblocking(), Some(protocol))
}

async fn wait_for_packet(socket: &UdpSocket, counts: fn(&[u8]) -> bool) -> u32 {
    let mut packet = [0; 64];
    loop {
        if socket.readable().await.is_err() {
            return std::future::pending().await;
        }
        let received =
            socket.try_io(Interest::READABLE, || Ok(recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut packet)?));
        if let Ok((length, Some(link))) = received
            && counts(&packet[..length.min(packet.len())])
        {
            return u32::try_from(link.ifindex()).unwrap_or_default();
        }
        tokio::task::yield_now().await;
    }
}

/// Returns whether an ARP packet is gratuitous: its sender and target addresses are the same.
fn is_gratuitous(packet: &[u8]) -> bool {
    const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
    let [sender, target] = [14..18, 24..28].map(|range| packet.get(range));
    packet.starts_with(&ETHERNET_IPV4) && sender.is_some() && sender == target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_itself_tells_of_itself() {
        let arp = |sender: [u8; 4], target: [u8; 4]| {
            [&[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1][..], &sender, &[0; 6], &target].concat()
        };
        let own = arp([10, 65, 0, 2], [10, 65, 0, 2]);
        assert!(is_gratuitous(&own));
        assert!(!is_gratuitous(&arp([10, 65, 0, 2], [169, 254, 1, 1])), "it asks for another");
        assert!(!is_gratuitous(&arp([0; 4], [10, 65, 0, 2])), "it asks whether the address is free");
        for length in 0..own.len() {
            assert!(!is_gratuitous(&own[..length]));
        }
    }
}
