//! Creates, finds and removes the veth pair of a workload.

use super::{AttachRequest, HOST_MAC};
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::netns::Netns;
use nlink::netlink::MessageBuilder;
use nlink::netlink::link::{LinkConfig, VethLink};
use nlink::netlink::messages::LinkMessage;
use nlink::{Connection, Route};
use std::time::Duration;

const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
/// Limits how long another program may keep changing the host end's MAC before the attach fails.
const MAX_MAC_ATTEMPTS: usize = 50;
const MAC_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_GONE_CHECKS: usize = 50;
const GONE_CHECK_INTERVAL: Duration = Duration::from_millis(10);
const MAX_RUNNING_CHECKS: usize = 1000;
const RUNNING_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// A veth pair with a given number of queues on its container end.
struct VethPair {
    veth: VethLink,
    queues: u32,
}

impl LinkConfig for VethPair {
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

pub(super) async fn find(connection: &Connection<Route>, name: &str) -> DataplaneResult<Option<LinkMessage>> {
    match connection.get_link_by_name(name).await {
        Ok(link) => Ok(link),
        Err(error) if error.is_not_found() || error.is_no_device() => Ok(None),
        Err(error) => Err(DataplaneError::kernel(KernelObject::interface(name), &error)),
    }
}

pub(super) async fn require(connection: &Connection<Route>, name: &str) -> DataplaneResult<LinkMessage> {
    find(connection, name).await?.ok_or_else(|| DataplaneError::Kernel {
        object: KernelObject::interface(name),
        reason: "vanished while it was being wired".into(),
    })
}

/// Creates the pair from inside the container namespace, with the host end directly in the host's namespace.
pub(super) async fn create(
    host: &Netns,
    inside: &Connection<Route>,
    request: &AttachRequest,
) -> DataplaneResult<()> {
    let mut veth = VethLink::new(&request.container_interface, &request.host_interface)
        .peer_netns_fd(host.handle())
        .peer_address(HOST_MAC);
    if let Some(mtu) = request.mtu {
        veth = veth.mtu(mtu);
    }
    if let Some(mac) = request.mac {
        veth = veth.address(mac);
    }
    let pair = inside.add_link(VethPair { veth, queues: request.queues });
    host.make(KernelObject::interface(&request.host_interface), pair).await
}

/// Removes an interface if it exists. Returns an error if it is not a veth, as this module cannot have created it.
pub(super) async fn remove_veth(connection: &Connection<Route>, name: &str) -> DataplaneResult<()> {
    let Some(link) = find(connection, name).await? else { return Ok(()) };
    if link.kind() != Some("veth") {
        return Err(DataplaneError::Kernel {
            object: KernelObject::interface(name),
            reason: format!("is not a veth but {}; not removed", link.kind().unwrap_or("a device")),
        });
    }
    match connection.del_link_by_index(link.ifindex()).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() || error.is_no_device() => Ok(()),
        Err(error) => Err(DataplaneError::kernel(KernelObject::interface(name), &error)),
    }
}

/// Removes a pair by its container end if both ends are peers of each other. A container end with another peer belongs
/// to another network.
pub(super) async fn remove_pair(
    inside: &Connection<Route>,
    inner: &str,
    outside: &Connection<Route>,
    outer: &str,
) -> DataplaneResult<()> {
    let (Some(near), Some(far)) = (find(inside, inner).await?, find(outside, outer).await?) else {
        return Ok(());
    };
    if are_peers(&near, &far) { remove_veth(inside, inner).await } else { Ok(()) }
}

/// Returns whether two interfaces are the ends of one pair.
pub(super) fn are_peers(near: &LinkMessage, far: &LinkMessage) -> bool {
    near.link() == Some(far.ifindex()) && far.link() == Some(near.ifindex())
}

/// Waits until the interface is running. The kernel reports that a moment after both ends are up, and the engine that
/// programs the workload next should find it so. If it takes longer than the limit, the engine learns of it by a link
/// event.
pub(super) async fn wait_until_running(outside: &Connection<Route>, name: &str) -> DataplaneResult<()> {
    for _ in 0..MAX_RUNNING_CHECKS {
        if require(outside, name).await?.is_running() {
            return Ok(());
        }
        tokio::time::sleep(RUNNING_CHECK_INTERVAL).await;
    }
    tracing::warn!(interface = name, "interface is up but not running yet");
    Ok(())
}

/// Waits until the kernel has removed an interface. An interface that remains belongs to another sandbox.
pub(super) async fn wait_until_gone(outside: &Connection<Route>, name: &str) -> DataplaneResult<()> {
    for _ in 0..MAX_GONE_CHECKS {
        if find(outside, name).await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(GONE_CHECK_INTERVAL).await;
    }
    tracing::info!(interface = name, "interface is kept: its sandbox is gone, so it belongs to another one");
    Ok(())
}

/// Sets the MAC of the host end and returns the index of the interface. A device manager such as udev may have changed
/// the MAC after the interface was created.
pub(super) async fn ensure_host_mac(outside: &Connection<Route>, name: &str) -> DataplaneResult<u32> {
    for _ in 0..MAX_MAC_ATTEMPTS {
        let link = require(outside, name).await?;
        if link.address() == Some(&HOST_MAC[..]) {
            return Ok(link.ifindex());
        }
        if let Err(error) = outside.set_link_address_by_index(link.ifindex(), HOST_MAC).await {
            tracing::warn!(%error, interface = name, "cannot set the MAC of the host end of a workload interface");
            return Ok(link.ifindex());
        }
        tokio::time::sleep(MAC_RETRY_DELAY).await;
    }
    let object = KernelObject::interface(name);
    Err(DataplaneError::Kernel { object, reason: "another program keeps changing its MAC".into() })
}
