//! Parses the kernel's messages about flows: first packets from the NFLOG group, and connections from connection
//! tracking.

use super::label::{FlowLabel, LABEL_BYTES};
use crate::netlink::attributes;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use tortie_plan::flow::{ConnectionOutcome, ConnectionTuple, FlowCounters, FlowTuple};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const ICMP_V6: u8 = 58;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// Conntrack status: a packet of the other direction was seen, and the connection is established.
const STATUS_SEEN_REPLY: u32 = 1 << 1;
const STATUS_ASSURED: u32 = 1 << 2;

/// Attributes of NFLOG messages.
mod packet {
    pub const TIMESTAMP: u16 = 3;
    pub const IN_INTERFACE: u16 = 4;
    pub const OUT_INTERFACE: u16 = 5;
    pub const PAYLOAD: u16 = 9;
    pub const PREFIX: u16 = 10;
    pub const CONNECTION: u16 = 18;
}

/// Attributes of connections.
mod connection {
    pub const ORIGINAL: u16 = 1;
    pub const REPLY: u16 = 2;
    pub const STATUS: u16 = 3;
    pub const SENT: u16 = 9;
    pub const RECEIVED: u16 = 10;
    pub const ZONE: u16 = 18;
    pub const TIMES: u16 = 20;
    pub const LABEL: u16 = 22;
    pub const TUPLE_ADDRESSES: u16 = 1;
    pub const TUPLE_PROTOCOL: u16 = 2;
}

/// The first packet of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketMessage {
    pub prefix: String,
    pub at: Option<SystemTime>,
    pub in_index: Option<u32>,
    pub out_index: Option<u32>,
    pub connection: ConnectionTuple,
    /// Empty for packets without a connection.
    pub label: FlowLabel,
}

/// A connection as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionMessage {
    pub connection: ConnectionTuple,
    pub label: FlowLabel,
    pub sent: FlowCounters,
    pub received: FlowCounters,
    pub started: Option<SystemTime>,
    pub stopped: Option<SystemTime>,
    pub outcome: Option<ConnectionOutcome>,
    pub zone: u16,
}

/// Parses the attributes of an NFLOG message. Returns `None` if they do not contain the packet's headers.
pub fn parse_packet(bytes: &[u8]) -> Option<PacketMessage> {
    let tracked = attributes::find(bytes, packet::CONNECTION).and_then(parse_connection);
    let payload = attributes::find(bytes, packet::PAYLOAD);
    let connection = match &tracked {
        Some(tracked) => tracked.connection,
        None => parse_headers(payload?)?,
    };
    let prefix = attributes::find(bytes, packet::PREFIX).unwrap_or_default();
    let prefix = prefix.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(PacketMessage {
        prefix: String::from_utf8_lossy(prefix).into_owned(),
        at: attributes::find(bytes, packet::TIMESTAMP).and_then(packet_time),
        in_index: number(bytes, packet::IN_INTERFACE),
        out_index: number(bytes, packet::OUT_INTERFACE),
        connection,
        label: tracked.map(|tracked| tracked.label).unwrap_or_default(),
    })
}

/// Parses the attributes of a connection.
pub fn parse_connection(bytes: &[u8]) -> Option<ConnectionMessage> {
    let original = TupleAttributes::parse(attributes::find(bytes, connection::ORIGINAL)?)?;
    let reply = TupleAttributes::parse(attributes::find(bytes, connection::REPLY)?)?;
    let is_icmp = [ICMP, ICMP_V6].contains(&original.protocol);
    let original_port = original.icmp.unwrap_or(original.destination_port);
    let flow = FlowTuple {
        source: original.source,
        destination: reply.source,
        protocol: original.protocol,
        destination_port: if is_icmp { original_port } else { reply.source_port },
    };
    let translated = (original.destination, original_port) != (flow.destination, flow.destination_port);
    let connection_tuple = ConnectionTuple {
        flow,
        source_port: original.source_port,
        original_destination: translated.then_some((original.destination, original_port)),
    };
    let label = attributes::find(bytes, connection::LABEL)
        .and_then(|label| label.get(..LABEL_BYTES)?.try_into().ok());
    let zone = attributes::find(bytes, connection::ZONE).and_then(|zone| zone.try_into().ok());
    let times = attributes::find(bytes, connection::TIMES);
    let received = counters(bytes, connection::RECEIVED);
    Some(ConnectionMessage {
        connection: connection_tuple,
        label: label.map(FlowLabel).unwrap_or_default(),
        sent: counters(bytes, connection::SENT),
        received,
        started: times.and_then(|times| nanoseconds(times, 1)),
        stopped: times.and_then(|times| nanoseconds(times, 2)),
        outcome: number(bytes, connection::STATUS).map(|status| outcome(original.protocol, status, received)),
        zone: zone.map(u16::from_be_bytes).unwrap_or_default(),
    })
}

