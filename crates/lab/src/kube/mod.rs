//! Kubernetes in the lab: a control plane beside the fabric, and nodes with a kubelet and a container runtime of their own.
//!
//! A node's network namespace is the lab's usual one. What makes it a machine of its own is [`machine`]: a first process in
//! namespaces for mounts, processes and the host's name, which starts everything else on the node and with which all of
//! it ends. The control plane's processes live in the fabric's namespace, under the address of the first rack's router.

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

use crate::error::Result;
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
}

impl Kubernetes {
    pub fn new(
        dir: Option<&std::path::Path>,
        proxy: Proxy,
        cni: Cni,
        api_group: ApiGroup,
    ) -> Result<Kubernetes> {
        let programs = Programs::find(dir)?;
        programs.check_host()?;
        Ok(Kubernetes { programs: programs.dir, proxy, cni, api_group })
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
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
