//! Announces addresses on links: sends gratuitous ARP requests and unsolicited neighbour advertisements. Receivers with
//! another MAC for the address in their cache replace it; receivers without an entry need not create one.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::netns::Netns;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IPv6 all-nodes multicast address, and the MAC that it maps to.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
const ICMPV6: u8 = 58;

/// An interface that frames are sent from: its link-layer socket address, MAC and IPv6 link-local address.
struct FrameSender {
    link: LinkAddr,
    mac: Mac,
    link_local: Option<Ipv6Addr>,
}

/// Announces addresses on interfaces, given by name. Interfaces that no longer exist are skipped.
pub async fn send(netns: &Netns, addresses: Vec<(String, IpAddr)>) -> DataplaneResult<()> {
    let outcome = netns.within(move || send_here(&addresses)).await?;
    let object = KernelObject::KernelState("announcement of addresses");
    outcome.map_err(|error| DataplaneError::Kernel { object, reason: error.desc().to_owned() })
}

fn send_here(addresses: &[(String, IpAddr)]) -> nix::Result<()> {
    let senders = open_senders()?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
    for (interface, address) in addresses {
        let Some(sender) = senders.get(interface) else { continue };
        let Some(frame) = build_frame(sender.mac, sender.link_local, *address) else { continue };
        match sendto(socket.as_raw_fd(), &frame, &sender.link, MsgFlags::empty()) {
            // The interface has just gone down or its send queue is full. ARP and ND requests are still answered.
            Ok(_) | Err(Errno::ENETDOWN | Errno::ENXIO | Errno::ENOBUFS | Errno::EAGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open_senders() -> nix::Result<BTreeMap<String, FrameSender>> {
    let mut senders = BTreeMap::new();
    let mut link_locals = BTreeMap::new();
    for entry in getifaddrs()? {
        let Some(address) = entry.address else { continue };
        if let Some(link) = address.as_link_addr()
            && let Some(mac) = link.addr()
        {
            let link = *link;
            senders.insert(entry.interface_name, FrameSender { link, mac, link_local: None });
        } else if let Some(address) = address.as_sockaddr_in6().map(|address| address.ip())
            && address.is_unicast_link_local()
        {
            link_locals.entry(entry.interface_name).or_insert(address);
        }
    }
    for (interface, address) in link_locals {
        if let Some(sender) = senders.get_mut(&interface) {
            sender.link_local = Some(address);
        }
    }
    Ok(senders)
}

/// Builds the frame that announces an address. Returns `None` for an IPv6 address on an interface without a link-local
/// address.
fn build_frame(mac: Mac, link_local: Option<Ipv6Addr>, address: IpAddr) -> Option<Vec<u8>> {
    let (to, kind, packet) = match address {
        IpAddr::V4(address) => (BROADCAST, ETHERTYPE_ARP, build_arp(mac, address)),
        IpAddr::V6(address) => {
            (ALL_NODES_MAC, ETHERTYPE_IPV6, build_advertisement(mac, link_local?, address))
        }
    };
    Some([&to[..], &mac, &kind.to_be_bytes(), &packet].concat())
}

/// Builds a gratuitous ARP request: sender and target address are the same.
fn build_arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    const ETHERNET_IPV4_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let address = address.octets();
    [&ETHERNET_IPV4_REQUEST[..], &mac, &address, &[0; 6], &address].concat()
}

fn build_advertisement(mac: Mac, source: Ipv6Addr, address: Ipv6Addr) -> Vec<u8> {
    const ADVERTISEMENT: [u8; 4] = [136, 0, 0, 0];
    /// Override flag: receivers replace their neighbour cache entry.
    const OVERRIDE_FLAG: [u8; 4] = [0x20, 0, 0, 0];
    const TARGET_MAC: [u8; 2] = [2, 1];
    /// Receivers reject neighbour discovery packets with a lower hop limit, as those have been routed (RFC 4861,
    /// 7.1.2).
    const ND_HOP_LIMIT: u8 = 255;
    let mut message = [&ADVERTISEMENT[..], &OVERRIDE_FLAG, &address.octets(), &TARGET_MAC, &mac].concat();
    let length = u8::try_from(message.len()).unwrap_or_default();
    let pseudo = [&source.octets()[..], &ALL_NODES.octets(), &[0, 0, 0, length, 0, 0, 0, ICMPV6], &message];
    let sum = compute_checksum(&pseudo.concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = [0x60, 0, 0, 0, 0, length, ICMPV6, ND_HOP_LIMIT];
    [&header[..], &source.octets(), &ALL_NODES.octets(), &message].concat()
}

fn compute_checksum(bytes: &[u8]) -> u16 {
    let word =
        |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_adds_up() {
        let address: Ipv6Addr = "fd00::77".parse().unwrap();
        let frame = build_frame([2, 0, 0, 0, 0, 1], "fe80::1".parse().ok(), address.into()).unwrap();
        assert_eq!(frame.len(), 14 + 40 + 32);
        let (header, message) = frame[14..].split_at(40);
        let pseudo = [&header[8..], &[0, 0, 0, 32, 0, 0, 0, ICMPV6], message].concat();
        assert_eq!(compute_checksum(&pseudo), 0, "with the sum in it");
    }

    #[test]
    fn an_interface_without_ipv6_says_nothing_of_it() {
        assert_eq!(build_frame([2, 0, 0, 0, 0, 1], None, "fd00::77".parse().unwrap()), None);
        let arp = build_frame([2, 0, 0, 0, 0, 1], None, "192.0.2.77".parse().unwrap()).unwrap();
        assert_eq!((arp.len(), &arp[28..32], &arp[38..42]), (42, &[192, 0, 2, 77][..], &[192, 0, 2, 77][..]));
    }
}
