//! Answers DHCPv4 messages (RFC 2131, 4.3).

use super::{ProcessedRequest, ReplyType, RequestType, check_mac};
use crate::codec::RejectReason;
use crate::codec::dhcp4::{
    Dhcp4ReplyType, Dhcp4Request, Dhcp4RequestType, OptionWriter, begin_reply, option, parse_request,
};
use crate::codec::frame::{Ipv4Route, MacAddress, begin_dhcp4_frame, finish_dhcp4_frame};
use crate::lease::{Dhcp4Lease, InterfaceLease, PortState};
use std::net::Ipv4Addr;

/// Size of a datagram that every client accepts (RFC 2131, 2).
const DEFAULT_DATAGRAM_BYTES: u16 = 576;
const IP_AND_UDP_BYTES: usize = 28;
const MIN_IPV4_MTU: u32 = 68;

pub fn respond(
    source: Ipv4Addr,
    message: &[u8],
    port: &PortState,
    reply: &mut Vec<u8>,
) -> Result<ProcessedRequest, RejectReason> {
    let request = parse_request(message)?;
    check_mac(request.mac == port.lease.mac)?;
    let lease = port.lease.v4.as_ref().ok_or(RejectReason::NoLease)?;
    if request.relay_address != Ipv4Addr::UNSPECIFIED {
        return Err(RejectReason::Relayed);
    }
    // A client sends from no address or from its own; one that lost its subnet may use an old address.
    if source.is_multicast() || source.is_broadcast() || source == lease.server_id() {
        return Err(RejectReason::ForeignSource);
    }
    if request.server_id.is_some_and(|server| server != lease.server_id()) {
        return Err(RejectReason::OtherServer);
    }
    let reply_type = match request.request_type {
        Dhcp4RequestType::Discover => Some(Dhcp4ReplyType::Offer),
        Dhcp4RequestType::Request => Some(decide_request(&request, lease)?),
        Dhcp4RequestType::Inform => Some(Dhcp4ReplyType::Ack),
        // The binding is that of the endpoint, so there is nothing to release.
        Dhcp4RequestType::Release | Dhcp4RequestType::Decline => None,
    };
    let mut is_truncated = false;
    if let Some(reply_type) = reply_type {
        is_truncated = write_reply(&request, reply_type, port, lease, reply);
    }
    Ok(ProcessedRequest {
        request: RequestType::Dhcp4(request.request_type),
        reply: reply_type.map(ReplyType::Dhcp4),
        is_truncated,
    })
}

/// Decides about a DHCPREQUEST: the client selects an offer, verifies an address after a restart, or renews.
fn decide_request(request: &Dhcp4Request<'_>, lease: &Dhcp4Lease) -> Result<Dhcp4ReplyType, RejectReason> {
    let wanted = match request.requested_address {
        Some(address) => address,
        None if request.client_address != Ipv4Addr::UNSPECIFIED => request.client_address,
        None => return Err(RejectReason::Malformed),
    };
    // The server is authoritative: the client must give up any other address.
    Ok(if wanted == lease.address { Dhcp4ReplyType::Ack } else { Dhcp4ReplyType::Nak })
}

/// Writes the frame of a reply. Returns whether options were left out.
fn write_reply(
    request: &Dhcp4Request<'_>,
    reply_type: Dhcp4ReplyType,
    port: &PortState,
    lease: &Dhcp4Lease,
    reply: &mut Vec<u8>,
) -> bool {
    let is_inform = request.request_type == Dhcp4RequestType::Inform;
    let granted = match reply_type {
        Dhcp4ReplyType::Nak => Ipv4Addr::UNSPECIFIED,
        _ if is_inform => Ipv4Addr::UNSPECIFIED,
        _ => lease.address,
    };
    let (destination, destination_mac) = choose_destination(request, reply_type, granted);
    let source = lease.server_id();
    begin_dhcp4_frame(reply, &Ipv4Route { source_mac: port.link.mac, destination_mac, source, destination });
    let accepted = request.max_message_size.unwrap_or(DEFAULT_DATAGRAM_BYTES).max(DEFAULT_DATAGRAM_BYTES);
    let mtu = usize::try_from(port.link.mtu).unwrap_or(usize::MAX).max(DEFAULT_DATAGRAM_BYTES.into());
    let max_bytes = usize::from(accepted).min(mtu) - IP_AND_UDP_BYTES;
    let mut writer = begin_reply(reply, request, reply_type, granted, max_bytes);
    writer.put(option::SERVER_ID, &source.octets());
    if let Some(id) = request.client_id {
        // RFC 6842.
        writer.put(option::CLIENT_ID, id);
    }
    if reply_type == Dhcp4ReplyType::Nak {
        writer.put(option::MESSAGE, b"the address belongs to another endpoint");
    } else {
        if !is_inform {
            let seconds = port.lease.lease_seconds;
            writer.put_seconds(option::LEASE_TIME, seconds);
            writer.put_seconds(option::RENEWAL_TIME, seconds / 2);
            writer.put_seconds(option::REBINDING_TIME, seconds / 8 * 7);
        }
        write_options(&mut writer, request, port, lease);
    }
    let is_truncated = writer.is_truncated;
    writer.finish();
    finish_dhcp4_frame(reply);
    is_truncated
}