/// Returns how far a connection got. The kernel considers TCP assured once the handshake is complete, and deletes a
/// connection whose only answer is a reset without recording the answer in its status.
fn outcome(protocol: u8, status: u32, received: FlowCounters) -> ConnectionOutcome {
    if status & STATUS_SEEN_REPLY == 0 && received.packets == 0 {
        return ConnectionOutcome::Unanswered;
    }
    if protocol == TCP && status & STATUS_ASSURED == 0 {
        return ConnectionOutcome::Refused;
    }
    ConnectionOutcome::Established
}

/// One direction of a connection.
struct TupleAttributes {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Identifier for ICMP.
    source_port: u16,
    destination_port: u16,
    /// Type and code.
    icmp: Option<u16>,
}

impl TupleAttributes {
    fn parse(bytes: &[u8]) -> Option<TupleAttributes> {
        let addresses = attributes::find(bytes, connection::TUPLE_ADDRESSES)?;
        let protocol = attributes::find(bytes, connection::TUPLE_PROTOCOL)?;
        let address = |v4: u16, v6: u16| -> Option<IpAddr> {
            if let Some(bytes) = attributes::find(addresses, v4) {
                return Some(<[u8; 4]>::try_from(bytes).ok()?.into());
            }
            Some(<[u8; 16]>::try_from(attributes::find(addresses, v6)?).ok()?.into())
        };
        let port = |kind: u16| {
            let port = attributes::find(protocol, kind).and_then(|port| port.try_into().ok());
            port.map(u16::from_be_bytes)
        };
        let byte = |kind: u16| attributes::find(protocol, kind).and_then(|value| value.first().copied());
        let kind = byte(5).or_else(|| byte(8));
        let code = byte(6).or_else(|| byte(9));
        Some(TupleAttributes {
            source: address(1, 3)?,
            destination: address(2, 4)?,
            protocol: byte(1)?,
            source_port: port(2).or_else(|| port(4)).or_else(|| port(7)).unwrap_or_default(),
            destination_port: port(3).unwrap_or_default(),
            icmp: kind.map(|kind| u16::from_be_bytes([kind, code.unwrap_or_default()])),
        })
    }
}

/// Parses the headers of a packet without a connection.
fn parse_headers(packet: &[u8]) -> Option<ConnectionTuple> {
    let (protocol, source, destination, header): (u8, IpAddr, IpAddr, usize) = match packet.first()? >> 4 {
        4 => {
            let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let destination: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            (*packet.get(9)?, source.into(), destination.into(), usize::from(packet[0] & 0xf) * 4)
        }
        6 => {
            let source: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            let destination: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (*packet.get(6)?, source.into(), destination.into(), 40)
        }
        _ => return None,
    };
    let word = |offset: usize| -> u16 {
        let at = header.saturating_add(offset);
        let bytes = packet.get(at..at.saturating_add(2)).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u16::from_be_bytes).unwrap_or_default()
    };
    let (source_port, destination_port) = match protocol {
        TCP | UDP | DCCP | SCTP | UDP_LITE => (word(0), word(2)),
        ICMP | ICMP_V6 => (0, word(0)),
        _ => (0, 0),
    };
    let flow = FlowTuple { source, destination, protocol, destination_port };
    Some(ConnectionTuple { flow, source_port, original_destination: None })
}

fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    attributes::find(bytes, kind)?.try_into().ok().map(u32::from_be_bytes)
}

fn counters(bytes: &[u8], kind: u16) -> FlowCounters {
    let nested = attributes::find(bytes, kind).unwrap_or_default();
    let value = |kind| {
        let value = attributes::find(nested, kind).and_then(|value| value.try_into().ok());
        value.map(u64::from_be_bytes).unwrap_or_default()
    };
    FlowCounters { packets: value(1), bytes: value(2) }
}

