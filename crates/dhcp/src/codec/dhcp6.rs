//! DHCPv6 messages (RFC 8415).

use super::{RejectReason, split_array, split_slice};
use std::net::Ipv6Addr;

pub mod option {
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_ADDRESS: u16 = 5;
    pub const OPTION_REQUEST: u16 = 6;
    pub const STATUS_CODE: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    pub const DNS_SERVERS: u16 = 23;
    pub const DOMAIN_LIST: u16 = 24;
}

pub mod status {
    pub const SUCCESS: u16 = 0;
    pub const NO_ADDRESSES: u16 = 2;
    pub const NO_BINDING: u16 = 3;
    pub const NOT_ON_LINK: u16 = 4;
}

/// Longest client identifier (RFC 8415, 11.1).
const MAX_DUID_BYTES: usize = 130;
const RELAY_FORWARD: u8 = 12;

/// The type of a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dhcp6RequestType {
    Solicit,
    Request,
    Confirm,
    Renew,
    Rebind,
    Release,
    Decline,
    InformationRequest,
}

/// The type of a server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dhcp6ReplyType {
    Advertise = 2,
    Reply = 7,
}

/// A message of a client. Its options are well-formed down to the addresses of its associations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dhcp6Request<'a> {
    pub request_type: Dhcp6RequestType,
    pub transaction: [u8; 3],
    pub client_id: Option<&'a [u8]>,
    pub server_id: Option<&'a [u8]>,
    pub wants_rapid_commit: bool,
    requested_options: Option<&'a [u8]>,
    options: &'a [u8],
}

/// An association of the client with addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityAssociation<'a> {
    pub id: [u8; 4],
    options: &'a [u8],
}

/// Parses a message from a client.
pub fn parse_request(message: &[u8]) -> Result<Dhcp6Request<'_>, RejectReason> {
    let (head, options) = split_array::<4>(message)?;
    let request_type = match head[0] {
        1 => Dhcp6RequestType::Solicit,
        3 => Dhcp6RequestType::Request,
        4 => Dhcp6RequestType::Confirm,
        5 => Dhcp6RequestType::Renew,
        6 => Dhcp6RequestType::Rebind,
        8 => Dhcp6RequestType::Release,
        9 => Dhcp6RequestType::Decline,
        11 => Dhcp6RequestType::InformationRequest,
        RELAY_FORWARD => return Err(RejectReason::Relayed),
        _ => return Err(RejectReason::UnknownMessage),
    };
    let mut request = Dhcp6Request {
        request_type,
        transaction: [head[1], head[2], head[3]],
        client_id: None,
        server_id: None,
        wants_rapid_commit: false,
        requested_options: None,
        options,
    };
    let mut rest = options;
    while !rest.is_empty() {
        let (code, value, after) = split_option(rest)?;
        rest = after;
        match code {
            option::CLIENT_ID => set_once(&mut request.client_id, check_duid(value)?)?,
            option::SERVER_ID => set_once(&mut request.server_id, check_duid(value)?)?,
            option::RAPID_COMMIT => request.wants_rapid_commit = true,
            option::OPTION_REQUEST if value.len().is_multiple_of(2) => {
                set_once(&mut request.requested_options, value)?;
            }
            option::OPTION_REQUEST => return Err(RejectReason::Malformed),
            option::IA_NA => check_association(value)?,
            _ => {}
        }
    }
    Ok(request)
}

/// Sets a value that a message may have only once (RFC 8415, 21).
fn set_once<'a>(place: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), RejectReason> {
    if place.replace(value).is_some() {
        return Err(RejectReason::Malformed);
    }
    Ok(())
}

fn check_duid(value: &[u8]) -> Result<&[u8], RejectReason> {
    // A type of two bytes, then at least one.
    if (3..=MAX_DUID_BYTES).contains(&value.len()) { Ok(value) } else { Err(RejectReason::Malformed) }
}

/// Checks an association and its addresses, but no options of addresses: the depth of the recursion is fixed.
fn check_association(value: &[u8]) -> Result<(), RejectReason> {
    let (_, mut rest) = split_array::<12>(value)?;
    while !rest.is_empty() {
        let (code, value, after) = split_option(rest)?;
        rest = after;
        if code == option::IA_ADDRESS {
            split_array::<24>(value)?;
        }
    }
    Ok(())
}

