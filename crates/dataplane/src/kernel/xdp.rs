//! Lists and detaches the XDP programs of interfaces. The messages are encoded here because `nlink` does not support
//! them.

use crate::error::{DataplaneError, DataplaneResult};
use crate::netlink::{self, NLM_F_ACK, NLM_F_DUMP, NetlinkAttributes, NetlinkRequest, attributes};
use crate::netns::Netns;
use nix::errno::Errno;
use nlink::netlink::NetlinkSocket;

const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
const NAME: u16 = 3;
const XDP: u16 = 43;
const XDP_FD: u16 = 1;
const XDP_FLAGS: u16 = 3;
/// Attach modes: the attribute that holds the program id, and the flag that selects the mode.
const XDP_ATTACH_MODES: [(u16, u32); 3] = [(5, 1 << 2), (6, 1 << 1), (7, 1 << 3)];

/// A program attached to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    index: i32,
    pub interface: String,
    pub program: u32,
    flag: u32,
}

/// A socket for XDP requests.
pub struct XdpPrograms {
    socket: NetlinkSocket,
}

impl XdpPrograms {
    pub fn open(netns: &Netns) -> DataplaneResult<XdpPrograms> {
        Ok(XdpPrograms { socket: netns.route_socket()? })
    }

    /// Returns the programs of all interfaces.
    pub async fn attached(&self) -> DataplaneResult<Vec<AttachedProgram>> {
        let mut all = Vec::new();
        let refused = self
            .exchange(GET_LINK, NLM_F_DUMP, 0, NetlinkAttributes::default(), |body| all.extend(read(body)))
            .await?;
        match refused {
            None => Ok(all),
            Some(errno) => {
                Err(DataplaneError::Kernel { object: "list of links".into(), reason: errno.to_string() })
            }
        }
    }

    /// Detaches a program. Returns the errno if the kernel rejects the request.
    pub async fn detach(&self, attached: &AttachedProgram) -> DataplaneResult<Option<Errno>> {
        const DETACH_FD: i32 = -1;
        let nothing = NetlinkAttributes::default()
            .bytes(XDP_FD, &DETACH_FD.to_ne_bytes())
            .bytes(XDP_FLAGS, &attached.flag.to_ne_bytes());
        let attributes = NetlinkAttributes::default().nest(XDP, nothing);
        self.exchange(SET_LINK, NLM_F_ACK, attached.index, attributes, |_| {}).await
    }

    async fn exchange(
        &self,
        kind: u16,
        flags: u16,
        index: i32,
        attributes: NetlinkAttributes,
        mut answer: impl FnMut(&[u8]),
    ) -> DataplaneResult<Option<Errno>> {
        // `struct ifinfomsg`: family and type, then the interface index, then flags that remain unchanged.
        let mut head = [0; 16];
        head[4..8].copy_from_slice(&index.to_ne_bytes());
        let request = NetlinkRequest { kind, flags, head: &head, attributes };
        let refused = netlink::exchange(&self.socket, request, |frame| answer(frame.body)).await;
        refused.map_err(|error| DataplaneError::kernel("XDP programs", &error))
    }
}

/// Decodes the programs of one interface.
fn read(body: &[u8]) -> Vec<AttachedProgram> {
    let index = body.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    let (Some(index), Some(attributes)) = (index, body.get(16..)) else { return Vec::new() };
    let name = attributes::find(attributes, NAME).unwrap_or_default();
    let interface = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    let nest = attributes::find(attributes, XDP).unwrap_or_default();
    let mut programs = Vec::new();
    for (kind, flag) in XDP_ATTACH_MODES {
        let program = attributes::find(nest, kind).and_then(|bytes| bytes.get(..4)?.try_into().ok());
        if let Some(program) = program.map(u32::from_ne_bytes) {
            programs.push(AttachedProgram { index, interface: interface.clone(), program, flag });
        }
    }
    programs
}
