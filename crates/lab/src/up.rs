//! Starts a lab: directory, namespaces, network, datastore, nodes, in this order.

use crate::bgp::{self, BgpMode};
use crate::cluster::{LabCluster, LabDatastore};
use crate::cni;
use crate::encap::{self, PodEncapsulation};
use crate::error::{LabError, LabResult};
use crate::kube::{self, KubernetesSettings, PodNetwork};
use crate::place::LabPaths;
use crate::topology::{self, LabNode, LabTopology};
use crate::{bird, down, enter, fabric, files, hub, netns, node, sessions, store};
use ipnet::IpNet;
use serde_json::json;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};

/// Names under which the binary is linked.
const PROGRAM_NAMES: [&str; 4] = ["tortie", "calicoctl", "calico", "calico-ipam"];
const DEFAULT_POOLS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/112"];

/// Starts a lab and returns when every node accepts pods. Without pools it gets the default pools, one of each family.
/// Removes everything on failure or interruption, unless `keep` is set.
pub async fn up(place: &LabPaths, mut cluster: LabCluster, keep: bool) -> LabResult<LabCluster> {
    if !rustix::process::geteuid().is_root() {
        return Err(LabError::refused("only root can make network namespaces; run this as root"));
    }
    cluster.pools = check_pools(cluster.pools)?;
    bird::check(&cluster)?;
    if !cluster.bird.is_empty() && cluster.kubernetes.is_some() {
        return Err(LabError::refused(
            "the nodes of Kubernetes all have the same speaker; --bird is not for them",
        ));
    }
    if cluster.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.cni == PodNetwork::Ptp)
        && (cluster.bgp != BgpMode::None || cluster.encap != PodEncapsulation::None)
    {
        return Err(LabError::refused("with --cni ptp routes are not ours: leave out --bgp and --encap"));
    }
    if cluster.datastore == LabDatastore::Kubernetes && cluster.kubernetes.is_none() {
        return Err(LabError::refused(
            "without Kubernetes its API cannot be the datastore; use --kubernetes too",
        ));
    }
    encap::check_kernel(cluster.encap, &place.prefix()).await?;
    claim(place, &cluster)?;
    let error = match interruptible(make(place, &cluster)).await {
        Ok(()) => return Ok(cluster),
        Err(error) => error,
    };
    if keep {
        print_progress(&format!("the partial lab is kept; `{}` removes it", place.command("down")));
    } else if let Err(leftovers) = down::down(place) {
        print_progress(&leftovers.to_string());
    }
    Err(error)
}

/// Prints progress to standard error, separate from results.
pub fn print_progress(text: &str) {
    // Ignore errors: there is no other place to report them.
    let _ = writeln!(io::stderr(), "lab: {text}");
}

/// Rejects pools that overlap the addresses of the nodes. An empty list is replaced by the default pools.
fn check_pools(pools: Vec<IpNet>) -> LabResult<Vec<IpNet>> {
    for pool in &pools {
        if let Some(own) = topology::networks().into_iter().find(|own| overlap(pool, own)) {
            return Err(LabError::refused(format!(
                "pool {pool} overlaps {own}, which the lab's nodes have their own addresses from; choose another, \
                 such as {}",
                DEFAULT_POOLS[usize::from(matches!(pool, IpNet::V6(_)))]
            )));
        }
    }
    if !pools.is_empty() {
        return Ok(pools);
    }
    DEFAULT_POOLS
        .iter()
        .map(|pool| pool.parse().map_err(|_| LabError::refused(format!("{pool:?} is no pool"))))
        .collect()
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// Creates the lab's directory and writes the description first, so that `down` recognizes the directory after any
/// failure.
fn claim(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    let dir = place.dir();
    if netns::names(&place.prefix())?.is_empty() {
        create_dir(dir).map_err(LabError::file(dir))?;
        let is_empty = fs::read_dir(dir).map_err(LabError::file(dir))?.next().is_none();
        if is_empty && files::create(&place.cluster_file(), cluster)? {
            return Ok(());
        }
    }
    Err(LabError::refused(format!(
        "lab {}, or a part of one, is there already; `{}` removes it",
        place.name(),
        place.command("down")
    )))
}

/// Creates a directory, retrying if a lab that is being removed concurrently deletes the shared parent directory.
fn create_dir(dir: &Path) -> io::Result<()> {
    const ATTEMPTS: usize = 20;
    let mut result = fs::create_dir_all(dir);
    for _ in 1..ATTEMPTS {
        match &result {
            // The parent existed when it was to be created and was removed afterwards, or vice versa.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
                result = fs::create_dir_all(dir);
            }
            _ => break,
        }
    }
    result
}

/// Runs `work` until it completes or SIGINT or SIGTERM is received.
pub async fn interruptible(work: impl Future<Output = LabResult<()>>) -> LabResult<()> {
    let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()]
        .map(|kind| signal(kind).map_err(|source| LabError::Io { what: "signals".to_owned(), source }));
    let mut interrupt = interrupt?;
    let mut terminate = terminate?;
    tokio::select! {
        result = work => result,
        _ = interrupt.recv() => Err(LabError::Interrupted),
        _ = terminate.recv() => Err(LabError::Interrupted),
    }
}

