//! Finds workloads that another program has connected: the host end by its name, the container end in the named
//! namespaces of container runtimes. Reads the kernel and changes nothing.

use super::{HOST_MAC, link};
use crate::error::{DataplaneError, DataplaneResult};
use crate::kernel::mac;
use crate::netns::Netns;
use nlink::netlink::messages::LinkMessage;
use nlink::{Connection, Route};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Directories in which runtimes keep the namespaces of containers.
const NAMESPACE_DIRS: [&str; 4] =
    ["/run/netns", "/var/run/netns", "/run/docker/netns", "/var/run/docker/netns"];

/// `NETNSA_NSID_NOT_ASSIGNED`: no interface of the host has its peer in the namespace. It belongs to another host on
/// the same machine, as in a lab, whose workloads may have the same interface indexes and addresses.
const UNRELATED_NAMESPACE: u32 = u32::MAX;

/// Search criteria: a workload as the datastore describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSearch {
    pub host_interface: String,
    pub container_interface: String,
    pub addresses: Vec<IpAddr>,
}

/// A workload whose host end is a veth of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredPod {
    /// The namespace that has the container end and the addresses; `None` if no runtime has named it.
    pub netns: Option<PathBuf>,
    /// MAC of the container end, if that was found.
    pub mac: Option<[u8; 6]>,
    pub mtu: u32,
    /// Whether the host end has the MAC that the CNI plugins of Calico and Tortie assign.
    pub has_host_mac: bool,
}

/// Returns for each search, in the same order, the workload if its host end exists.
pub async fn discover(host: &Netns, searches: &[PodSearch]) -> DataplaneResult<Vec<Option<DiscoveredPod>>> {
    let mut found = vec![None; searches.len()];
    let outside = host.rtnetlink()?;
    let links = list_links(&outside).await?;
    let ends: BTreeMap<&str, &LinkMessage> = links
        .iter()
        .filter(|link| link.kind() == Some("veth"))
        .map(|link| (link.name_or(""), link))
        .collect();
    let mut open = Vec::new();
    for (index, search) in searches.iter().enumerate() {
        if let Some(far) = ends.get(search.host_interface.as_str()) {
            found[index] =
                Some(DiscoveredPod { has_host_mac: has_host_mac(far), ..DiscoveredPod::default() });
            open.push((index, *far));
        }
    }
    for path in list_namespaces() {
        if open.is_empty() {
            break;
        }
        let pods = match find_pods_inside(&outside, &path, searches, &open).await {
            Ok(pods) => pods,
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "cannot look for workloads in a namespace");
                continue;
            }
        };
        open.retain(|(index, _)| !pods.contains_key(index));
        for (index, pod) in pods {
            found[index] = Some(pod);
        }
    }
    Ok(found)
}

/// Returns whether a namespace contains the container end of the host interface, with these addresses.
pub async fn is_wired(host: &Netns, netns: &Path, search: &PodSearch) -> DataplaneResult<bool> {
    let outside = host.rtnetlink()?;
    let Some(far) = link::find(&outside, &search.host_interface).await? else { return Ok(false) };
    Ok(!find_pods_inside(&outside, netns, std::slice::from_ref(search), &[(0, &far)]).await?.is_empty())
}

/// Returns whether a namespace already has an interface of this name; false if the namespace no longer exists.
pub async fn has_interface(netns: &Path, name: &str) -> DataplaneResult<bool> {
    match Netns::open(netns) {
        Ok(container) => Ok(link::find(&container.rtnetlink()?, name).await?.is_some()),
        Err(DataplaneError::NamespaceGone { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Finds the searched workloads in one namespace. The caller must have listed the host's interfaces before: that makes
/// the kernel assign an id to the namespace of each peer.
async fn find_pods_inside(
    outside: &Connection<Route>,
    path: &Path,
    searches: &[PodSearch],
    open: &[(usize, &LinkMessage)],
) -> DataplaneResult<BTreeMap<usize, DiscoveredPod>> {
    let container = Netns::open(path)?;
    let id = outside.get_nsid(container.handle()).await;
    if id.map_err(|error| DataplaneError::kernel("id of a namespace", &error))? == UNRELATED_NAMESPACE {
        return Ok(BTreeMap::new());
    }
    let inside = container.rtnetlink()?;
    let links = list_links(&inside).await?;
    let mut present = None;
    let mut pods = BTreeMap::new();
    for (index, far) in open {
        let search = &searches[*index];
        let mut named = links.iter().filter(|near| near.name() == Some(search.container_interface.as_str()));
        let Some(near) = named.find(|near| link::are_peers(near, far)) else { continue };
        // Indexes are unique only within one namespace: the addresses prove that it is the same workload.
        if present.is_none() {
            let listed = inside.get_addresses().await;
            present = Some(listed.map_err(|error| DataplaneError::kernel("list of addresses", &error))?);
        }
        let own = present.iter().flatten().filter(|message| message.ifindex() == near.ifindex());
        let own: Vec<&IpAddr> = own.filter_map(|message| message.local().or(message.address())).collect();
        if search.addresses.is_empty() || !search.addresses.iter().all(|address| own.contains(&address)) {
            continue;
        }
        let mac = near.address().and_then(mac);
        let mtu = near.mtu().unwrap_or(0);
        let has_host_mac = has_host_mac(far);
        pods.insert(*index, DiscoveredPod { netns: Some(path.to_owned()), mac, mtu, has_host_mac });
    }
    Ok(pods)
}

fn has_host_mac(far: &LinkMessage) -> bool {
    far.address() == Some(&HOST_MAC[..])
}

async fn list_links(connection: &Connection<Route>) -> DataplaneResult<Vec<LinkMessage>> {
    connection.get_links().await.map_err(|error| DataplaneError::kernel("list of interfaces", &error))
}

fn list_namespaces() -> Vec<PathBuf> {
    // `/var/run` is usually a symlink to `/run`.
    let dirs: BTreeSet<PathBuf> =
        NAMESPACE_DIRS.iter().filter_map(|dir| std::fs::canonicalize(dir).ok()).collect();
    let entries = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).collect()
}