fn nanoseconds(times: &[u8], kind: u16) -> Option<SystemTime> {
    let value = u64::from_be_bytes(attributes::find(times, kind)?.try_into().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(value))
}

fn packet_time(bytes: &[u8]) -> Option<SystemTime> {
    let seconds = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
    let microseconds = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    time.checked_add(Duration::from_micros(microseconds))
}

/// Parses a message of each kind and formats it, for the fuzz target.
pub fn describe(bytes: &[u8]) -> Option<String> {
    let packet = parse_packet(bytes).map(|packet| format!("{packet:?}"));
    packet.or_else(|| parse_connection(bytes).map(|connection| format!("{connection:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::NetlinkAttributes;

    fn tuple(source: [u8; 4], destination: [u8; 4], protocol: u8, ports: [u16; 2]) -> NetlinkAttributes {
        let addresses = NetlinkAttributes::default().bytes(1, &source).bytes(2, &destination);
        let protocol = NetlinkAttributes::default()
            .bytes(1, &[protocol])
            .bytes(2, &ports[0].to_be_bytes())
            .bytes(3, &ports[1].to_be_bytes());
        NetlinkAttributes::default().nest(1, addresses).nest(2, protocol)
    }

    #[test]
    fn translated_connections_keep_both_destinations() {
        let totals =
            NetlinkAttributes::default().bytes(1, &7u64.to_be_bytes()).bytes(2, &900u64.to_be_bytes());
        let bytes = NetlinkAttributes::default()
            .nest(connection::ORIGINAL, tuple([10, 0, 0, 1], [10, 96, 0, 1], TCP, [4000, 443]))
            .nest(connection::REPLY, tuple([10, 0, 0, 2], [10, 0, 0, 1], TCP, [8443, 4000]))
            .number(connection::STATUS, STATUS_SEEN_REPLY | STATUS_ASSURED)
            .nest(connection::SENT, totals)
            .bytes(connection::LABEL, &[1; LABEL_BYTES])
            .into_bytes();
        let parsed = parse_connection(&bytes).unwrap();
        let flow = parsed.connection.flow;
        assert_eq!((flow.destination, flow.destination_port), ([10, 0, 0, 2].into(), 8443));
        assert_eq!(parsed.connection.original_destination, Some(([10, 96, 0, 1].into(), 443)));
        assert_eq!(parsed.connection.source_port, 4000);
        assert_eq!(parsed.sent, FlowCounters { packets: 7, bytes: 900 });
        assert_eq!(parsed.outcome, Some(ConnectionOutcome::Established));
        assert_eq!(parsed.label, FlowLabel([1; LABEL_BYTES]));
    }

    #[test]
    fn outcomes_depend_on_the_answer() {
        let (none, some) = (FlowCounters::default(), FlowCounters { packets: 1, bytes: 40 });
        assert_eq!(outcome(TCP, 0, none), ConnectionOutcome::Unanswered);
        assert_eq!(outcome(TCP, 0, some), ConnectionOutcome::Refused);
        assert_eq!(outcome(TCP, STATUS_SEEN_REPLY, some), ConnectionOutcome::Refused);
        assert_eq!(outcome(TCP, STATUS_SEEN_REPLY | STATUS_ASSURED, some), ConnectionOutcome::Established);
        assert_eq!(outcome(UDP, STATUS_SEEN_REPLY, some), ConnectionOutcome::Established);
    }

    #[test]
    fn headers_replace_a_missing_connection() {
        let mut echo = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, ICMP, 0, 0, 10, 65, 0, 2, 10, 65, 0, 3];
        echo.extend([8, 0, 0, 0]);
        let bytes = NetlinkAttributes::default()
            .bytes(packet::PAYLOAD, &echo)
            .text(packet::PREFIX, "D")
            .number(packet::IN_INTERFACE, 5)
            .into_bytes();
        let parsed = parse_packet(&bytes).unwrap();
        assert_eq!((parsed.prefix.as_str(), parsed.in_index), ("D", Some(5)));
        assert_eq!(parsed.connection.flow.destination_port, 0x0800);
        assert!(parsed.label.is_empty());
        for length in 0..bytes.len() {
            // Truncated messages must not panic.
            let _ = describe(&bytes[..length]);
        }
        assert_eq!(parse_headers(&echo[..19]), None);
    }
}
