//! Router advertisements: in reply to solicitations and, from time to time, unsolicited.

use super::{ProcessedRequest, ReplyType, RequestType};
use crate::codec::RejectReason;
use crate::codec::frame::{ALL_NODES, Ipv6Route, MacAddress, begin_neighbour_frame, finish_ipv6_frame};
use crate::codec::neighbour::{RouterAdvertisement, put_advertisement};
use crate::lease::PortState;
use std::net::Ipv6Addr;

/// Longest lifetime that RFC 4861 permits, in seconds: machines keep their default route while the server is away.
const ROUTER_LIFETIME: u16 = 9000;
/// Shortest lifetime of prefixes and name servers, in seconds: three intervals of unsolicited advertisements (RFC 8106, 5.1).
/// With a shorter lease, machines would lose the addresses that they formed before the next advertisement.
const MIN_PREFIX_LIFETIME: u32 = 1800;
/// Links with a smaller MTU cannot carry IPv6.
const MIN_IPV6_MTU: u32 = 1280;

/// Answers a solicitation. A machine that has no address yet gets a multicast reply.
pub fn respond(
    source: Ipv6Addr,
    port: &PortState,
    reply: &mut Vec<u8>,
) -> Result<ProcessedRequest, RejectReason> {
    let destination = match source {
        Ipv6Addr::UNSPECIFIED => ALL_NODES,
        source if source.is_unicast_link_local() => source,
        _ => return Err(RejectReason::ForeignSource),
    };
    write_advertisement(destination, port, reply)?;
    Ok(ProcessedRequest {
        request: RequestType::RouterSolicitation,
        reply: Some(ReplyType::RouterAdvertisement),
        is_truncated: false,
    })
}

/// Builds the frame of an unsolicited advertisement.
pub fn build_advertisement(port: &PortState, frame: &mut Vec<u8>) -> Result<(), RejectReason> {
    write_advertisement(ALL_NODES, port, frame)
}

fn write_advertisement(
    destination: Ipv6Addr,
    port: &PortState,
    frame: &mut Vec<u8>,
) -> Result<(), RejectReason> {
    let lease = port.lease.v6.as_ref().ok_or(RejectReason::NoLease)?;
    let source = port.link.link_local.ok_or(RejectReason::NoLinkLocal)?;
    let destination_mac = match destination {
        ALL_NODES => MacAddress::of_multicast(ALL_NODES),
        _ => port.lease.mac,
    };
    begin_neighbour_frame(
        frame,
        &Ipv6Route { source_mac: port.link.mac, destination_mac, source, destination },
    );
    let advertisement = RouterAdvertisement {
        source_mac: port.link.mac,
        is_managed: lease.is_managed,
        has_other: lease.has_other,
        router_lifetime: ROUTER_LIFETIME,
        mtu: Some(port.link.mtu).filter(|mtu| *mtu >= MIN_IPV6_MTU),
        prefixes: &lease.prefixes,
        prefix_lifetime: port.lease.lease_seconds.max(MIN_PREFIX_LIFETIME),
        dns_servers: &lease.dns_servers,
        domain: &port.lease.domain,
    };
    put_advertisement(frame, &advertisement);
    finish_ipv6_frame(frame);
    Ok(())
}
