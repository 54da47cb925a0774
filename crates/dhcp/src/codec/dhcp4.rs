//! DHCPv4 messages (RFC 2131, RFC 2132).

use super::frame::MacAddress;
use super::{RejectReason, split_array, split_slice};
use std::net::Ipv4Addr;

pub mod option {
    pub const PAD: u8 = 0;
    pub const SUBNET_MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const DNS_SERVERS: u8 = 6;
    pub const HOST_NAME: u8 = 12;
    pub const DOMAIN_NAME: u8 = 15;
    pub const INTERFACE_MTU: u8 = 26;
    pub const BROADCAST: u8 = 28;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const PARAMETER_LIST: u8 = 55;
    pub const MESSAGE: u8 = 56;
    pub const MAX_MESSAGE_SIZE: u8 = 57;
    pub const RENEWAL_TIME: u8 = 58;
    pub const REBINDING_TIME: u8 = 59;
    pub const CLIENT_ID: u8 = 61;
    /// RFC 3442.
    pub const CLASSLESS_ROUTES: u8 = 121;
    /// The code of old Windows clients for the same.
    pub const CLASSLESS_ROUTES_MICROSOFT: u8 = 249;
    pub const END: u8 = 255;
}

const BOOT_REQUEST: u8 = 1;
const BOOT_REPLY: u8 = 2;
const HARDWARE_ETHERNET: u8 = 1;
const MAC_BYTES: u8 = 6;
const MAGIC_COOKIE: [u8; 4] = [99, 130, 83, 99];
const BROADCAST_FLAG: u16 = 0x8000;
/// Bytes of a message before the cookie.
const HEADER_BYTES: usize = 236;
/// Size below which old clients and relays ignore a message (RFC 1542, 2.1).
const MIN_MESSAGE_BYTES: usize = 300;

/// The type of a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dhcp4RequestType {
    Discover,
    Request,
    Decline,
    Release,
    Inform,
}

/// The type of a server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dhcp4ReplyType {
    Offer = 2,
    Ack = 5,
    Nak = 6,
}

/// A message of a client, with the options that the server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dhcp4Request<'a> {
    pub request_type: Dhcp4RequestType,
    pub transaction: [u8; 4],
    pub wants_broadcast: bool,
    /// Address that the client uses already; unspecified if none.
    pub client_address: Ipv4Addr,
    pub relay_address: Ipv4Addr,
    pub mac: MacAddress,
    pub requested_address: Option<Ipv4Addr>,
    pub server_id: Option<Ipv4Addr>,
    /// Codes of options that the client requests; `None` if it requests none in particular.
    pub parameters: Option<&'a [u8]>,
    pub client_id: Option<&'a [u8]>,
    pub max_message_size: Option<u16>,
}

impl Dhcp4Request<'_> {
    /// Returns whether the client wants an option.
    pub fn wants(&self, code: u8) -> bool {
        self.parameters.is_none_or(|parameters| parameters.contains(&code))
    }
}

/// The options found so far; the first occurrence of each counts.
#[derive(Default)]
struct FoundOptions<'a> {
    message_type: Option<u8>,
    overload: Option<u8>,
    requested_address: Option<Ipv4Addr>,
    server_id: Option<Ipv4Addr>,
    parameters: Option<&'a [u8]>,
    client_id: Option<&'a [u8]>,
    max_message_size: Option<u16>,
}

/// Parses a message from a client.
pub fn parse_request(message: &[u8]) -> Result<Dhcp4Request<'_>, RejectReason> {
    let (header, rest) = split_slice(message, HEADER_BYTES)?;
    let (cookie, options) = split_array::<4>(rest)?;
    if cookie != MAGIC_COOKIE {
        return Err(RejectReason::Malformed);
    }
    if header[0] != BOOT_REQUEST {
        return Err(RejectReason::UnknownMessage);
    }
    if header[1] != HARDWARE_ETHERNET || header[2] != MAC_BYTES {
        return Err(RejectReason::Malformed);
    }
    let mut found = FoundOptions::default();
    found.read(options)?;
    // The fields for names may hold more options (RFC 2132, 9.3).
    let overload = found.overload.unwrap_or(0);
    if overload & 1 != 0 {
        found.read(&header[108..236])?;
    }
    if overload & 2 != 0 {
        found.read(&header[44..108])?;
    }
    let request_type = match found.message_type {
        Some(1) => Dhcp4RequestType::Discover,
        Some(3) => Dhcp4RequestType::Request,
        Some(4) => Dhcp4RequestType::Decline,
        Some(7) => Dhcp4RequestType::Release,
        Some(8) => Dhcp4RequestType::Inform,
        // Without a type it is a BOOTP request.
        _ => return Err(RejectReason::UnknownMessage),
    };
    let address = |offset: usize| split_array::<4>(&header[offset..]).map(|(bytes, _)| Ipv4Addr::from(bytes));
    Ok(Dhcp4Request {
        request_type,
        transaction: split_array::<4>(&header[4..])?.0,
        wants_broadcast: u16::from_be_bytes([header[10], header[11]]) & BROADCAST_FLAG != 0,
        client_address: address(12)?,
        relay_address: address(24)?,
        mac: MacAddress(split_array::<6>(&header[28..])?.0),
        requested_address: found.requested_address,
        server_id: found.server_id,
        parameters: found.parameters,
        client_id: found.client_id,
        max_message_size: found.max_message_size,
    })
}

