//! XDP programs of interfaces: which are attached, and how they go. Messages by hand: `nlink` knows none of this.

use crate::error::{Error, Result};
use crate::netns::Netns;
use crate::policy::nft::attributes::{self, Attributes};
use crate::policy::nft::frames;
use nix::errno::Errno;
use nlink::netlink::NetlinkSocket;

const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
const NAME: u16 = 3;
const XDP: u16 = 43;
const XDP_FD: u16 = 1;
const XDP_FLAGS: u16 = 3;
/// The ways in which a program can be attached: where its number is told, and the flag that means this way.
const MODES: [(u16, u32); 3] = [(5, 1 << 2), (6, 1 << 1), (7, 1 << 3)];

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// A program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedProgram {
    index: i32,
    pub interface: String,
    pub program: u32,
    flag: u32,
}

/// A socket for them.
pub(crate) struct XdpPrograms {
    socket: NetlinkSocket,
}

impl XdpPrograms {
    pub fn open(netns: &Netns) -> Result<XdpPrograms> {
        Ok(XdpPrograms { socket: netns.route_socket()? })
    }

    /// Of all interfaces.
    pub async fn attached(&self) -> Result<Vec<AttachedProgram>> {
        let mut all = Vec::new();
        let refused = exchange(&self.socket, GET_LINK, DUMP, 0, Attributes::default(), |body| {
            all.extend(read(body));
        })
        .await?;
        match refused {
            None => Ok(all),
            Some(errno) => Err(Error::Kernel { object: "list of links".into(), reason: errno.to_string() }),
        }
    }

    /// Why the kernel refuses, if it does.
    pub async fn detach(&self, attached: &AttachedProgram) -> Result<Option<Errno>> {
        const NOTHING: i32 = -1;
        let nothing = Attributes::default()
            .bytes(XDP_FD, &NOTHING.to_ne_bytes())
            .bytes(XDP_FLAGS, &attached.flag.to_ne_bytes());
        let attributes = Attributes::default().nest(XDP, nothing);
        exchange(&self.socket, SET_LINK, ACKNOWLEDGE, attached.index, attributes, |_| {}).await
    }
}

/// The programs of one interface.
fn read(body: &[u8]) -> Vec<AttachedProgram> {
    let number = |bytes: &[u8]| bytes.get(..4)?.try_into().ok().map(u32::from_ne_bytes);
    let index = body.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    let (Some(index), Some(attributes)) = (index, body.get(16..)) else { return Vec::new() };
    let name = attributes::find(attributes, NAME).unwrap_or_default();
    let interface = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    let nest = attributes::find(attributes, XDP).unwrap_or_default();
    let of_mode = |(kind, flag): (u16, u32)| {
        let program = attributes::find(nest, kind).and_then(number)?;
        Some(AttachedProgram { index, interface: interface.clone(), program, flag })
    };
    MODES.into_iter().filter_map(of_mode).collect()
}

async fn exchange(
    socket: &NetlinkSocket,
    command: u16,
    flags: u16,
    index: i32,
    attributes: Attributes,
    mut answer: impl FnMut(&[u8]),
) -> Result<Option<Errno>> {
    const HEADER: usize = 32;
    let describe = |error: nlink::Error| Error::kernel("XDP programs", &error);
    let sequence = socket.next_seq();
    let attributes = attributes.into_bytes();
    let length = u32::try_from(HEADER + attributes.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&command.to_ne_bytes());
    message.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    // Family and type, then the interface, then flags that stay as they are.
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(&index.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&attributes);
    socket.send(&message).await.map_err(describe)?;
    loop {
        let data = socket.recv_unicast().await.map_err(describe)?;
        for frame in frames(&data).filter(|frame| frame.sequence == sequence) {
            match frame.kind {
                DONE => return Ok(None),
                ERROR => {
                    let code =
                        frame.body.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
                    return Ok(code.filter(|code| *code != 0).map(|code| Errno::from_raw(code.abs())));
                }
                _ => answer(frame.body),
            }
        }
    }
}
