//! The veth pair itself.

use super::{Attach, HOST_MAC};
use crate::error::{Error, Result};
use crate::failure::KernelObject;
use crate::netns::Netns;
use nlink::netlink::MessageBuilder;
use nlink::netlink::link::{LinkConfig, VethLink};
use nlink::netlink::messages::LinkMessage;
use nlink::{Connection, Route};
use std::time::Duration;

const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
/// How long another program may keep changing the host end's MAC before we give up.
const MAC_ATTEMPTS: usize = 50;
const MAC_PAUSE: Duration = Duration::from_millis(100);
const GONE_ATTEMPTS: usize = 50;
const GONE_PAUSE: Duration = Duration::from_millis(10);
const RUNNING_ATTEMPTS: usize = 1000;
const RUNNING_PAUSE: Duration = Duration::from_millis(2);

/// A veth pair whose near end has a number of queues.
struct Pair {
    veth: VethLink,
    queues: u32,
}

impl LinkConfig for Pair {
    fn name(&self) -> &str {
        self.veth.name()
    }

    fn kind(&self) -> &str {
        self.veth.kind()
    }

    fn peer_name(&self) -> Option<&str> {
        self.veth.peer_name()
    }

    fn creation_error(&self) -> Option<&str> {
        self.veth.creation_error()
    }

    fn write_to(&self, builder: &mut MessageBuilder, parent: Option<u32>) {
        self.veth.write_to(builder, parent);
        if self.queues > 0 {
            builder.append_attr_u32(IFLA_NUM_TX_QUEUES, self.queues);
            builder.append_attr_u32(IFLA_NUM_RX_QUEUES, self.queues);
        }
    }
}

pub(super) async fn find(connection: &Connection<Route>, name: &str) -> Result<Option<LinkMessage>> {
    match connection.get_link_by_name(name).await {
        Ok(link) => Ok(link),
        Err(error) if error.is_not_found() || error.is_no_device() => Ok(None),
        Err(error) => Err(Error::kernel(KernelObject::interface(name), &error)),
    }
}

pub(super) async fn require(connection: &Connection<Route>, name: &str) -> Result<LinkMessage> {
    find(connection, name).await?.ok_or_else(|| Error::Kernel {
        object: KernelObject::interface(name),
        reason: "vanished while it was being wired".into(),
    })
}

/// Makes the pair from inside the namespace, the other end directly in the host's.
pub(super) async fn create(host: &Netns, inside: &Connection<Route>, request: &Attach) -> Result<()> {
    let mut veth = VethLink::new(&request.container_interface, &request.host_interface)
        .peer_netns_fd(host.handle())
        .peer_address(HOST_MAC);
    if let Some(mtu) = request.mtu {
        veth = veth.mtu(mtu);
    }
    if let Some(mac) = request.mac {
        veth = veth.address(mac);
    }
    let pair = inside.add_link(Pair { veth, queues: request.queues });
    host.make(KernelObject::interface(&request.host_interface), pair).await
}

/// Removes an interface if it is there; refuses one that is no end of a pair, as nobody here can have made it.
pub(super) async fn remove_veth(connection: &Connection<Route>, name: &str) -> Result<()> {
    let Some(link) = find(connection, name).await? else { return Ok(()) };
    if link.kind() != Some("veth") {
        return Err(Error::Kernel {
            object: KernelObject::interface(name),
            reason: format!("is not a veth but {}; not removed", link.kind().unwrap_or("a device")),
        });
    }
    match connection.del_link_by_index(link.ifindex()).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() || error.is_no_device() => Ok(()),
        Err(error) => Err(Error::kernel(KernelObject::interface(name), &error)),
    }
}

/// Removes a pair by its inner end if both ends are what they are said to be. An inner end that leads elsewhere is
/// another network's.
pub(super) async fn remove_pair(
    inside: &Connection<Route>,
    inner: &str,
    outside: &Connection<Route>,
    outer: &str,
) -> Result<()> {
    let (Some(near), Some(far)) = (find(inside, inner).await?, find(outside, outer).await?) else {
        return Ok(());
    };
    match near.link() == Some(far.ifindex()) && far.link() == Some(near.ifindex()) {
        true => remove_veth(inside, inner).await,
        false => Ok(()),
    }
}

/// The kernel reports an interface as running a moment after both ends are up. Whoever programs the workload next
/// should find it so; one that takes longer than this is noticed by its event.
pub(super) async fn wait_until_running(outside: &Connection<Route>, name: &str) -> Result<()> {
    for _ in 0..RUNNING_ATTEMPTS {
        if require(outside, name).await?.is_running() {
            return Ok(());
        }
        tokio::time::sleep(RUNNING_PAUSE).await;
    }
    tracing::warn!(interface = name, "up, but not running yet");
    Ok(())
}

/// Gives the kernel time to finish with an interface; one that stays belongs to somebody else.
pub(super) async fn wait_until_gone(outside: &Connection<Route>, name: &str) -> Result<()> {
    for _ in 0..GONE_ATTEMPTS {
        if find(outside, name).await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(GONE_PAUSE).await;
    }
    tracing::info!(interface = name, "left alone: its sandbox is gone, so it is another one's");
    Ok(())
}

/// Makes sure the host end has its MAC: a device manager may have given it another one in the meantime.
pub(super) async fn settle_host_mac(outside: &Connection<Route>, name: &str) -> Result<u32> {
    for _ in 0..MAC_ATTEMPTS {
        let link = require(outside, name).await?;
        if link.address() == Some(&HOST_MAC[..]) {
            return Ok(link.ifindex());
        }
        if let Err(error) = outside.set_link_address_by_index(link.ifindex(), HOST_MAC).await {
            tracing::warn!(%error, interface = name, "keeps the MAC it has");
            return Ok(link.ifindex());
        }
        tokio::time::sleep(MAC_PAUSE).await;
    }
    let object = KernelObject::interface(name);
    Err(Error::Kernel { object, reason: "something keeps changing its MAC".into() })
}
