//! Parses and builds frames, DHCP messages and router advertisements. Parsers borrow from the frame and allocate
//! nothing, so a hostile virtual machine cannot make the server use memory.

pub mod dhcp4;
pub mod dhcp6;
pub mod frame;
pub mod neighbour;

/// Reasons why a frame gets no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    #[error("the frame or message is malformed")]
    Malformed,
    #[error("the message is of no type that clients send to servers")]
    UnknownMessage,
    #[error("the sender's MAC address is not that of the endpoint")]
    ForeignMac,
    #[error("the source address is not one that a client uses")]
    ForeignSource,
    #[error("the message was relayed")]
    Relayed,
    #[error("the message is for another server")]
    OtherServer,
    #[error("the endpoint has no address of this family with DHCP")]
    NoLease,
    #[error("the message must not be answered")]
    NoAnswer,
    #[error("the interface has no IPv6 link-local address to reply from")]
    NoLinkLocal,
}

impl RejectReason {
    pub const ALL: [RejectReason; 9] = [
        RejectReason::Malformed,
        RejectReason::UnknownMessage,
        RejectReason::ForeignMac,
        RejectReason::ForeignSource,
        RejectReason::Relayed,
        RejectReason::OtherServer,
        RejectReason::NoLease,
        RejectReason::NoAnswer,
        RejectReason::NoLinkLocal,
    ];

    /// Returns the value of the metric's label.
    pub fn label(self) -> &'static str {
        match self {
            RejectReason::Malformed => "malformed",
            RejectReason::UnknownMessage => "unknown-message",
            RejectReason::ForeignMac => "foreign-mac",
            RejectReason::ForeignSource => "foreign-source",
            RejectReason::Relayed => "relayed",
            RejectReason::OtherServer => "other-server",
            RejectReason::NoLease => "no-lease",
            RejectReason::NoAnswer => "no-answer",
            RejectReason::NoLinkLocal => "no-link-local",
        }
    }
}

/// Splits the first `N` bytes off a slice.
pub(crate) fn split_array<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), RejectReason> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(RejectReason::Malformed)?;
    Ok((*first, rest))
}

/// Splits the first `length` bytes off a slice.
pub(crate) fn split_slice(bytes: &[u8], length: usize) -> Result<(&[u8], &[u8]), RejectReason> {
    bytes.split_at_checked(length).ok_or(RejectReason::Malformed)
}

/// Appends a domain name in the wire format of DNS, without compression. The caller has checked the labels.
pub(crate) fn put_domain(buffer: &mut Vec<u8>, domain: &str) {
    for label in domain.split('.').filter(|label| !label.is_empty()) {
        let label = label.as_bytes().get(..63).unwrap_or(label.as_bytes());
        buffer.push(u8::try_from(label.len()).unwrap_or(0));
        buffer.extend_from_slice(label);
    }
    buffer.push(0);
}
