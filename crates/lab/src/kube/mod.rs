//! Runs Kubernetes in the lab: a control plane in the fabric's namespace, and nodes with their own kubelet and
//! container runtime.
//!
//! A node uses the network namespace that every lab node has. [`machine`] isolates the rest: an init process in its own
//! mount, PID and UTS namespaces starts all processes of the node, which end with it. The control plane's processes run
//! in the fabric's namespace, at the address of the first rack's router.

pub mod api;
mod archive;
mod cgroups;
mod containerd;
pub mod control;
mod credentials;
pub mod dns;
mod elf;
pub mod enter;
pub mod image;
pub mod install;
pub mod machine;
mod mounts;
pub mod node;
pub mod pod_routes;
pub mod pods;
mod programs;
pub mod ptp;
mod steps;

pub use cgroups::remove as remove_cgroups;
pub use programs::KubernetesPrograms;

use crate::cluster::LabDatastore;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Service address ranges, one of each family.
pub const SERVICE_RANGES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

/// Service proxy on the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProxyMode {
    /// kube-proxy with iptables
    #[default]
    Iptables,
    /// kube-proxy with nftables
    Nftables,
    /// No kube-proxy: services do not work
    None,
}

/// CNI plugin that connects the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PodNetwork {
    /// Tortie's CNI plugin, IPAM and routes
    #[default]
    Calico,
    /// The ptp plugin of the distribution, with host-local addresses and static routes between nodes; Tortie's plugin
    /// is chained behind it and enforces policy
    Ptp,
}

/// API group that stores Calico's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ApiGroup {
    /// crd.projectcalico.org/v1, as in older installations of Calico
    V1,
    /// projectcalico.org/v3
    #[default]
    V3,
}

/// How kubectl accesses Calico's objects, with authorization by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CalicoApiMode {
    /// Through `tortie apiserver`, aggregated behind kube-apiserver
    Aggregated,
    /// As custom resources, with admission policies and `tortie webhooks`
    Crds,
}

/// Command line options of a lab with Kubernetes.
#[derive(Clone, Copy, Debug)]
pub struct KubernetesOptions {
    pub proxy: ProxyMode,
    pub cni: PodNetwork,
    /// API group, if given; otherwise it is derived from the other options.
    pub api_group: Option<ApiGroup>,
    pub api: Option<CalicoApiMode>,
    /// Whether the cluster has DNS, if services work.
    pub dns: bool,
    pub datastore: LabDatastore,
}

/// Settings of a lab with Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesSettings {
    /// Directory of the Kubernetes programs.
    pub programs: PathBuf,
    pub proxy: ProxyMode,
    #[serde(default)]
    pub cni: PodNetwork,
    #[serde(default)]
    pub api_group: ApiGroup,
    #[serde(default)]
    pub api: Option<CalicoApiMode>,
    /// Whether the cluster has DNS.
    #[serde(default)]
    pub dns: bool,
}

impl KubernetesSettings {
    pub fn new(dir: Option<&std::path::Path>, wanted: KubernetesOptions) -> LabResult<KubernetesSettings> {
        let api_group = wanted.api_group()?;
        let programs = KubernetesPrograms::find(dir)?;
        programs.check_host()?;
        let KubernetesOptions { proxy, cni, api, .. } = wanted;
        // Pods reach CoreDNS by the address of its service.
        let dns = wanted.dns && proxy != ProxyMode::None;
        if dns {
            programs.check_dns()?;
        }
        Ok(KubernetesSettings { programs: programs.dir, proxy, cni, api_group, api, dns })
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }
}

impl KubernetesOptions {
    /// Returns the API group to use. kube-apiserver and an aggregated API server cannot both serve the same group.
    fn api_group(&self) -> LabResult<ApiGroup> {
        match (self.api, self.api_group, self.datastore) {
            (Some(CalicoApiMode::Aggregated), Some(ApiGroup::V3), _) => Err(LabError::refused(
                "--api aggregated serves projectcalico.org/v3 itself, so objects are not kept there: leave out --api-group",
            )),
            (Some(CalicoApiMode::Crds), Some(ApiGroup::V1), _) => Err(LabError::refused(
                "--api crds is projectcalico.org/v3 in Kubernetes, so objects are kept there: leave out --api-group",
            )),
            (Some(CalicoApiMode::Crds), _, LabDatastore::Embedded | LabDatastore::Etcd) => {
                Err(LabError::refused(
                    "--api crds keeps objects in Kubernetes: leave out --datastore, or use --api aggregated",
                ))
            }
            (Some(CalicoApiMode::Aggregated), ..) => Ok(ApiGroup::V1),
            (_, given, _) => Ok(given.unwrap_or_default()),
        }
    }
}

/// Time limit for Kubernetes components to become ready. They start more slowly than Tortie's, and test machines are
/// busy.
const KUBERNETES_READY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(240);

/// Returns the kubeconfig path of the lab's administrator.
pub fn admin(place: &LabPaths) -> PathBuf {
    credentials::ClusterUser::Admin.kubeconfig(place)
}

/// Returns the directory of the control plane.
fn dir(place: &LabPaths) -> PathBuf {
    place.dir().join("kubernetes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_follows_from_how_objects_are_managed() {
        let group = |api, api_group, datastore| {
            let (proxy, cni) = (ProxyMode::None, PodNetwork::Calico);
            KubernetesOptions { proxy, cni, api_group, api, dns: false, datastore }.api_group()
        };
        let kubernetes = LabDatastore::Kubernetes;
        assert_eq!(group(None, None, kubernetes).unwrap(), ApiGroup::V3);
        assert_eq!(group(None, Some(ApiGroup::V1), kubernetes).unwrap(), ApiGroup::V1);
        assert_eq!(group(Some(CalicoApiMode::Aggregated), None, kubernetes).unwrap(), ApiGroup::V1);
        assert_eq!(group(Some(CalicoApiMode::Aggregated), None, LabDatastore::Etcd).unwrap(), ApiGroup::V1);
        assert_eq!(group(Some(CalicoApiMode::Crds), None, kubernetes).unwrap(), ApiGroup::V3);
        for (api, api_group, datastore, instead) in [
            (CalicoApiMode::Aggregated, Some(ApiGroup::V3), kubernetes, "--api-group"),
            (CalicoApiMode::Crds, Some(ApiGroup::V1), kubernetes, "--api-group"),
            (CalicoApiMode::Crds, None, LabDatastore::Etcd, "--datastore"),
        ] {
            let refused = group(Some(api), api_group, datastore).unwrap_err().to_string();
            assert!(refused.contains(&format!("leave out {instead}")), "{refused}");
        }
    }
}