impl<'a> FoundOptions<'a> {
    fn read(&mut self, mut rest: &'a [u8]) -> Result<(), RejectReason> {
        while let Some((&code, after)) = rest.split_first() {
            rest = after;
            if code == option::PAD {
                continue;
            }
            if code == option::END {
                return Ok(());
            }
            let (&length, after) = rest.split_first().ok_or(RejectReason::Malformed)?;
            let (value, after) = split_slice(after, usize::from(length))?;
            rest = after;
            self.record(code, value)?;
        }
        // Some clients omit the end option.
        Ok(())
    }

    fn record(&mut self, code: u8, value: &'a [u8]) -> Result<(), RejectReason> {
        match code {
            option::MESSAGE_TYPE => set_first(&mut self.message_type, fixed::<1>(value)?[0]),
            option::OVERLOAD => set_first(&mut self.overload, fixed::<1>(value)?[0]),
            option::REQUESTED_ADDRESS => set_first(&mut self.requested_address, fixed::<4>(value)?.into()),
            option::SERVER_ID => set_first(&mut self.server_id, fixed::<4>(value)?.into()),
            option::MAX_MESSAGE_SIZE => {
                set_first(&mut self.max_message_size, u16::from_be_bytes(fixed(value)?));
            }
            option::PARAMETER_LIST => set_first(&mut self.parameters, value),
            option::CLIENT_ID => set_first(&mut self.client_id, value),
            _ => {}
        }
        Ok(())
    }
}

fn set_first<T>(place: &mut Option<T>, value: T) {
    place.get_or_insert(value);
}

fn fixed<const N: usize>(value: &[u8]) -> Result<[u8; N], RejectReason> {
    value.try_into().map_err(|_| RejectReason::Malformed)
}

/// Writes the options of a reply within a size limit.
#[derive(Debug)]
pub struct OptionWriter<'a> {
    buffer: &'a mut Vec<u8>,
    /// Length of the buffer at which it is full; the last byte is kept for the end option.
    limit: usize,
    start: usize,
    /// Whether an option was left out because it did not fit.
    pub is_truncated: bool,
}

/// Appends the fixed part of a reply to the buffer. `max_bytes` limits the message.
pub fn begin_reply<'a>(
    buffer: &'a mut Vec<u8>,
    request: &Dhcp4Request<'_>,
    reply_type: Dhcp4ReplyType,
    address: Ipv4Addr,
    max_bytes: usize,
) -> OptionWriter<'a> {
    let start = buffer.len();
    let flags: u16 = if request.wants_broadcast { BROADCAST_FLAG } else { 0 };
    // A NAK carries no address of the client (RFC 2131, table 3).
    let in_use = match reply_type {
        Dhcp4ReplyType::Ack => request.client_address,
        Dhcp4ReplyType::Offer | Dhcp4ReplyType::Nak => Ipv4Addr::UNSPECIFIED,
    };
    buffer.extend_from_slice(&[BOOT_REPLY, HARDWARE_ETHERNET, MAC_BYTES, 0]);
    buffer.extend_from_slice(&request.transaction);
    buffer.extend_from_slice(&[0, 0]);
    buffer.extend_from_slice(&flags.to_be_bytes());
    buffer.extend_from_slice(&in_use.octets());
    buffer.extend_from_slice(&address.octets());
    // Addresses of the next server and of the relay.
    buffer.extend_from_slice(&[0; 8]);
    buffer.extend_from_slice(&request.mac.0);
    buffer.resize(start + HEADER_BYTES, 0);
    buffer.extend_from_slice(&MAGIC_COOKIE);
    let mut writer = OptionWriter { buffer, limit: start + max_bytes, start, is_truncated: false };
    writer.put(option::MESSAGE_TYPE, &[reply_type as u8]);
    writer
}

impl OptionWriter<'_> {
    /// Appends an option, or nothing if it does not fit. A long value becomes several options of the same code
    /// (RFC 3396).
    pub fn put(&mut self, code: u8, value: &[u8]) {
        const MAX_OPTION_BYTES: usize = 255;
        let needed = value.len() + 2 * value.len().div_ceil(MAX_OPTION_BYTES).max(1);
        if self.buffer.len() + needed >= self.limit {
            self.is_truncated = true;
            return;
        }
        for part in value.chunks(MAX_OPTION_BYTES) {
            self.buffer.extend_from_slice(&[code, u8::try_from(part.len()).unwrap_or(0)]);
            self.buffer.extend_from_slice(part);
        }
    }

    pub fn put_addresses(&mut self, code: u8, addresses: &[Ipv4Addr]) {
        const MAX_ADDRESSES: usize = 32;
        let mut value = [0; 4 * MAX_ADDRESSES];
        let count = addresses.len().min(MAX_ADDRESSES);
        for (place, address) in value.chunks_exact_mut(4).zip(addresses) {
            place.copy_from_slice(&address.octets());
        }
        if count > 0 {
            self.put(code, &value[..4 * count]);
        }
    }

    pub fn put_seconds(&mut self, code: u8, seconds: u32) {
        self.put(code, &seconds.to_be_bytes());
    }

    /// Ends the message.
    pub fn finish(self) {
        self.buffer.push(option::END);
        let padded = self.buffer.len().max(self.start + MIN_MESSAGE_BYTES);
        self.buffer.resize(padded, 0);
    }
}
