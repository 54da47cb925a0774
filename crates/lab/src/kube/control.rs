//! Runs the control plane: a Tortie datastore, kube-apiserver, kube-controller-manager and kube-scheduler.

use super::credentials::{self, ClusterUser};
use super::{CalicoApiMode, KUBERNETES_READY_TIMEOUT, KubernetesSettings, SERVICE_RANGES, dir};
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::netns;
use crate::place::LabPaths;
use crate::process::LabDaemon;
use crate::topology;
use ipnet::IpNet;
use std::path::Path;
use std::process::Command;

/// Listen address of the store, in the fabric's namespace, which only the control plane uses.
const STORE_URL: &str = "http://127.0.0.1:2379";
/// Prefix lengths of a node's pod CIDR, IPv4 and IPv6. Calico IPAM does not need pod CIDRs; host-local does.
const NODE_CIDR_LENGTHS: [u8; 2] = [24, 120];

fn daemon(place: &LabPaths, name: &str) -> LabDaemon {
    LabDaemon::in_dir(name, &dir(place).join(name))
}

/// Returns all daemons in start order.
pub fn daemons(place: &LabPaths) -> [LabDaemon; 4] {
    ["store", "kube-apiserver", "kube-controller-manager", "kube-scheduler"].map(|name| daemon(place, name))
}

/// Starts the control plane. Returns when the API server is ready and the other daemons have been started.
pub async fn start(place: &LabPaths, cluster: &LabCluster, kubernetes: &KubernetesSettings) -> LabResult<()> {
    credentials::create(place, cluster)?;
    for daemon in daemons(place) {
        let dir = daemon.log.parent().unwrap_or(Path::new("/")).to_owned();
        std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    }
    let [store, api, controllers, scheduler] = daemons(place);
    // No history limit: kube-apiserver compacts the store itself.
    let mut command = Command::new(place.bin().join("tortie"));
    command.arg("datastore").arg("--data-dir").arg(dir(place).join("store/data"));
    command.args(["--listen", STORE_URL, "--keep-history", "0"]);
    // Not awaited: the API server retries until the store accepts connections.
    let _store = store.start(&place.fabric(), command)?;
    let started = api.start(&place.fabric(), api_server(place, kubernetes))?;
    started
        .ready_within(KUBERNETES_READY_TIMEOUT, async || {
            kubectl(place, cluster, &["get", "--raw", "/readyz"]).await.map(drop)
        })
        .await?;
    let _controllers = controllers.start(&place.fabric(), controller_manager(place, cluster, kubernetes))?;
    let _scheduler = scheduler.start(&place.fabric(), kube_scheduler(place, kubernetes))?;
    Ok(())
}

