//! Connects a workload's network namespace to the host: creates the veth pair, and the addresses and routes inside the
//! namespace.
//!
//! The host's route to the workload is not created here: it is part of the plan, and the engine programs it.

mod check;
mod discover;
mod link;
mod setup;

pub use check::check;
pub use discover::{DiscoveredPod, PodSearch, discover, has_interface, is_wired};

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::netns::Netns;
use ipnet::IpNet;
use nlink::{Connection, Route};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Next hop of every IPv4 workload. No interface has this address: the host answers for it by proxy ARP.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// Next hop of every IPv6 workload: the link-local address derived from the host end's MAC.
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);
/// MAC of every host end.
const HOST_MAC: [u8; 6] = [0xee; 6];
const DETACH_TIMEOUT: Duration = Duration::from_secs(20);

/// Request to connect a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    pub netns: PathBuf,
    /// Interface inside the namespace, such as `eth0`.
    pub container_interface: String,
    /// Host end of the pair, `cali...`.
    pub host_interface: String,
    pub addresses: Vec<IpAddr>,
    /// Destinations that the workload reaches through its host; empty means all.
    pub routes: Vec<IpNet>,
    pub mtu: Option<u32>,
    /// MAC of the workload; the kernel generates one if it is `None`.
    pub mac: Option<[u8; 6]>,
    /// Number of transmit and receive queues; 0 leaves it to the kernel.
    pub queues: u32,
    /// Whether the workload may forward packets itself.
    pub allow_ip_forwarding: bool,
}

/// The resulting attributes of the container end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedInterface {
    pub mac: [u8; 6],
    pub mtu: u32,
}

impl AttachRequest {
    fn has_v4(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv4)
    }

    fn has_v6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6)
    }

    /// Returns the routes to create, for the address families of the workload.
    fn effective_routes(&self) -> Vec<IpNet> {
        let everywhere = [IpNet::V4(ipnet::Ipv4Net::default()), IpNet::V6(ipnet::Ipv6Net::default())];
        let routes = if self.routes.is_empty() { &everywhere[..] } else { &self.routes[..] };
        let mut usable = routes.to_vec();
        usable.retain(|net| if net.addr().is_ipv4() { self.has_v4() } else { self.has_v6() });
        usable
    }

    fn validate(&self) -> DataplaneResult<()> {
        check_interface_name("container interface", &self.container_interface)?;
        check_interface_name("host interface", &self.host_interface)?;
        if self.addresses.is_empty() {
            return Err(DataplaneError::Invalid {
                field: "addresses",
                reason: "a workload needs at least one".into(),
            });
        }
        let smallest = if self.has_v6() { 1280 } else { 68 };
        match self.mtu {
            Some(mtu) if !(smallest..=65535).contains(&mtu) => Err(DataplaneError::Invalid {
                field: "mtu",
                reason: format!("{mtu} is out of range {smallest}..65535 for these addresses"),
            }),
            _ => Ok(()),
        }
    }
}

fn check_interface_name(field: &'static str, name: &str) -> DataplaneResult<()> {
    let is_valid = (1..=15).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if is_valid {
        return Ok(());
    }
    Err(DataplaneError::Invalid {
        field,
        reason: format!("{name:?} is not an interface name (1 to 15 characters)"),
    })
}

/// Limits the number of namespaces processed concurrently: the kernel serialises most of this work with one lock.
static NAMESPACE_PERMITS: Semaphore = Semaphore::const_new(8);

/// Runs work that blocks its thread: the kernel takes milliseconds to create or remove an interface. Other tasks of the
/// thread move to another one, so this needs a multi-threaded runtime.
async fn run_blocking<T>(work: impl Future<Output = T>) -> T {
    // Cannot fail: the semaphore is never closed.
    let _permit = NAMESPACE_PERMITS.acquire().await;
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work))
}

/// Connects a namespace. If a step fails, everything created before it is removed.
pub async fn attach(host: &Netns, request: &AttachRequest) -> DataplaneResult<AttachedInterface> {
    request.validate()?;
    run_blocking(connect_namespace(host, request)).await
}

async fn connect_namespace(host: &Netns, request: &AttachRequest) -> DataplaneResult<AttachedInterface> {
    let container = Netns::open(&request.netns)?.failing_like(host);
    let outside = host.rtnetlink()?;
    let inside = container.rtnetlink()?;
    if link::find(&inside, &request.container_interface).await?.is_some() {
        return Err(DataplaneError::Kernel {
            object: KernelObject::interface(&request.container_interface),
            reason: format!(
                "already exists in {}; check whether the workload is already connected",
                request.netns.display()
            ),
        });
    }
    // A leftover of a removed sandbox: the name may be reused.
    link::remove_veth(&outside, &request.host_interface).await?;
    link::create(host, &inside, request).await?;
    match setup::configure_veth_pair(host, &container, &outside, &inside, request).await {
        Ok(attached) => Ok(attached),
        Err(error) => {
            remove_pair_ends(&outside, &inside, request).await;
            Err(error)
        }
    }
}

