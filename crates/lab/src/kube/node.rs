//! Starts the daemons of a Kubernetes node and writes their configuration files.

use super::containerd;
use super::control;
use super::credentials::{self, ClusterUser};
use super::image::{self, ContainerImage};
use super::machine;
use super::steps::{CommandLine, MachineStep};
use super::{
    KUBERNETES_READY_TIMEOUT, KubernetesSettings, PodNetwork, ProxyMode, cgroups, dir, dns, programs,
};
use crate::cluster::LabCluster;
use crate::cni;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::process::StartedDaemon;
use crate::topology::LabNode;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Archive files of the images that are imported on all nodes.
const IMAGE_FILES: [&str; 3] = ["pause.tar", "busybox.tar", "tortie.tar"];
/// Archive file of CoreDNS, in a cluster with DNS.
const DNS_IMAGE_FILE: &str = "coredns.tar";
/// Taint that keeps pods off the node until Tortie's daemon removes it.
const STARTUP_TAINT: &str = "projectcalico.org/node-not-ready";
/// Prefix of the log directory that kubelet creates for Tortie's pod, and the name of its container.
const POD_LOG_PREFIX: &str = "kube-system_tortie-node-";
const CONTAINER_NAME: &str = "tortie";
/// Conntrack settings of kube-proxy that must be 0, since it would set them for the whole host.
const PROXY_CONNTRACK_OPTIONS: [&str; 4] =
    ["max-per-core", "min", "tcp-timeout-established", "tcp-timeout-close-wait"];

/// Writes the images that every node imports when it starts.
pub fn write_images(place: &LabPaths, kubernetes: &KubernetesSettings) -> LabResult<()> {
    let dir = images(place);
    fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    ContainerImage::pause()?.write(&dir.join(IMAGE_FILES[0]))?;
    ContainerImage::busybox()?.write(&dir.join(IMAGE_FILES[1]))?;
    if kubernetes.dns {
        dns::write_image(kubernetes, &dir.join(DNS_IMAGE_FILE))?;
    }
    let own = place.bin().join("tortie");
    let own = fs::canonicalize(&own).map_err(LabError::file(&own))?;
    // Strip debug information, since every node keeps several copies.
    let slim = image::without_debug_info(&own, &program(place));
    if !program(place).exists() {
        fs::copy(&slim, program(place)).map_err(LabError::file(&slim))?;
    }
    ContainerImage::tortie(&slim, image::TORTIE_IMAGE)?.write(&dir.join(IMAGE_FILES[2]))
}

/// Returns the process of Tortie's daemon on a node: it shares the network namespace of the machine.
pub fn daemon_process(place: &LabPaths, node: &str) -> Option<u32> {
    let first = machine::first_process(place, node).running()?;
    let netns = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = netns(&first.to_string())?;
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let pid: u32 = name.parse().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let mut words = command.split(|byte| *byte == 0);
        let is_daemon =
            words.next().is_some_and(|program| program.ends_with(b"tortie")) && words.next() == Some(b"node");
        (is_daemon && netns(&name).as_ref() == Some(&own)).then_some(pid)
    })
}

