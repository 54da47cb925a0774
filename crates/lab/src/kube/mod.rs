//! Kubernetes in the lab: a control plane beside the fabric, and nodes with a kubelet and a container runtime of their own.
//!
//! A node's network namespace is the lab's usual one. What makes it a machine of its own is [`machine`]: a first process in
//! namespaces for mounts, processes and the host's name, which starts everything else on the node and with which all of
//! it ends. The control plane's processes live in the fabric's namespace, under the address of the first rack's router.

pub mod api;
mod archive;
mod cgroups;
mod containerd;
pub mod control;
mod credentials;
pub mod enter;
pub mod image;
pub mod install;
pub mod machine;
mod mounts;
pub mod node;
mod programs;
pub mod ptp;
mod steps;

pub use cgroups::remove as remove_cgroups;
pub use programs::Programs;

use crate::cluster::Datastore;
use crate::error::{Error, Result};
use crate::place::Place;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Addresses of services, one range of each family.
pub const SERVICES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

/// How services are made on the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Proxy {
    /// kube-proxy, by iptables
    #[default]
    Iptables,
    /// kube-proxy, by nftables
    Nftables,
    /// No kube-proxy: services do not work
    None,
}

/// Who wires the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cni {
    /// Our plugin, with our addresses and routes
    #[default]
    Calico,
    /// The distribution's ptp, with host-local's addresses and static routes between nodes; ours enforces policy behind it
    Ptp,
}

/// In which group of the Kubernetes API Calico's objects are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ApiGroup {
    /// crd.projectcalico.org/v1, as in older installations of Calico
    V1,
    /// projectcalico.org/v3
    #[default]
    V3,
}

/// How kubectl gets to Calico's objects, with the rules of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// Through `tortie apiserver`, behind Kubernetes' own API server
    Aggregated,
    /// As custom resources of Kubernetes, with admission policies and `tortie webhooks`
    Crds,
}

/// What people ask of a lab with Kubernetes.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub proxy: Proxy,
    pub cni: Cni,
    /// Unless it follows from the rest.
    pub api_group: Option<ApiGroup>,
    pub api: Option<Api>,
    pub datastore: Datastore,
}

/// What a lab with Kubernetes has beyond the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kubernetes {
    /// Where its programs are.
    pub programs: PathBuf,
    pub proxy: Proxy,
    #[serde(default)]
    pub cni: Cni,
    #[serde(default)]
    pub api_group: ApiGroup,
    #[serde(default)]
    pub api: Option<Api>,
}

impl Kubernetes {
    pub fn new(dir: Option<&std::path::Path>, wanted: Wanted) -> Result<Kubernetes> {
        let api_group = wanted.api_group()?;
        let programs = Programs::find(dir)?;
        programs.check_host()?;
        let Wanted { proxy, cni, api, .. } = wanted;
        Ok(Kubernetes { programs: programs.dir, proxy, cni, api_group, api })
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }
}

impl Wanted {
    /// One group cannot be served by Kubernetes and by a server behind it.
    fn api_group(&self) -> Result<ApiGroup> {
        match (self.api, self.api_group, self.datastore) {
            (Some(Api::Aggregated), Some(ApiGroup::V3), _) => Err(Error::refused(
                "--api aggregated serves projectcalico.org/v3 itself, so objects are not kept there: leave out --api-group",
            )),
            (Some(Api::Crds), Some(ApiGroup::V1), _) => Err(Error::refused(
                "--api crds is projectcalico.org/v3 in Kubernetes, so objects are kept there: leave out --api-group",
            )),
            (Some(Api::Crds), _, Datastore::Embedded | Datastore::Etcd) => Err(Error::refused(
                "--api crds keeps objects in Kubernetes: leave out --datastore, or use --api aggregated",
            )),
            (Some(Api::Aggregated), ..) => Ok(ApiGroup::V1),
            (_, given, _) => Ok(given.unwrap_or_default()),
        }
    }
}

/// How long anything of Kubernetes may take to be ready. It is much more than ours to start, on machines that are busy.
const READY_LIMIT: std::time::Duration = std::time::Duration::from_secs(240);

/// The kubeconfig of the lab's administrator.
pub fn admin(place: &Place) -> PathBuf {
    credentials::User::Admin.kubeconfig(place)
}

/// The control plane's directory.
fn dir(place: &Place) -> PathBuf {
    place.dir().join("kubernetes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_follows_from_how_objects_are_managed() {
        let group = |api, api_group, datastore| {
            Wanted { proxy: Proxy::None, cni: Cni::Calico, api_group, api, datastore }.api_group()
        };
        let kubernetes = Datastore::Kubernetes;
        assert_eq!(group(None, None, kubernetes).unwrap(), ApiGroup::V3);
        assert_eq!(group(None, Some(ApiGroup::V1), kubernetes).unwrap(), ApiGroup::V1);
        assert_eq!(group(Some(Api::Aggregated), None, kubernetes).unwrap(), ApiGroup::V1);
        assert_eq!(group(Some(Api::Aggregated), None, Datastore::Etcd).unwrap(), ApiGroup::V1);
        assert_eq!(group(Some(Api::Crds), None, kubernetes).unwrap(), ApiGroup::V3);
        for (api, api_group, datastore, instead) in [
            (Api::Aggregated, Some(ApiGroup::V3), kubernetes, "--api-group"),
            (Api::Crds, Some(ApiGroup::V1), kubernetes, "--api-group"),
            (Api::Crds, None, Datastore::Etcd, "--datastore"),
        ] {
            let refused = group(Some(api), api_group, datastore).unwrap_err().to_string();
            assert!(refused.contains(&format!("leave out {instead}")), "{refused}");
        }
    }
}