async fn make(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    netns::prepare()?;
    let names: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
    write_files(place, cluster)?;
    for name in &names {
        netns::create(&place.node_netns(name)).await?;
    }
    fabric::build(place, cluster.topology, &cluster.nodes).await?;
    let racks = topology::racks(&cluster.nodes).len();
    print_progress(&match cluster.topology {
        LabTopology::L2 => format!("network: {} nodes on one link", names.len()),
        LabTopology::L3 => format!("network: {} nodes in {racks} racks and a router", names.len()),
    });
    if let Some(kubernetes) = &cluster.kubernetes {
        kube::control::start(place, cluster, kubernetes).await?;
        print_progress("control plane: ready");
        kube::install::apply(place, cluster, kubernetes).await?;
    }
    enter::reach_store(place, cluster)?;
    let resources = store::start(place, cluster).await?;
    if cluster.kubernetes.is_none() {
        store::seed(&resources, cluster).await?;
    }
    bgp::seed(&resources, cluster).await?;
    bgp::start_router(place, cluster).await?;
    print_progress(&format!("store: ready at {}", cluster.endpoint));
    for number in 1..=cluster.process_hubs() {
        hub::start(place, cluster, number).await?;
        print_progress(&format!("hub {number}: ready"));
    }
    for node in &cluster.nodes {
        node::announce(&resources, cluster, node).await?;
    }
    if let Some(kubernetes) = &cluster.kubernetes {
        make_kubernetes(place, cluster, kubernetes).await?;
        // After the first node has created its default pools: it creates none if any pool exists.
        store::seed(&resources, cluster).await?;
        kube::dns::apply(place, cluster, kubernetes).await?;
        return kube::api::apply(place, cluster, kubernetes).await;
    }
    // Start all nodes before waiting: most of their startup time is waiting.
    let mut started = Vec::new();
    for node in &cluster.nodes {
        started.push((&node.name, node::start(place, cluster, &node.name)?));
    }
    for (name, started) in started {
        node::ready(place, cluster, name, started).await?;
        print_progress(&format!("{name}: ready"));
    }
    if cluster.bgp != BgpMode::None {
        sessions::wait_established(place, cluster).await?;
        print_progress("bgp: all sessions established");
    }
    Ok(())
}

async fn make_kubernetes(
    place: &LabPaths,
    cluster: &LabCluster,
    kubernetes: &KubernetesSettings,
) -> LabResult<()> {
    kube::node::write_images(place, kubernetes)?;
    let mut started = Vec::new();
    for node in &cluster.nodes {
        started.push((node, kube::node::start(place, cluster, kubernetes, node)?));
    }
    match kubernetes.cni {
        PodNetwork::Calico => kube::pod_routes::start(place)?,
        PodNetwork::Ptp => {
            kube::ptp::connect(place, cluster).await?;
            print_progress("network of the pods: ptp, host-local and static routes");
        }
    }
    for (node, started) in started {
        kube::node::ready(place, cluster, node, started).await?;
        print_progress(&format!("{}: ready", node.name));
    }
    Ok(())
}

fn write_files(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    let own = std::env::current_exe().map_err(LabError::file(Path::new("/proc/self/exe")))?;
    let bin = directory(place.bin())?;
    for name in PROGRAM_NAMES {
        let link = bin.join(name);
        std::os::unix::fs::symlink(&own, &link).map_err(LabError::file(&link))?;
    }
    directory(place.pods())?;
    files::replace(
        &place.ctl_config(),
        &json!({
            "apiVersion": tortie_model::API_VERSION,
            "kind": "CalicoAPIConfig",
            "metadata": {},
            "spec": match cluster.datastore {
                LabDatastore::Kubernetes => json!({"datastoreType": "kubernetes", "kubeconfig": cluster.endpoint}),
                LabDatastore::Embedded | LabDatastore::Etcd => {
                    json!({"datastoreType": "etcdv3", "etcdEndpoints": cluster.endpoint})
                }
            },
        }),
    )?;
    cluster.nodes.iter().try_for_each(|node| write_node_files(place, cluster, node))
}

/// Writes the CNI configuration that a runtime on the node reads.
pub fn write_node_files(place: &LabPaths, cluster: &LabCluster, node: &LabNode) -> LabResult<()> {
    let dir = directory(place.node_dir(&node.name).join("cni"))?;
    files::replace(&dir.join("10-calico.conflist"), &cni::conflist(place, cluster, &node.name))
}

fn directory(path: PathBuf) -> LabResult<PathBuf> {
    fs::create_dir_all(&path).map_err(LabError::file(&path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_that_goes_meanwhile_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let labs = dir.path().join("labs");
        let (one, other) = (labs.join("one"), labs.join("other"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2000 {
                    create_dir(&one).unwrap();
                    fs::remove_dir(&one).unwrap();
                    let _ = fs::remove_dir(&labs);
                }
            });
            for _ in 0..2000 {
                create_dir(&other).unwrap();
                fs::remove_dir(&other).unwrap();
                let _ = fs::remove_dir(&labs);
            }
        });
    }

    #[test]
    fn pools_that_overlap_the_node_network_are_rejected() {
        let check = |pool: &str| check_pools(vec![pool.parse().unwrap()]);
        for pool in
            ["10.0.0.0/8", "10.10.1.0/24", "10.10.200.0/26", "0.0.0.0/0", "fd00::/16", "fd00:10:10:1::/64"]
        {
            let error = check(pool).unwrap_err().to_string();
            assert!(error.contains(pool) && error.contains("choose another"), "{error}");
        }
        for pool in ["10.11.0.0/16", "192.168.0.0/24", "fd00:10:11::/112"] {
            assert_eq!(check(pool).unwrap(), [pool.parse().unwrap()]);
        }
    }
}
