//! Router solicitations and advertisements (RFC 4861, RFC 8106).

use super::frame::{ICMPV6_ROUTER_SOLICITATION, MacAddress};
use super::{RejectReason, put_domain, split_array, split_slice};
use ipnet::Ipv6Net;
use std::net::Ipv6Addr;

const ICMPV6_ROUTER_ADVERTISEMENT: u8 = 134;
const SOURCE_MAC_OPTION: u8 = 1;
const PREFIX_OPTION: u8 = 3;
const MTU_OPTION: u8 = 5;
const DNS_SERVERS_OPTION: u8 = 25;
const DOMAIN_LIST_OPTION: u8 = 31;
const MANAGED_FLAG: u8 = 0x80;
const OTHER_FLAG: u8 = 0x40;
/// The flag of a prefix from which hosts form addresses. The flag "on-link" is never set: other hosts of the subnet are
/// reached through the router.
const AUTONOMOUS_FLAG: u8 = 0x40;
const HOP_LIMIT: u8 = 64;

/// A router advertisement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterAdvertisement<'a> {
    pub source_mac: MacAddress,
    /// Addresses are available by DHCPv6.
    pub is_managed: bool,
    /// Other options are available by DHCPv6.
    pub has_other: bool,
    /// In seconds; 0 if the router is not a default router.
    pub router_lifetime: u16,
    pub mtu: Option<u32>,
    pub prefixes: &'a [AdvertisedPrefix],
    /// In seconds.
    pub prefix_lifetime: u32,
    pub dns_servers: &'a [Ipv6Addr],
    /// Search domain; empty if the machine has no domain.
    pub domain: &'a str,
}

/// A prefix of a router advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedPrefix {
    pub net: Ipv6Net,
    /// Hosts form their addresses from it.
    pub is_autonomous: bool,
}

/// Checks a router solicitation, from its ICMPv6 header on.
pub fn check_solicitation(message: &[u8]) -> Result<(), RejectReason> {
    let (header, mut rest) = split_array::<8>(message)?;
    if header[0] != ICMPV6_ROUTER_SOLICITATION {
        return Err(RejectReason::UnknownMessage);
    }
    if header[1] != 0 {
        return Err(RejectReason::Malformed);
    }
    while !rest.is_empty() {
        let (head, _) = split_array::<2>(rest)?;
        // In units of eight bytes; zero would never end (RFC 4861, 4.6).
        if head[1] == 0 {
            return Err(RejectReason::Malformed);
        }
        rest = split_slice(rest, 8 * usize::from(head[1]))?.1;
    }
    Ok(())
}

/// Appends an advertisement with an empty checksum.
pub fn put_advertisement(buffer: &mut Vec<u8>, advertisement: &RouterAdvertisement<'_>) {
    let mut flags = 0;
    if advertisement.is_managed {
        flags |= MANAGED_FLAG;
    }
    if advertisement.has_other {
        flags |= OTHER_FLAG;
    }
    buffer.extend_from_slice(&[ICMPV6_ROUTER_ADVERTISEMENT, 0, 0, 0, HOP_LIMIT, flags]);
    buffer.extend_from_slice(&advertisement.router_lifetime.to_be_bytes());
    // Reachable time and retransmission interval are not specified.
    buffer.extend_from_slice(&[0; 8]);
    buffer.extend_from_slice(&[SOURCE_MAC_OPTION, 1]);
    buffer.extend_from_slice(&advertisement.source_mac.0);
    if let Some(mtu) = advertisement.mtu {
        buffer.extend_from_slice(&[MTU_OPTION, 1, 0, 0]);
        buffer.extend_from_slice(&mtu.to_be_bytes());
    }
    let lifetime = advertisement.prefix_lifetime.to_be_bytes();
    for prefix in advertisement.prefixes {
        let flags = if prefix.is_autonomous { AUTONOMOUS_FLAG } else { 0 };
        buffer.extend_from_slice(&[PREFIX_OPTION, 4, prefix.net.prefix_len(), flags]);
        buffer.extend_from_slice(&lifetime);
        buffer.extend_from_slice(&lifetime);
        buffer.extend_from_slice(&[0; 4]);
        buffer.extend_from_slice(&prefix.net.network().octets());
    }
    if !advertisement.dns_servers.is_empty() {
        put_option(buffer, DNS_SERVERS_OPTION, |buffer| {
            buffer.extend_from_slice(&[0, 0]);
            buffer.extend_from_slice(&lifetime);
            advertisement.dns_servers.iter().for_each(|server| buffer.extend_from_slice(&server.octets()));
        });
    }
    if !advertisement.domain.is_empty() {
        put_option(buffer, DOMAIN_LIST_OPTION, |buffer| {
            buffer.extend_from_slice(&[0, 0]);
            buffer.extend_from_slice(&lifetime);
            put_domain(buffer, advertisement.domain);
        });
    }
}

/// Appends an option, padded to units of eight bytes.
fn put_option(buffer: &mut Vec<u8>, code: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[code, 0]);
    write(buffer);
    let units = (buffer.len() - start).div_ceil(8);
    buffer.resize(start + 8 * units, 0);
    buffer[start + 1] = u8::try_from(units).unwrap_or(u8::MAX);
}
