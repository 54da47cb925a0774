//! Answers DHCPv6 messages (RFC 8415, 18.3).

use super::{ProcessedRequest, ReplyType, RequestType};
use crate::codec::dhcp6::{
    Dhcp6ReplyType, Dhcp6Request, Dhcp6RequestType, IdentityAssociation, ReplyWriter, begin_reply, option,
    parse_request, status,
};
use crate::codec::frame::{ALL_DHCP6_SERVERS, Ipv6Route, begin_dhcp6_frame, finish_ipv6_frame};
use crate::codec::{RejectReason, put_domain};
use crate::lease::{Dhcp6Lease, PortState};
use std::net::Ipv6Addr;

/// Identifier of the server: a DUID-UUID (RFC 6355). It is the same on every host, as all hosts serve the same store, so that a
/// machine that migrates renews its lease at its new host.
const SERVER_DUID: [u8; 18] =
    [0, 4, 0x74, 0x6f, 0x72, 0x74, 0x69, 0x65, 0x4d, 0x68, 0xa3, 0x70, 0x1c, 0x9e, 0x5b, 0x02, 0x71, 0x36];
/// Associations in one message that get a reply; a client has one for each interface.
const MAX_ASSOCIATIONS: usize = 4;
/// Addresses of a client that are named in a reply.
const MAX_CLIENT_ADDRESSES: usize = 16;

pub fn respond(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: &[u8],
    port: &PortState,
    reply: &mut Vec<u8>,
) -> Result<ProcessedRequest, RejectReason> {
    let request = parse_request(message)?;
    let lease = port.lease.v6.as_ref().ok_or(RejectReason::NoLease)?;
    // The server never allows unicast (RFC 8415, 18.4).
    if !source.is_unicast_link_local() || destination != ALL_DHCP6_SERVERS {
        return Err(RejectReason::ForeignSource);
    }
    check_identifiers(&request)?;
    let link_local = port.link.link_local.ok_or(RejectReason::NoLinkLocal)?;
    let reply_type = match request.request_type {
        Dhcp6RequestType::Solicit if !request.wants_rapid_commit => Dhcp6ReplyType::Advertise,
        Dhcp6RequestType::Confirm if client_addresses(&request).next().is_none() => {
            return Err(RejectReason::NoAnswer);
        }
        _ => Dhcp6ReplyType::Reply,
    };
    let route = Ipv6Route {
        source_mac: port.link.mac,
        destination_mac: port.lease.mac,
        source: link_local,
        destination: source,
    };
    begin_dhcp6_frame(reply, &route);
    let mut writer = begin_reply(reply, &request, reply_type);
    write_options(&mut writer, &request, port, lease);
    finish_ipv6_frame(reply);
    Ok(ProcessedRequest {
        request: RequestType::Dhcp6(request.request_type),
        reply: Some(ReplyType::Dhcp6(reply_type)),
        is_truncated: false,
    })
}

/// Checks which identifiers a message has (RFC 8415, 16).
fn check_identifiers(request: &Dhcp6Request<'_>) -> Result<(), RejectReason> {
    use Dhcp6RequestType::{Confirm, Decline, InformationRequest, Rebind, Release, Renew, Request, Solicit};
    if request.server_id.is_some_and(|id| id != SERVER_DUID) {
        return Err(RejectReason::OtherServer);
    }
    let has_server = request.server_id.is_some();
    let is_valid = match request.request_type {
        Solicit | Confirm | Rebind => request.client_id.is_some() && !has_server,
        Request | Renew | Release | Decline => request.client_id.is_some() && has_server,
        // An association has no place in it, but is not needed to reject the message.
        InformationRequest => true,
    };
    if is_valid { Ok(()) } else { Err(RejectReason::Malformed) }
}

fn client_addresses<'a>(request: &Dhcp6Request<'a>) -> impl Iterator<Item = Ipv6Addr> + use<'a> {
    let associations = request.associations().take(MAX_ASSOCIATIONS);
    associations.flat_map(|association| association.addresses()).take(MAX_CLIENT_ADDRESSES)
}

fn write_options(
    writer: &mut ReplyWriter<'_>,
    request: &Dhcp6Request<'_>,
    port: &PortState,
    lease: &Dhcp6Lease,
) {
    writer.put(option::SERVER_ID, &SERVER_DUID);
    if let Some(id) = request.client_id {
        writer.put(option::CLIENT_ID, id);
    }
    match request.request_type {
        Dhcp6RequestType::Confirm => {
            let is_valid = client_addresses(request).all(|address| lease.addresses.contains(&address));
            writer.put_status(if is_valid { status::SUCCESS } else { status::NOT_ON_LINK });
            return;
        }
        // The binding is that of the endpoint, so there is nothing to release.
        Dhcp6RequestType::Release | Dhcp6RequestType::Decline => {
            writer.put_status(status::SUCCESS);
            return;
        }
        Dhcp6RequestType::InformationRequest => {}
        Dhcp6RequestType::Solicit
        | Dhcp6RequestType::Request
        | Dhcp6RequestType::Renew
        | Dhcp6RequestType::Rebind => {
            if request.request_type == Dhcp6RequestType::Solicit && request.wants_rapid_commit {
                writer.put(option::RAPID_COMMIT, &[]);
            }
            let lifetime = port.lease.lease_seconds;
            // RFC 8415, 18.3.4 and 18.3.5.
            let status_without_address = match request.request_type {
                Dhcp6RequestType::Renew | Dhcp6RequestType::Rebind => status::NO_BINDING,
                _ => status::NO_ADDRESSES,
            };
            for (number, association) in request.associations().take(MAX_ASSOCIATIONS).enumerate() {
                // All addresses are in the first association.
                let granted: &[Ipv6Addr] = if number == 0 { &lease.addresses } else { &[] };
                write_association(writer, &association, granted, lifetime, status_without_address);
            }
        }
    }
    write_configuration(writer, request, port, lease);
}

fn write_association(
    writer: &mut ReplyWriter<'_>,
    association: &IdentityAssociation<'_>,
    granted: &[Ipv6Addr],
    lifetime: u32,
    status_without_address: u16,
) {
    writer.put_association(association.id, lifetime, |writer| {
        for address in granted {
            writer.put_address(*address, lifetime);
        }
        // The client must stop using any other address at once (RFC 8415, 18.3.4).
        let mut withdrawn = 0;
        for address in association.addresses().take(MAX_CLIENT_ADDRESSES) {
            if !granted.contains(&address) {
                writer.put_address(address, 0);
                withdrawn += 1;
            }
        }
        if granted.is_empty() && withdrawn == 0 {
            writer.put_status(status_without_address);
        }
    });
}

fn write_configuration(
    writer: &mut ReplyWriter<'_>,
    request: &Dhcp6Request<'_>,
    port: &PortState,
    lease: &Dhcp6Lease,
) {
    if !lease.dns_servers.is_empty() && request.wants(option::DNS_SERVERS) {
        writer.put_with(option::DNS_SERVERS, |buffer| {
            lease.dns_servers.iter().for_each(|server| buffer.extend_from_slice(&server.octets()));
        });
    }
    if !port.lease.domain.is_empty() && request.wants(option::DOMAIN_LIST) {
        writer.put_with(option::DOMAIN_LIST, |buffer| put_domain(buffer, &port.lease.domain));
    }
}
