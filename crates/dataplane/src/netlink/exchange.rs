//! Sends a request to the kernel and receives its responses.

use super::{NetlinkAttributes, NetlinkFrame, frames};
use nix::errno::Errno;
use nlink::netlink::NetlinkSocket;

const NLM_F_REQUEST: u16 = 1;
pub const NLM_F_ACK: u16 = 4;
pub const NLM_F_DUMP: u16 = 0x300;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

pub struct NetlinkRequest<'a> {
    pub kind: u16,
    /// `NLM_F_ACK` or `NLM_F_DUMP`: without either, the end of the response cannot be detected.
    pub flags: u16,
    /// The protocol header that precedes the attributes.
    pub head: &'a [u8],
    pub attributes: NetlinkAttributes,
}

impl NetlinkRequest<'_> {
    fn into_bytes(self, sequence: u32) -> Vec<u8> {
        const HEADER: usize = 16;
        let attributes = self.attributes.into_bytes();
        let length = u32::try_from(HEADER + self.head.len() + attributes.len()).unwrap_or(u32::MAX);
        let mut message = length.to_ne_bytes().to_vec();
        message.extend_from_slice(&self.kind.to_ne_bytes());
        message.extend_from_slice(&(NLM_F_REQUEST | self.flags).to_ne_bytes());
        message.extend_from_slice(&sequence.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(self.head);
        message.extend_from_slice(&attributes);
        message
    }
}

/// Sends a request and passes each response frame to `answer`. Returns the errno if the kernel rejects the request.
pub async fn exchange(
    socket: &NetlinkSocket,
    request: NetlinkRequest<'_>,
    answer: impl FnMut(NetlinkFrame<'_>),
) -> nlink::Result<Option<Errno>> {
    let sequence = socket.next_seq();
    answers(socket, &request.into_bytes(sequence), sequence, answer).await
}

/// Like [`exchange`], for a complete message with its sequence number.
pub async fn answers(
    socket: &NetlinkSocket,
    message: &[u8],
    sequence: u32,
    mut answer: impl FnMut(NetlinkFrame<'_>),
) -> nlink::Result<Option<Errno>> {
    socket.send(message).await?;
    loop {
        let data = socket.recv_unicast().await?;
        for frame in frames(&data).filter(|frame| frame.sequence == sequence) {
            match frame.kind {
                NLMSG_DONE => return Ok(None),
                NLMSG_ERROR => {
                    let code = frame.body.get(..4).and_then(|code| code.try_into().ok());
                    let code = code.map(i32::from_ne_bytes).filter(|code| *code != 0);
                    return Ok(code.map(|code| Errno::from_raw(code.saturating_abs())));
                }
                _ => answer(frame),
            }
        }
    }
}
