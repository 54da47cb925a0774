//! Felix's sets: `ipset`'s, each with a name that begins like one of Felix's.

use super::Outcome;
use crate::error::{Error, Result};
use crate::netns::Netns;
use crate::policy::nft::attributes::{self, Attributes};
use crate::policy::nft::frames;
use nix::errno::Errno;
use nlink::netlink::NetlinkSocket;

/// Of both families, and those in which it prepares their contents.
const PREFIXES: [&str; 4] = ["cali40", "cali60", "cali4t", "cali6t"];

const SUBSYSTEM: u16 = 6;
const DESTROY: u16 = 3;
const LIST: u16 = 7;
const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const FLAGS: u16 = 6;
/// The version of the protocol that every kernel since 2011 speaks.
const VERSION: u8 = 6;
const NAMES_ALONE: u32 = 1 << 1;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

pub(super) async fn remove(netns: &Netns) -> Outcome {
    Outcome::of(remove_from(netns).await)
}

async fn remove_from(netns: &Netns) -> Result<Outcome> {
    let socket = netns.netfilter_socket()?;
    let mut outcome = Outcome::default();
    for name in names(&socket).await? {
        if !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let attributes = request().text(NAME, &name);
        match ask(&socket, DESTROY, ACKNOWLEDGE, attributes).await? {
            Answer::Names(_) => outcome.removed += 1,
            Answer::Refused(errno) => outcome.failures.push(format!("ipset {name}: {errno}")),
        }
    }
    Ok(outcome)
}

/// The names of all sets; none where the kernel has no such sets.
async fn names(socket: &NetlinkSocket) -> Result<Vec<String>> {
    let attributes = request().number(FLAGS, NAMES_ALONE);
    match ask(socket, LIST, DUMP, attributes).await? {
        Answer::Names(names) => Ok(names),
        Answer::Refused(Errno::EINVAL | Errno::ENOENT | Errno::EOPNOTSUPP) => Ok(Vec::new()),
        Answer::Refused(errno) => {
            Err(Error::Kernel { object: "list of ipsets".into(), reason: errno.to_string() })
        }
    }
}

fn request() -> Attributes {
    Attributes::default().bytes(PROTOCOL, &[VERSION])
}

enum Answer {
    Names(Vec<String>),
    Refused(Errno),
}

async fn ask(socket: &NetlinkSocket, command: u16, flags: u16, attributes: Attributes) -> Result<Answer> {
    const HEADER: usize = 20;
    const IPV4: u8 = 2;
    let describe = |error: nlink::Error| Error::kernel("ipsets", &error);
    let sequence = socket.next_seq();
    let attributes = attributes.into_bytes();
    let length = u32::try_from(HEADER + attributes.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&(SUBSYSTEM << 8 | command).to_ne_bytes());
    message.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(&[IPV4, 0, 0, 0]);
    message.extend_from_slice(&attributes);
    socket.send(&message).await.map_err(describe)?;
    let mut names = Vec::new();
    loop {
        let data = socket.recv_unicast().await.map_err(describe)?;
        for frame in frames(&data).filter(|frame| frame.sequence == sequence) {
            match frame.kind {
                DONE => return Ok(Answer::Names(names)),
                ERROR => {
                    let code =
                        frame.body.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
                    let refused = code.filter(|code| *code != 0).map(|code| Errno::from_raw(code.abs()));
                    return Ok(refused.map_or(Answer::Names(names), Answer::Refused));
                }
                _ => {
                    let name = frame.attributes().and_then(|attributes| attributes::find(attributes, NAME));
                    let text = |name: &[u8]| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
                    names.extend(name.map(text));
                }
            }
        }
    }
}
