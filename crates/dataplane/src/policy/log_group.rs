//! Receives the packets that Log rules have matched from an NFLOG group of the kernel.

use super::LOG_GROUP;
use crate::error::{DataplaneError, DataplaneResult};
use crate::netns::Netns;
use futures::StreamExt;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use tokio::sync::mpsc::Sender;

/// Bytes copied of each packet: enough for the longest headers, without the payload.
const COPIED_PACKET_BYTES: u32 = 128;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// A packet that a rule logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedPacket {
    /// Identity of the rule, for example `gnp/web ingress rule 1`.
    pub rule: String,
    pub flow: Option<PacketFlow>,
}

/// Protocol and endpoints of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFlow {
    pub protocol: u8,
    pub source: (IpAddr, Option<u16>),
    pub destination: (IpAddr, Option<u16>),
}

impl fmt::Display for PacketFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            1 => "icmp".to_owned(),
            58 => "icmpv6".to_owned(),
            TCP => "tcp".to_owned(),
            UDP => "udp".to_owned(),
            SCTP => "sctp".to_owned(),
            other => format!("protocol/{other}"),
        };
        write!(f, "{protocol} {} -> {}", format_end(self.source), format_end(self.destination))
    }
}

fn format_end((address, port): (IpAddr, Option<u16>)) -> String {
    match port {
        Some(port) => SocketAddr::new(address, port).to_string(),
        None => address.to_string(),
    }
}

/// Sends every packet that rules log in a namespace to `packets`, until the receiver is dropped or the kernel ends the
/// stream. Only one program can be bound to the group; the kernel drops packets that are not read in time.
pub async fn follow_log_group(netns: &Netns, packets: Sender<LoggedPacket>) -> DataplaneResult<()> {
    let connection = netns.nflog()?;
    connection.bind_group(LOG_GROUP, COPIED_PACKET_BYTES).await.map_err(|error| group_error(&error))?;
    let mut events = connection.events().await;
    while let Some(event) = events.next().await {
        let packet = match event {
            Ok(packet) => packet,
            // Some packets were lost; the stream continues.
            Err(error) if error.is_no_buffer_space() => continue,
            Err(error) => return Err(group_error(&error)),
        };
        let rule = packet.prefix.unwrap_or_default();
        if packets.send(LoggedPacket { rule, flow: parse_flow(&packet.payload) }).await.is_err() {
            break;
        }
    }
    Ok(())
}

fn group_error(error: &nlink::Error) -> DataplaneError {
    DataplaneError::kernel("log group 3", error)
}

/// Parses the headers of a packet; `None` if they are truncated.
fn parse_flow(packet: &[u8]) -> Option<PacketFlow> {
    let (protocol, source, destination, rest): (u8, IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let length = usize::from(packet[0] & 0xf) * 4;
            let source = IpAddr::from(octets::<4>(packet, 12)?);
            let destination = IpAddr::from(octets::<4>(packet, 16)?);
            (*packet.get(9)?, source, destination, packet.get(length..).unwrap_or_default())
        }
        6 => {
            let source = IpAddr::from(octets::<16>(packet, 8)?);
            let destination = IpAddr::from(octets::<16>(packet, 24)?);
            (*packet.get(6)?, source, destination, packet.get(40..).unwrap_or_default())
        }
        _ => return None,
    };
    // Only these protocols have ports.
    let rest = if [TCP, UDP, SCTP].contains(&protocol) { rest } else { &[] };
    Some(PacketFlow {
        protocol,
        source: (source, octets(rest, 0).map(u16::from_be_bytes)),
        destination: (destination, octets(rest, 2).map(u16::from_be_bytes)),
    })
}

fn octets<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

/// Formats the flow of a packet as text.
#[doc(hidden)]
pub fn describe(packet: &[u8]) -> Option<String> {
    parse_flow(packet).map(|flow| flow.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn headers_tell_who_sent_it() {
        let mut v4 = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0, 10, 65, 0, 2, 10, 65, 0, 3];
        v4.extend([0xc0, 0, 0, 80]);
        assert_eq!(parse_flow(&v4).unwrap().to_string(), "tcp 10.65.0.2:49152 -> 10.65.0.3:80");
        assert_eq!(parse_flow(&v4[..20]).unwrap().to_string(), "tcp 10.65.0.2 -> 10.65.0.3");
        assert_eq!(parse_flow(&v4[..19]), None);
        let mut v6 = vec![0x60, 0, 0, 0, 0, 8, 58, 64];
        v6.extend(Ipv6Addr::LOCALHOST.octets());
        v6.extend(Ipv6Addr::UNSPECIFIED.octets());
        assert_eq!(parse_flow(&v6).unwrap().to_string(), "icmpv6 ::1 -> ::");
        v6[6] = UDP;
        v6.extend([0, 53, 0, 54]);
        assert_eq!(parse_flow(&v6).unwrap().to_string(), "udp [::1]:53 -> [::]:54");
        assert_eq!(parse_flow(&[]), None);
        assert_eq!(parse_flow(&[0x10, 1, 2]), None);
    }
}
