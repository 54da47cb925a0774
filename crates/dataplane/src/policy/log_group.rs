//! Receives the packets that Log rules have matched from an NFLOG group of the kernel.

use super::LOG_GROUP;
use crate::error::{DataplaneError, DataplaneResult};
use crate::netns::Netns;
use futures::StreamExt;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
        let end = |(address, port): (IpAddr, Option<u16>)| match port {
            Some(port) => std::net::SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        let protocol = match self.protocol {
            1 => "icmp".to_owned(),
            58 => "icmpv6".to_owned(),
            TCP => "tcp".to_owned(),
            UDP => "udp".to_owned(),
            SCTP => "sctp".to_owned(),
            other => format!("protocol/{other}"),
        };
        write!(f, "{protocol} {} -> {}", end(self.source), end(self.destination))
    }
}

/// Sends every packet that rules log in a namespace to `packets`, until the receiver is dropped or the kernel ends the
/// stream. Only one program can be bound to the group; the kernel drops packets that are not read in time.
pub async fn follow_log_group(netns: &Netns, packets: Sender<LoggedPacket>) -> DataplaneResult<()> {
    let failed = |error: nlink::Error| DataplaneError::kernel("log group 3", &error);
    let connection = netns.nflog()?;
    connection.bind_group(LOG_GROUP, COPIED_PACKET_BYTES).await.map_err(failed)?;
    let mut events = connection.events().await;
    while let Some(event) = events.next().await {
        let packet = match event {
            Ok(packet) => packet,
            // Some packets were lost; the stream continues.
            Err(error) if error.is_no_buffer_space() => continue,
            Err(error) => return Err(failed(error)),
        };
        let rule = packet.prefix.unwrap_or_default();
        if packets.send(LoggedPacket { rule, flow: flow(&packet.payload) }).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Parses the headers of a packet; `None` if they are truncated.
fn flow(packet: &[u8]) -> Option<PacketFlow> {
    let (protocol, source, destination, rest): (u8, IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let length = usize::from(packet[0] & 0xf) * 4;
            let address = |at: usize| -> Option<IpAddr> {
                let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(octets).into())
            };
            (*packet.get(9)?, address(12)?, address(16)?, packet.get(length..).unwrap_or_default())
        }
        6 => {
            let address = |at: usize| -> Option<IpAddr> {
                let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                Some(Ipv6Addr::from(octets).into())
            };
            (*packet.get(6)?, address(8)?, address(24)?, packet.get(40..).unwrap_or_default())
        }
        _ => return None,
    };
    let port = |at: usize| -> Option<u16> {
        let bytes: [u8; 2] = rest.get(at..at + 2)?.try_into().ok()?;
        [TCP, UDP, SCTP].contains(&protocol).then(|| u16::from_be_bytes(bytes))
    };
    Some(PacketFlow { protocol, source: (source, port(0)), destination: (destination, port(2)) })
}

/// Formats the flow of a packet as text.
#[doc(hidden)]
pub fn describe(packet: &[u8]) -> Option<String> {
    flow(packet).map(|flow| flow.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_tell_who_sent_it() {
        let mut v4 = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0, 10, 65, 0, 2, 10, 65, 0, 3];
        v4.extend([0xc0, 0, 0, 80]);
        assert_eq!(flow(&v4).unwrap().to_string(), "tcp 10.65.0.2:49152 -> 10.65.0.3:80");
        assert_eq!(flow(&v4[..20]).unwrap().to_string(), "tcp 10.65.0.2 -> 10.65.0.3");
        assert_eq!(flow(&v4[..19]), None);
        let mut v6 = vec![0x60, 0, 0, 0, 0, 8, 58, 64];
        v6.extend(Ipv6Addr::LOCALHOST.octets());
        v6.extend(Ipv6Addr::UNSPECIFIED.octets());
        assert_eq!(flow(&v6).unwrap().to_string(), "icmpv6 ::1 -> ::");
        v6[6] = UDP;
        v6.extend([0, 53, 0, 54]);
        assert_eq!(flow(&v6).unwrap().to_string(), "udp [::1]:53 -> [::]:54");
        assert_eq!(flow(&[]), None);
        assert_eq!(flow(&[0x10, 1, 2]), None);
    }
}