fn split_option(bytes: &[u8]) -> Result<(u16, &[u8], &[u8]), RejectReason> {
    let (head, rest) = split_array::<4>(bytes)?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let (value, rest) = split_slice(rest, length)?;
    Ok((u16::from_be_bytes([head[0], head[1]]), value, rest))
}

/// Iterates over options that were checked before.
fn iterate_options(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (code, value, after) = split_option(rest).ok()?;
        rest = after;
        Some((code, value))
    })
}

impl<'a> Dhcp6Request<'a> {
    /// Returns whether the client requests an option (RFC 8415, 18.3.9).
    pub fn wants(&self, code: u16) -> bool {
        let codes = self.requested_options.unwrap_or_default();
        codes.chunks_exact(2).any(|pair| pair == code.to_be_bytes())
    }

    /// Returns the associations for addresses that are not temporary.
    pub fn associations(&self) -> impl Iterator<Item = IdentityAssociation<'a>> + use<'a> {
        let found = iterate_options(self.options).filter(|(code, _)| *code == option::IA_NA);
        found.filter_map(|(_, value)| {
            let (id, rest) = split_array::<4>(value).ok()?;
            let (_, options) = split_array::<8>(rest).ok()?;
            Some(IdentityAssociation { id, options })
        })
    }
}

impl<'a> IdentityAssociation<'a> {
    /// Returns the addresses that the client has or asks for.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> + use<'a> {
        let found = iterate_options(self.options).filter(|(code, _)| *code == option::IA_ADDRESS);
        found.filter_map(|(_, value)| split_array::<16>(value).ok().map(|(address, _)| address.into()))
    }
}

/// Writes a reply to the end of a buffer.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    buffer: &'a mut Vec<u8>,
}

/// Appends the fixed part of a reply to the buffer.
pub fn begin_reply<'a>(
    buffer: &'a mut Vec<u8>,
    request: &Dhcp6Request<'_>,
    reply_type: Dhcp6ReplyType,
) -> ReplyWriter<'a> {
    let [a, b, c] = request.transaction;
    buffer.extend_from_slice(&[reply_type as u8, a, b, c]);
    ReplyWriter { buffer }
}

impl ReplyWriter<'_> {
    pub fn put(&mut self, code: u16, value: &[u8]) {
        self.put_with(code, |buffer| buffer.extend_from_slice(value));
    }

    /// Appends an option whose value the closure writes.
    pub fn put_with(&mut self, code: u16, write: impl FnOnce(&mut Vec<u8>)) {
        self.buffer.extend_from_slice(&code.to_be_bytes());
        let length_at = self.buffer.len();
        self.buffer.extend_from_slice(&[0, 0]);
        write(self.buffer);
        let length = u16::try_from(self.buffer.len() - length_at - 2).unwrap_or(u16::MAX);
        self.buffer[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    }

    pub fn put_status(&mut self, status: u16) {
        self.put(option::STATUS_CODE, &status.to_be_bytes());
    }

    /// Appends an association; the closure writes its options.
    pub fn put_association(&mut self, id: [u8; 4], lifetime: u32, write: impl FnOnce(&mut ReplyWriter<'_>)) {
        self.put_with(option::IA_NA, |buffer| {
            buffer.extend_from_slice(&id);
            // T1 and T2: half and four fifths of the lifetime (RFC 8415, 21.4).
            buffer.extend_from_slice(&(lifetime / 2).to_be_bytes());
            buffer.extend_from_slice(&(lifetime / 5 * 4).to_be_bytes());
            write(&mut ReplyWriter { buffer });
        });
    }

    pub fn put_address(&mut self, address: Ipv6Addr, lifetime: u32) {
        self.put_with(option::IA_ADDRESS, |buffer| {
            buffer.extend_from_slice(&address.octets());
            buffer.extend_from_slice(&lifetime.to_be_bytes());
            buffer.extend_from_slice(&lifetime.to_be_bytes());
        });
    }
}