/// Imports the images of an archive on every node, and on nodes that start later.
pub fn load_images(place: &LabPaths, cluster: &LabCluster, archive: &Path) -> LabResult<()> {
    if cluster.kubernetes.is_none() {
        return Err(LabError::refused("only the nodes of a lab with Kubernetes have container images"));
    }
    let name = archive.file_name().ok_or_else(|| {
        LabError::refused(format!("{} is not a file: give an archive of images", archive.display()))
    })?;
    let dir = loaded_images(place);
    fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let copy = dir.join(name);
    fs::copy(archive, &copy).map_err(LabError::file(archive))?;
    for node in &cluster.nodes {
        let line = import_line(&copy);
        let mut command = Command::new(place.bin().join("tortie"));
        command
            .args(["lab", "--name", place.name(), "--dir"])
            .arg(place.dir())
            .args(["exec", &node.name, "--"])
            .arg(line.program)
            .args(line.arguments);
        let output = command.output().map_err(LabError::file(archive))?;
        if !output.status.success() {
            // Nodes that start later would fail too.
            fs::remove_file(&copy).map_err(LabError::file(&copy))?;
            return Err(LabError::refused(format!(
                "{} cannot import {}: {}",
                node.name,
                archive.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
    }
    Ok(())
}

fn loaded_images(place: &LabPaths) -> PathBuf {
    images(place).join("loaded")
}

/// Returns all archives that a starting node imports.
fn image_archives(place: &LabPaths, kubernetes: &KubernetesSettings) -> LabResult<Vec<PathBuf>> {
    let names = IMAGE_FILES.into_iter().chain(kubernetes.dns.then_some(DNS_IMAGE_FILE));
    let mut archives: Vec<PathBuf> = names.map(|name| images(place).join(name)).collect();
    let dir = loaded_images(place);
    if dir.exists() {
        for entry in fs::read_dir(&dir).map_err(LabError::file(&dir))? {
            archives.push(entry.map_err(LabError::file(&dir))?.path());
        }
    }
    Ok(archives)
}

fn import_line(archive: &Path) -> CommandLine {
    CommandLine::new("ctr", ["--namespace", "k8s.io", "images", "import", &path_text(archive)])
}

/// Returns the path of the Tortie program for the nodes.
fn program(place: &LabPaths) -> PathBuf {
    images(place).join("tortie")
}

fn images(place: &LabPaths) -> PathBuf {
    dir(place).join("images")
}

/// Starts the machine of a node; [`ready`] waits for it.
pub fn start(
    place: &LabPaths,
    cluster: &LabCluster,
    kubernetes: &KubernetesSettings,
    node: &LabNode,
) -> LabResult<StartedDaemon> {
    let group = place.node_netns(&node.name);
    cgroups::create(&group)?;
    let files = place.node_dir(&node.name).join("kubernetes");
    fs::create_dir_all(&files).map_err(LabError::file(&files))?;
    let runtime = write(files.join("containerd.toml"), &containerd::config())?;
    let kubelet = write(files.join("kubelet.json"), &kubelet_config(place, kubernetes, &group).to_string())?;
    let mut steps = vec![
        start_step(&files, "containerd", CommandLine::new("containerd", ["--config", &path_text(&runtime)])),
        MachineStep::Await { socket: PathBuf::from(containerd::CONTAINERD_SOCKET) },
    ];
    for archive in image_archives(place, kubernetes)? {
        steps.push(MachineStep::Run { line: import_line(&archive) });
    }
    // The plugins of the distribution; Tortie's are installed next to them.
    let plugins = programs::plugins().unwrap_or(Path::new("/usr/lib/cni"));
    let copy = format!("mkdir -p {0} && cp {1}/* {0}/", path_text(containerd::plugins()), path_text(plugins));
    steps.push(MachineStep::Run { line: CommandLine::new("/bin/sh", ["-c", &copy]) });
    if kubernetes.cni == PodNetwork::Ptp {
        // Install Tortie's plugin here: the daemon only enforces policy in this mode and does not install it.
        let copy = format!("cp {} {}/calico", path_text(&program(place)), path_text(containerd::plugins()));
        steps.push(MachineStep::Run { line: CommandLine::new("/bin/sh", ["-c", &copy]) });
    }
    steps.push(start_step(&files, "kubelet", kubelet_line(place, kubernetes, node, &kubelet)));
    if kubernetes.proxy != ProxyMode::None {
        steps.push(start_step(&files, "kube-proxy", proxy_line(place, cluster, kubernetes, node)));
    }
    machine::start(place, &node.name, &steps)
}

fn start_step(files: &Path, name: &str, line: CommandLine) -> MachineStep {
    MachineStep::Start { name: name.to_owned(), line, log: files.join(format!("{name}.log")) }
}

/// Waits until Tortie's daemon accepts pods, Kubernetes reports the node as ready, and the node has no taints.
pub async fn ready(
    place: &LabPaths,
    cluster: &LabCluster,
    node: &LabNode,
    started: StartedDaemon,
) -> LabResult<()> {
    started
        .ready_within(KUBERNETES_READY_TIMEOUT, async || {
            cni::status(place, cluster, &node.name).await?;
            let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}{.spec.taints[*].key}";
            let state = control::kubectl(place, cluster, &["get", "node", &node.name, "-o", path]).await?;
            if state != "True" {
                let name = &node.name;
                return Err(LabError::refused(format!(
                    "Kubernetes says of {name} (Ready, taints): {state:?}"
                )));
            }
            Ok(())
        })
        .await
}

/// Returns the log files of Tortie's containers on a node, oldest first.
pub fn logs(place: &LabPaths, node: &str) -> Vec<PathBuf> {
    // In the upper directory of the overlay that covers the host's /var.
    let pods = place.node_dir(node).join("layers/var/upper/log/pods");
    let mut logs = Vec::new();
    for pod in entries(&pods) {
        if pod.file_name().is_some_and(|name| name.to_string_lossy().starts_with(POD_LOG_PREFIX)) {
            logs.extend(entries(&pod.join(CONTAINER_NAME)));
        }
    }
    logs.sort_by_key(|log| fs::metadata(log).and_then(|meta| meta.modified()).ok());
    logs
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn kubelet_config(place: &LabPaths, kubernetes: &KubernetesSettings, group: &str) -> Value {
    // With another CNI plugin the startup taint is not used: Tortie's chained plugin delays each pod until policy is in
    // place, and Tortie's daemon does not report on the network.
    let taints = match kubernetes.cni {
        PodNetwork::Calico => json!([{"key": STARTUP_TAINT, "effect": "NoSchedule"}]),
        PodNetwork::Ptp => json!([]),
    };
    let dns_servers = if kubernetes.dns { json!([dns::DNS_SERVICE_ADDRESS]) } else { json!([]) };
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": credentials::file(place, "ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": format!("unix://{}", containerd::CONTAINERD_SOCKET),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{group}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": false,
        "registerWithTaints": taints,
        // The node shares the host's disk: disable eviction for low disk space.
        "evictionHard": {"imagefs.available": "0%", "imagefs.inodesFree": "0%", "nodefs.available": "0%",
            "nodefs.inodesFree": "0%", "memory.available": "10Mi"},
        "imageGCHighThresholdPercent": 100,
        "clusterDomain": dns::CLUSTER_DOMAIN,
        "clusterDNS": dns_servers,
        "resolvConf": "",
    })
}

fn kubelet_line(
    place: &LabPaths,
    kubernetes: &KubernetesSettings,
    node: &LabNode,
    config: &Path,
) -> CommandLine {
    let arguments = [
        format!("--config={}", config.display()),
        format!("--kubeconfig={}", ClusterUser::Node(node.name.clone()).kubeconfig(place).display()),
        format!("--hostname-override={}", node.name),
        format!("--node-ip={},{}", node.ipv4.addr(), node.ipv6.addr()),
    ];
    CommandLine::new(kubernetes.program("kubelet"), arguments.iter().map(String::as_str))
}

fn proxy_line(
    place: &LabPaths,
    cluster: &LabCluster,
    kubernetes: &KubernetesSettings,
    node: &LabNode,
) -> CommandLine {
    let mode = match kubernetes.proxy {
        ProxyMode::Nftables => "nftables",
        _ => "iptables",
    };
    let pools = [false, true].into_iter().filter_map(|ipv6| cluster.first_pool(ipv6));
    let pools: Vec<String> = pools.map(|pool| pool.to_string()).collect();
    let mut arguments = vec![
        format!("--kubeconfig={}", ClusterUser::Proxy.kubeconfig(place).display()),
        format!("--proxy-mode={mode}"),
        format!("--hostname-override={}", node.name),
        format!("--cluster-cidr={}", pools.join(",")),
    ];
    arguments.extend(PROXY_CONNTRACK_OPTIONS.iter().map(|name| format!("--conntrack-{name}=0")));
    CommandLine::new(kubernetes.program("kube-proxy"), arguments.iter().map(String::as_str))
}

fn write(path: PathBuf, contents: &str) -> LabResult<PathBuf> {
    fs::write(&path, contents).map_err(LabError::file(&path))?;
    Ok(path)
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}