/// Runs kubectl as the lab's administrator. Returns its standard output, or its standard error on failure.
pub async fn kubectl(place: &LabPaths, cluster: &LabCluster, arguments: &[&str]) -> LabResult<String> {
    let kubernetes =
        cluster.kubernetes.as_ref().ok_or_else(|| LabError::refused("the lab has no Kubernetes"))?;
    let mut command = Command::new(kubernetes.program("kubectl"));
    command.env("KUBECONFIG", ClusterUser::Admin.kubeconfig(place)).args(arguments);
    let output = netns::output_async(&place.fabric(), command, Vec::new()).await?;
    if !output.status.success() {
        return Err(LabError::Kubectl(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn api_server(place: &LabPaths, kubernetes: &KubernetesSettings) -> Command {
    let pki = credentials::pki_dir(place).display().to_string();
    let address = topology::gateway(1).ipv4;
    let mut command = Command::new(kubernetes.program("kube-apiserver"));
    command
        .arg(format!("--etcd-servers={STORE_URL}"))
        .arg("--bind-address=0.0.0.0")
        .arg(format!("--secure-port={}", credentials::API_PORT))
        .arg(format!("--advertise-address={address}"))
        .arg(format!("--tls-cert-file={pki}/apiserver.crt"))
        .arg(format!("--tls-private-key-file={pki}/apiserver.key"))
        .arg(format!("--client-ca-file={pki}/ca.crt"))
        .arg(format!("--kubelet-client-certificate={pki}/kubelet-client.crt"))
        .arg(format!("--kubelet-client-key={pki}/kubelet-client.key"))
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg(format!("--token-auth-file={pki}/tokens"))
        .args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"])
        .arg("--allow-privileged=true")
        .arg(format!("--service-cluster-ip-range={}", SERVICE_RANGES.join(",")))
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .arg(format!("--service-account-key-file={pki}/accounts.pub"))
        .arg(format!("--service-account-signing-key-file={pki}/accounts.key"));
    // Extension API servers run on nodes. kube-apiserver has no kube-proxy, so it connects to endpoints instead of
    // service addresses.
    command
        .arg(format!("--requestheader-client-ca-file={pki}/front-proxy-ca.crt"))
        .arg(format!("--requestheader-allowed-names={}", credentials::FRONT_PROXY_NAME))
        .arg(format!("--proxy-client-cert-file={pki}/front-proxy.crt"))
        .arg(format!("--proxy-client-key-file={pki}/front-proxy.key"))
        .args([
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--enable-aggregator-routing=true",
        ]);
    if kubernetes.api == Some(CalicoApiMode::Crds) {
        // MutatingAdmissionPolicy, which sets defaults, is disabled by default.
        command.args([
            "--feature-gates=MutatingAdmissionPolicy=true",
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        ]);
    }
    command
}

fn controller_manager(place: &LabPaths, cluster: &LabCluster, kubernetes: &KubernetesSettings) -> Command {
    let pki = credentials::pki_dir(place).display().to_string();
    let mut command = Command::new(kubernetes.program("kube-controller-manager"));
    command
        .arg(format!("--kubeconfig={}", ClusterUser::ControllerManager.kubeconfig(place).display()))
        .args(["--leader-elect=false", "--use-service-account-credentials=true"])
        .args(["--bind-address=127.0.0.1"])
        .arg(format!("--root-ca-file={pki}/ca.crt"))
        .arg(format!("--service-account-private-key-file={pki}/accounts.key"));
    let ranges = pod_ranges(cluster);
    command.arg(format!("--allocate-node-cidrs={}", !ranges.is_empty()));
    if !ranges.is_empty() {
        let listed: Vec<String> = ranges.iter().map(|(range, _)| range.to_string()).collect();
        command.arg(format!("--cluster-cidr={}", listed.join(",")));
        command.arg(format!("--service-cluster-ip-range={}", SERVICE_RANGES.join(",")));
    }
    for (range, mask) in ranges {
        let family = if matches!(range, IpNet::V4(_)) { 4 } else { 6 };
        command.arg(format!("--node-cidr-mask-size-ipv{family}={mask}"));
    }
    command
}

/// Returns one pool of each family that is large enough to give each node a pod CIDR, with the prefix length of a
/// node's CIDR.
fn pod_ranges(cluster: &LabCluster) -> Vec<(IpNet, u8)> {
    let mut ranges = Vec::new();
    for (ipv6, mask) in [false, true].into_iter().zip(NODE_CIDR_LENGTHS) {
        let mut pools = cluster.pools.iter().filter(|pool| matches!(pool, IpNet::V6(_)) == ipv6);
        ranges.extend(pools.find(|pool| pool.prefix_len() + 7 <= mask).map(|pool| (*pool, mask)));
    }
    ranges
}

fn kube_scheduler(place: &LabPaths, kubernetes: &KubernetesSettings) -> Command {
    let mut command = Command::new(kubernetes.program("kube-scheduler"));
    command
        .arg(format!("--kubeconfig={}", ClusterUser::Scheduler.kubeconfig(place).display()))
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    command
}
