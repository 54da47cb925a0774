//! Runs the control plane: a Tortie datastore, kube-apiserver, kube-controller-manager and kube-scheduler.

use super::credentials::{self, ClusterUser};
use super::{CalicoApiMode, KUBERNETES_READY_TIMEOUT, KubernetesSettings, SERVICE_RANGES, dir};
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::netns;
use crate::place::LabPaths;
use crate::process::{LabDaemon, StartedDaemon};
use crate::topology;
use ipnet::IpNet;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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
    ready(place, cluster, started).await?;
    let _controllers = controllers.start(&place.fabric(), controller_manager(place, cluster, kubernetes))?;
    let _scheduler = scheduler.start(&place.fabric(), kube_scheduler(place, kubernetes))?;
    Ok(())
}

async fn ready(place: &LabPaths, cluster: &LabCluster, started: StartedDaemon) -> LabResult<()> {
    started
        .ready_within(KUBERNETES_READY_TIMEOUT, || async {
            kubectl(place, cluster, &["get", "--raw", "/readyz"]).await.map(drop)
        })
        .await
}

/// Runs kubectl as the lab's administrator. Returns its standard output, or its standard error on failure.
pub async fn kubectl(
    place: &LabPaths,
    cluster: &LabCluster,
    arguments: &[&str],
) -> std::result::Result<String, String> {
    let kubernetes = cluster.kubernetes.as_ref().ok_or("the lab has no Kubernetes")?;
    let mut command = Command::new(kubernetes.program("kubectl"));
    command.env("KUBECONFIG", ClusterUser::Admin.kubeconfig(place)).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = in_fabric(place, command).await.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

async fn in_fabric(place: &LabPaths, command: Command) -> LabResult<Output> {
    let netns = netns::open(&place.fabric())?;
    let failed = |source| LabError::Io { what: "kubectl".to_owned(), source };
    let running = tokio::task::spawn_blocking(move || {
        let spawned = netns.command(command).and_then(|command| command.spawn());
        spawned.map_err(std::io::Error::other)?.wait_with_output()
    });
    running.await.map_err(|error| failed(error.into()))?.map_err(failed)
}

fn api_server(place: &LabPaths, kubernetes: &KubernetesSettings) -> Command {
    let file = |name: &str| credentials::file(place, name).display().to_string();
    let address = topology::gateway(1).ipv4;
    let mut command = Command::new(kubernetes.program("kube-apiserver"));
    command
        .arg(format!("--etcd-servers={STORE_URL}"))
        .arg("--bind-address=0.0.0.0")
        .arg(format!("--secure-port={}", credentials::API_PORT))
        .arg(format!("--advertise-address={address}"))
        .arg(format!("--tls-cert-file={}", file("apiserver.crt")))
        .arg(format!("--tls-private-key-file={}", file("apiserver.key")))
        .arg(format!("--client-ca-file={}", file("ca.crt")))
        .arg(format!("--kubelet-client-certificate={}", file("kubelet-client.crt")))
        .arg(format!("--kubelet-client-key={}", file("kubelet-client.key")))
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg(format!("--token-auth-file={}", file("tokens")))
        .args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"])
        .arg("--allow-privileged=true")
        .arg(format!("--service-cluster-ip-range={}", SERVICE_RANGES.join(",")))
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .arg(format!("--service-account-key-file={}", file("accounts.pub")))
        .arg(format!("--service-account-signing-key-file={}", file("accounts.key")));
    // Extension API servers run on nodes. kube-apiserver has no kube-proxy, so it connects to endpoints instead of
    // service addresses.
    command
        .arg(format!("--requestheader-client-ca-file={}", file("front-proxy-ca.crt")))
        .arg(format!("--requestheader-allowed-names={}", credentials::FRONT_PROXY_NAME))
        .arg(format!("--proxy-client-cert-file={}", file("front-proxy.crt")))
        .arg(format!("--proxy-client-key-file={}", file("front-proxy.key")))
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
    let file = |name: &str| credentials::file(place, name).display().to_string();
    let mut command = Command::new(kubernetes.program("kube-controller-manager"));
    command
        .arg(format!("--kubeconfig={}", ClusterUser::ControllerManager.kubeconfig(place).display()))
        .args(["--leader-elect=false", "--use-service-account-credentials=true"])
        .args(["--bind-address=127.0.0.1"])
        .arg(format!("--root-ca-file={}", file("ca.crt")))
        .arg(format!("--service-account-private-key-file={}", file("accounts.key")));
    let ranges = pod_ranges(cluster);
    match ranges.is_empty() {
        true => command.arg("--allocate-node-cidrs=false"),
        false => {
            let listed: Vec<String> = ranges.iter().map(|(range, _)| range.to_string()).collect();
            command.arg("--allocate-node-cidrs=true").arg(format!("--cluster-cidr={}", listed.join(",")));
            command.arg(format!("--service-cluster-ip-range={}", SERVICE_RANGES.join(",")));
            for (range, mask) in ranges {
                let family = if matches!(range, IpNet::V4(_)) { 4 } else { 6 };
                command.arg(format!("--node-cidr-mask-size-ipv{family}={mask}"));
            }
            &mut command
        }
    };
    command
}

/// Returns one pool of each family that is large enough to give each node a pod CIDR, with the prefix length of a
/// node's CIDR.
fn pod_ranges(cluster: &LabCluster) -> Vec<(IpNet, u8)> {
    let of = |ipv6: bool| {
        let mask = NODE_CIDR_LENGTHS[usize::from(ipv6)];
        let fits = |pool: &&IpNet| matches!(pool, IpNet::V6(_)) == ipv6 && pool.prefix_len() + 7 <= mask;
        cluster.pools.iter().find(fits).map(|pool| (*pool, mask))
    };
    [of(false), of(true)].into_iter().flatten().collect()
}

fn kube_scheduler(place: &LabPaths, kubernetes: &KubernetesSettings) -> Command {
    let mut command = Command::new(kubernetes.program("kube-scheduler"));
    command
        .arg(format!("--kubeconfig={}", ClusterUser::Scheduler.kubeconfig(place).display()))
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    command
}
