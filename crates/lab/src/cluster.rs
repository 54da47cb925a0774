//! Description of a lab, written to disk when the lab is created.

use crate::bgp::BgpMode;
use crate::encap::PodEncapsulation;
use crate::error::{LabError, LabResult};
use crate::files;
use crate::kube::KubernetesSettings;
use crate::names::suggest_name;
use crate::place::LabPaths;
use crate::store;
use crate::topology::{LabNode, LabTopology};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LabDatastore {
    /// The datastore built into tortie
    Embedded,
    /// An etcd server; its package must be installed
    Etcd,
    /// The Kubernetes API; needs --kubernetes
    Kubernetes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabCluster {
    pub datastore: LabDatastore,
    pub topology: LabTopology,
    #[serde(default)]
    pub bgp: BgpMode,
    #[serde(default)]
    pub encap: PodEncapsulation,
    /// Names of the nodes whose BGP speaker is BIRD.
    #[serde(default)]
    pub bird: Vec<String>,
    /// Number of hubs between the datastore and the nodes.
    #[serde(default)]
    pub hubs: u8,
    /// Whether nodes record their input events.
    #[serde(default)]
    pub record: bool,
    /// Whether nodes record flows.
    #[serde(default)]
    pub flows: bool,
    /// Unix socket of the datastore, reachable from every network namespace; the kubeconfig path if the datastore is
    /// Kubernetes.
    pub endpoint: String,
    pub pools: Vec<IpNet>,
    pub nodes: Vec<LabNode>,
    /// Set if the lab runs Kubernetes: a control plane, and a kubelet on every node.
    #[serde(default)]
    pub kubernetes: Option<KubernetesSettings>,
}

impl LabCluster {
    /// Describes a lab with the default settings.
    pub fn new(place: &LabPaths, datastore: LabDatastore, topology: LabTopology, nodes: u8) -> LabCluster {
        LabCluster {
            datastore,
            topology,
            bgp: BgpMode::None,
            encap: PodEncapsulation::None,
            bird: Vec::new(),
            hubs: 0,
            record: false,
            flows: false,
            endpoint: store::endpoint(place, datastore),
            pools: Vec::new(),
            nodes: topology.nodes(nodes),
            kubernetes: None,
        }
    }

    pub fn load(place: &LabPaths) -> LabResult<LabCluster> {
        files::read(&place.cluster_file())?.ok_or_else(|| {
            LabError::refused(format!("no lab {} is up; `{}` makes one", place.name(), place.command("up")))
        })
    }

    pub fn node(&self, name: &str) -> LabResult<&LabNode> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let hint = suggest_name(name, names.iter().map(|name| (*name).to_owned()));
            LabError::refused(format!("there is no node {name}{hint}; there are {}", names.join(", ")))
        })
    }

    /// Rejects operations that are not available in a lab with Kubernetes. `instead` names the alternative.
    pub fn check_plain(&self, instead: &str) -> LabResult<()> {
        match self.kubernetes {
            None => Ok(()),
            Some(_) => Err(LabError::refused(format!("this lab has Kubernetes: {instead}"))),
        }
    }

    /// Returns the number of hubs that run as processes; in a lab with Kubernetes they are pods.
    pub fn process_hubs(&self) -> u8 {
        if self.kubernetes.is_some() { 0 } else { self.hubs }
    }

    pub fn has_bird(&self, node: &str) -> bool {
        self.bird.iter().any(|name| name == node)
    }

    pub fn has_family(&self, ipv6: bool) -> bool {
        self.first_pool(ipv6).is_some()
    }

    pub fn first_pool(&self, ipv6: bool) -> Option<IpNet> {
        self.pools.iter().copied().find(|pool| matches!(pool, IpNet::V6(_)) == ipv6)
    }

    /// Returns the pools that the lab itself must create: nodes of Kubernetes create the first pool of each family.
    pub fn further_pools(&self) -> Vec<IpNet> {
        let first = [false, true].map(|ipv6| self.first_pool(ipv6));
        self.pools.iter().copied().filter(|pool| !first.contains(&Some(*pool))).collect()
    }
}
