//! Configuration of containerd, the container runtime of a node.

use super::image::PAUSE_IMAGE;
use std::path::{Path, PathBuf};

/// containerd's socket, as seen on the node.
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// Address of the metrics endpoint, reachable on the node only.
const METRICS_ADDRESS: &str = "127.0.0.1:1338";

/// Renders the configuration. It relaxes settings that need privileges that root lacks on some machines.
pub fn config() -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
address = "{CONTAINERD_SOCKET}"

[metrics]
address = "{METRICS_ADDRESS}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{}"
conf_dir = "{}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#,
        plugins().display(),
        networks().display()
    )
}

/// Returns the directory of the node's CNI plugins.
pub fn plugins() -> &'static Path {
    Path::new("/opt/cni/bin")
}

/// Returns the directory of the node's CNI configurations.
pub fn networks() -> PathBuf {
    PathBuf::from("/etc/cni/net.d")
}