/// Returns the addresses that a reply is sent to (RFC 2131, 4.1).
fn choose_destination(
    request: &Dhcp4Request<'_>,
    reply_type: Dhcp4ReplyType,
    granted: Ipv4Addr,
) -> (Ipv4Addr, MacAddress) {
    let broadcast = (Ipv4Addr::BROADCAST, MacAddress::BROADCAST);
    if reply_type == Dhcp4ReplyType::Nak {
        return broadcast;
    }
    let in_use = request.client_address;
    if in_use != Ipv4Addr::UNSPECIFIED && !in_use.is_broadcast() && !in_use.is_multicast() {
        return (in_use, request.mac);
    }
    if request.wants_broadcast || granted == Ipv4Addr::UNSPECIFIED {
        return broadcast;
    }
    (granted, request.mac)
}

/// Writes the options that the client wants, most important first.
fn write_options(
    writer: &mut OptionWriter<'_>,
    request: &Dhcp4Request<'_>,
    port: &PortState,
    lease: &Dhcp4Lease,
) {
    let InterfaceLease { host_name, domain, .. } = &port.lease;
    if request.wants(option::SUBNET_MASK) {
        writer.put(option::SUBNET_MASK, &lease.subnet.netmask().octets());
    }
    let routes = encode_routes(lease);
    if !routes.is_empty() && request.wants(option::CLASSLESS_ROUTES) {
        writer.put(option::CLASSLESS_ROUTES, &routes);
    }
    // Only on request: a client that gets both codes would add every route twice.
    let is_microsoft = request.parameters.is_some() && request.wants(option::CLASSLESS_ROUTES_MICROSOFT);
    if !routes.is_empty() && is_microsoft && !request.wants(option::CLASSLESS_ROUTES) {
        writer.put(option::CLASSLESS_ROUTES_MICROSOFT, &routes);
    }
    if let Some(gateway) = lease.gateway
        && request.wants(option::ROUTER)
    {
        writer.put(option::ROUTER, &gateway.octets());
    }
    if request.wants(option::DNS_SERVERS) {
        writer.put_addresses(option::DNS_SERVERS, &lease.dns_servers);
    }
    if !domain.is_empty() && request.wants(option::DOMAIN_NAME) {
        writer.put(option::DOMAIN_NAME, domain.as_bytes());
    }
    if port.link.mtu >= MIN_IPV4_MTU && request.wants(option::INTERFACE_MTU) {
        let mtu = u16::try_from(port.link.mtu).unwrap_or(u16::MAX);
        writer.put(option::INTERFACE_MTU, &mtu.to_be_bytes());
    }
    if !host_name.is_empty() && request.wants(option::HOST_NAME) {
        writer.put(option::HOST_NAME, host_name.as_bytes());
    }
    if request.wants(option::BROADCAST) {
        writer.put(option::BROADCAST, &lease.subnet.broadcast().octets());
    }
}

/// Encodes the routes (RFC 3442). Returns nothing if the router option is sufficient.
fn encode_routes(lease: &Dhcp4Lease) -> Vec<u8> {
    let mut encoded = Vec::new();
    if lease.routes.is_empty() && !lease.has_distant_gateway() {
        return encoded;
    }
    let mut put = |destination: Ipv4Addr, length: u8, next_hop: Ipv4Addr| {
        encoded.push(length);
        encoded.extend_from_slice(&destination.octets()[..usize::from(length.div_ceil(8))]);
        encoded.extend_from_slice(&next_hop.octets());
    };
    if let Some(gateway) = lease.gateway.filter(|_| lease.has_distant_gateway()) {
        put(gateway, 32, Ipv4Addr::UNSPECIFIED);
    }
    for (destination, next_hop) in &lease.routes {
        put(destination.network(), destination.prefix_len(), *next_hop);
    }
    // Clients ignore the router option when they get this one, so it includes the default route.
    let has_default = lease.routes.iter().any(|(destination, _)| destination.prefix_len() == 0);
    if let Some(gateway) = lease.gateway.filter(|_| !has_default) {
        put(Ipv4Addr::UNSPECIFIED, 0, gateway);
    }
    encoded
}