/// Removes the pair through either end that still exists.
async fn remove_pair_ends(outside: &Connection<Route>, inside: &Connection<Route>, request: &AttachRequest) {
    for (connection, name) in [(outside, &request.host_interface), (inside, &request.container_interface)] {
        if let Err(error) = link::remove_veth(connection, name).await {
            tracing::warn!(%error, interface = name, "cannot remove an interface of a failed attach");
        }
    }
}

/// Removes a workload's interface, whichever program created it. Succeeds if nothing is left to remove.
///
/// The host end disappears together with the container end, so it is removed by its name only if no namespace is given.
/// The name alone does not identify it: a new sandbox of the same workload may own it by the time the old one is
/// detached.
pub async fn detach<'a>(
    host: &Netns,
    netns: Option<&Path>,
    container_interface: &str,
    host_interface: impl Into<Option<&'a str>>,
) -> DataplaneResult<()> {
    let host_interface = host_interface.into();
    let work = async {
        match (netns.map(Netns::open), host_interface) {
            (Some(Ok(container)), _) => link::remove_veth(&container.rtnetlink()?, container_interface).await,
            (Some(Err(error)), name) => handle_missing_namespace(host, error, name).await,
            (None, Some(name)) => link::remove_veth(&host.rtnetlink()?, name).await,
            (None, None) => Ok(()),
        }
    };
    remove_in_time(container_interface, work).await
}

/// Reverts an [`attach`], complete or not: removes only the pair that it would have created. An interface of the same
/// name that existed before and belongs to another network stays.
pub async fn undo_attach(
    host: &Netns,
    netns: &Path,
    container_interface: &str,
    host_interface: &str,
) -> DataplaneResult<()> {
    let work = async {
        match Netns::open(netns) {
            Ok(container) => {
                let inside = container.rtnetlink()?;
                link::remove_pair(&inside, container_interface, &host.rtnetlink()?, host_interface).await
            }
            Err(error) => handle_missing_namespace(host, error, Some(host_interface)).await,
        }
    };
    remove_in_time(container_interface, work).await
}

/// Handles a failure to open the namespace: if it is gone, waits until the kernel has removed the pair too.
async fn handle_missing_namespace(
    host: &Netns,
    error: DataplaneError,
    host_interface: Option<&str>,
) -> DataplaneResult<()> {
    match (error, host_interface) {
        (DataplaneError::NamespaceGone { .. }, Some(name)) => {
            link::wait_until_gone(&host.rtnetlink()?, name).await
        }
        (DataplaneError::NamespaceGone { .. }, None) => Ok(()),
        (error, _) => Err(error),
    }
}

async fn remove_in_time(
    container_interface: &str,
    work: impl Future<Output = DataplaneResult<()>>,
) -> DataplaneResult<()> {
    match run_blocking(async { tokio::time::timeout(DETACH_TIMEOUT, work).await }).await {
        Ok(outcome) => outcome,
        Err(_) => Err(DataplaneError::Kernel {
            object: KernelObject::interface(container_interface),
            reason: format!("not removed within {} seconds", DETACH_TIMEOUT.as_secs()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> AttachRequest {
        AttachRequest {
            netns: "/run/netns/none".into(),
            container_interface: "eth0".into(),
            host_interface: "cali1".into(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            routes: Vec::new(),
            mtu: None,
            mac: None,
            queues: 0,
            allow_ip_forwarding: false,
        }
    }

    #[test]
    fn bad_requests_are_refused_with_the_reason() {
        let refused = |request: AttachRequest| request.validate().unwrap_err().to_string();
        assert_eq!(
            refused(AttachRequest { mtu: Some(67), ..request() }),
            "mtu: 67 is out of range 68..65535 for these addresses"
        );
        let v6 = vec!["fd00::1".parse().unwrap()];
        assert_eq!(
            refused(AttachRequest { mtu: Some(1279), addresses: v6, ..request() }),
            "mtu: 1279 is out of range 1280..65535 for these addresses"
        );
        assert_eq!(
            refused(AttachRequest { host_interface: "cali-much-too-long".into(), ..request() }),
            "host interface: \"cali-much-too-long\" is not an interface name (1 to 15 characters)"
        );
        assert_eq!(
            refused(AttachRequest { addresses: Vec::new(), ..request() }),
            "addresses: a workload needs at least one"
        );
        assert!(request().validate().is_ok());
    }

    #[test]
    fn default_routes_match_the_families_in_use() {
        assert_eq!(request().effective_routes(), ["0.0.0.0/0".parse::<IpNet>().unwrap()]);
        let both = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(AttachRequest { addresses: both, ..request() }.effective_routes().len(), 2);
        let given = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let routes = AttachRequest { routes: given.clone(), ..request() }.effective_routes();
        assert_eq!(routes, given[..1]);
    }
}
