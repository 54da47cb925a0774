//! Removes Felix's sets from `ipset`, recognised by the prefix of their names.

use super::FelixRemoval;
use crate::error::{DataplaneError, DataplaneResult};
use crate::netlink::{NLM_F_ACK, NLM_F_DUMP, NetlinkAttributes, NetlinkRequest, attributes, exchange};
use crate::netns::Netns;
use nix::errno::Errno;
use nlink::netlink::NetlinkSocket;

/// Prefixes of Felix's sets of both families, and of the temporary sets in which it prepares their contents.
const FELIX_SET_PREFIXES: [&str; 4] = ["cali40", "cali60", "cali4t", "cali6t"];

const SUBSYSTEM: u16 = 6;
const DESTROY: u16 = 3;
const LIST: u16 = 7;
const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const FLAGS: u16 = 6;
/// Protocol version that every kernel since 2011 supports.
const IPSET_PROTOCOL_VERSION: u8 = 6;
const LIST_NAMES_FLAG: u32 = 1 << 1;

pub(super) async fn remove(netns: &Netns) -> FelixRemoval {
    FelixRemoval::from_result(remove_from(netns).await)
}

async fn remove_from(netns: &Netns) -> DataplaneResult<FelixRemoval> {
    let socket = netns.netfilter_socket()?;
    let mut outcome = FelixRemoval::default();
    for name in list_names(&socket).await? {
        if !FELIX_SET_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let attributes = request().text(NAME, &name);
        match ask(&socket, DESTROY, NLM_F_ACK, attributes).await? {
            IpsetResponse::Names(_) => outcome.removed += 1,
            IpsetResponse::Refused(errno) => outcome.failures.push(format!("ipset {name}: {errno}")),
        }
    }
    Ok(outcome)
}

/// Returns the names of all sets; empty if the kernel does not support ipset.
async fn list_names(socket: &NetlinkSocket) -> DataplaneResult<Vec<String>> {
    let attributes = request().number(FLAGS, LIST_NAMES_FLAG);
    match ask(socket, LIST, NLM_F_DUMP, attributes).await? {
        IpsetResponse::Names(names) => Ok(names),
        IpsetResponse::Refused(Errno::EINVAL | Errno::ENOENT | Errno::EOPNOTSUPP) => Ok(Vec::new()),
        IpsetResponse::Refused(errno) => {
            Err(DataplaneError::Kernel { object: "list of ipsets".into(), reason: errno.to_string() })
        }
    }
}

fn request() -> NetlinkAttributes {
    NetlinkAttributes::default().bytes(PROTOCOL, &[IPSET_PROTOCOL_VERSION])
}

enum IpsetResponse {
    Names(Vec<String>),
    Refused(Errno),
}

async fn ask(
    socket: &NetlinkSocket,
    command: u16,
    flags: u16,
    attributes: NetlinkAttributes,
) -> DataplaneResult<IpsetResponse> {
    const IPV4: u8 = 2;
    let request =
        NetlinkRequest { kind: SUBSYSTEM << 8 | command, flags, head: &[IPV4, 0, 0, 0], attributes };
    let mut names = Vec::new();
    let refused = exchange(socket, request, |frame| {
        let name = frame.attributes().and_then(|attributes| attributes::find(attributes, NAME));
        names.extend(name.map(|name| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
    });
    let refused = refused.await.map_err(|error| DataplaneError::kernel("ipsets", &error))?;
    Ok(refused.map_or(IpsetResponse::Names(names), IpsetResponse::Refused))
}
