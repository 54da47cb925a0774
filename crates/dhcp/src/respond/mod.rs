//! The server as a function: a frame and the state of its interface in, a reply out. There are no leases to keep, since
//! every address is bound to an endpoint; so there is no state, no clock and no I/O.

mod advertise;
mod dhcp4;
mod dhcp6;

pub use advertise::build_advertisement;

use crate::codec::RejectReason;
use crate::codec::dhcp4::{Dhcp4ReplyType, Dhcp4RequestType};
use crate::codec::dhcp6::{Dhcp6ReplyType, Dhcp6RequestType};
use crate::codec::frame::{ReceivedPacket, parse_frame};
use crate::lease::PortState;

/// The type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestType {
    Dhcp4(Dhcp4RequestType),
    Dhcp6(Dhcp6RequestType),
    RouterSolicitation,
}

/// The type of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyType {
    Dhcp4(Dhcp4ReplyType),
    Dhcp6(Dhcp6ReplyType),
    RouterAdvertisement,
}

/// A request that was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessedRequest {
    pub request: RequestType,
    /// Type of the frame in the reply buffer; `None` if the request has no reply.
    pub reply: Option<ReplyType>,
    /// Whether options were left out of the reply because the client accepts no longer message.
    pub is_truncated: bool,
}

/// Processes a frame that the machine behind the interface has sent. Writes the reply, if any, to the buffer.
pub fn respond(
    frame: &[u8],
    port: &PortState,
    reply: &mut Vec<u8>,
) -> Result<ProcessedRequest, RejectReason> {
    reply.clear();
    match parse_frame(frame)? {
        ReceivedPacket::Dhcp4 { mac, source, message } => {
            check_mac(mac == port.lease.mac)?;
            dhcp4::respond(source, message, port, reply)
        }
        ReceivedPacket::Dhcp6 { mac, source, destination, message } => {
            check_mac(mac == port.lease.mac)?;
            dhcp6::respond(source, destination, message, port, reply)
        }
        ReceivedPacket::RouterSolicitation { mac, source } => {
            check_mac(mac == port.lease.mac)?;
            advertise::respond(source, port, reply)
        }
    }
}

fn check_mac(is_own: bool) -> Result<(), RejectReason> {
    if is_own { Ok(()) } else { Err(RejectReason::ForeignMac) }
}
