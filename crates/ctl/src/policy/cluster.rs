//! The resources of the store that determine policy, and the plan that nodes compute from them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_compute::{POLICY_KINDS, ParameterEnvironment, PlanCompute};
use tortie_model::kinds::{HostEndpoint, Node, Rule, WorkloadEndpoint};
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_plan::evaluate::{RuleHolder, RulePosition};
use tortie_plan::{DataplaneSettings, NodePlan, PolicyDirection, PolicyId, PolicyKind, WorkloadId};
use tortie_store::{ResourceClient, StoreError};

/// Kinds besides the policy kinds that affect the verdict.
const ENDPOINT_KINDS: [Kind; 4] =
    [Kind::Node, Kind::FelixConfiguration, Kind::BGPConfiguration, Kind::WorkloadEndpoint];

#[derive(Clone, Debug, Default)]
pub struct PolicyCluster {
    resources: BTreeMap<StoreKey, Resource>,
    /// The endpoints of services, if the datastore is Kubernetes.
    slices: BTreeMap<StoreKey, StoreValue>,
    /// Entries of the store that could not be decoded, with the reason.
    unreadable: Vec<String>,
}

/// The plan that one node enforces according to the store; the environment of the node may override settings.
#[derive(Debug)]
pub struct EnforcedPlan {
    pub plan: NodePlan,
    pub settings: DataplaneSettings,
}

impl PolicyCluster {
    pub async fn load(store: &ResourceClient) -> tortie_store::StoreResult<PolicyCluster> {
        let mut cluster = PolicyCluster::default();
        for kind in ENDPOINT_KINDS.into_iter().chain(POLICY_KINDS) {
            cluster.load_kind(store, kind).await?;
        }
        if store.client().capabilities().includes_kubernetes {
            let slices = store.client().list(&KeyRange::EndpointSlices).await?.entries;
            cluster.slices = slices.into_iter().map(|entry| (entry.key, entry.value)).collect();
        }
        Ok(cluster)
    }

    pub async fn load_kind(&mut self, store: &ResourceClient, kind: Kind) -> tortie_store::StoreResult<()> {
        let (list, unreadable) = store.list_all(kind, None).await?;
        list.items.into_iter().for_each(|resource| self.put(resource));
        self.unreadable.extend(unreadable.iter().map(ToString::to_string));
        Ok(())
    }

    /// Loads an object of a kind that policy does not depend on, if it exists in the store.
    pub async fn load_one(
        &mut self,
        store: &ResourceClient,
        like: &Resource,
    ) -> tortie_store::StoreResult<()> {
        let kind = like.kind();
        let meta = like.metadata();
        if POLICY_KINDS.contains(&kind) || ENDPOINT_KINDS.contains(&kind) {
            return Ok(());
        }
        match store.get(kind, &meta.namespace, &meta.name).await {
            Ok(resource) => self.put(resource),
            Err(StoreError::DoesNotExist { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub fn put(&mut self, resource: Resource) {
        self.resources.insert(key(&resource), resource);
    }

    pub fn get(&self, like: &Resource) -> Option<&Resource> {
        self.resources.get(&key(like))
    }

    /// Removes an object; returns whether it existed.
    pub fn remove(&mut self, like: &Resource) -> bool {
        self.resources.remove(&key(like)).is_some()
    }

    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.resources.contains_key(&StoreKey::resource(kind, "", name))
    }

    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.resources.values()
    }

    pub fn enforced_on(&self, node: &str) -> EnforcedPlan {
        let compute = PlanCompute::new(node, ParameterEnvironment::default());
        self.enforced(compute, self.resources.values().cloned())
    }

    /// Returns the plan of a node whose workload has a proxy that receives its policy.
    pub fn enforced_with_proxy(&self, node: &str, workload: &WorkloadId) -> EnforcedPlan {
        let sync = ("FELIX_POLICYSYNCPATHPREFIX".to_owned(), "/var/run/nodeagent".to_owned());
        let mut compute = PlanCompute::new(node, ParameterEnvironment::new([sync], []));
        compute.set_http_proxy(workload.clone(), true);
        self.enforced(compute, self.resources.values().cloned())
    }

    /// Returns the plan of a hypothetical node that hosts every endpoint of the cluster.
    pub fn enforced_everywhere(&self) -> EnforcedPlan {
        const NODE: &str = "everywhere";
        let moved = self.resources.values().enumerate().map(|(index, resource)| match resource.clone() {
            Resource::WorkloadEndpoint(mut endpoint) => {
                let spec = &mut endpoint.spec;
                spec.node = NODE.to_owned();
                // Interface names are unique per node only.
                spec.interface_name = format!("cali{index}");
                spec.allow_spoofed_source_prefixes.clear();
                if let Ok(name) = spec.name_parts().name() {
                    endpoint.metadata.name = name;
                }
                Resource::WorkloadEndpoint(endpoint)
            }
            Resource::HostEndpoint(mut endpoint) => {
                endpoint.spec.node = NODE.to_owned();
                Resource::HostEndpoint(endpoint)
            }
            other => other,
        });
        self.enforced(PlanCompute::new(NODE, ParameterEnvironment::default()), moved)
    }

    fn enforced(&self, mut compute: PlanCompute, resources: impl Iterator<Item = Resource>) -> EnforcedPlan {
        for resource in resources {
            compute.put(&key(&resource), &StoreValue::Resource(resource));
        }
        self.slices.iter().for_each(|(key, slice)| compute.put(key, slice));
        let mut plan = NodePlan::default();
        compute.flush().into_iter().for_each(|update| plan.apply(update));
        EnforcedPlan { plan, settings: compute.settings().clone() }
    }

    pub fn workloads(&self) -> impl Iterator<Item = &WorkloadEndpoint> {
        self.resources.values().filter_map(|resource| match resource {
            Resource::WorkloadEndpoint(endpoint) => Some(&**endpoint),
            _ => None,
        })
    }

    pub fn host_endpoints(&self) -> impl Iterator<Item = &HostEndpoint> {
        self.resources.values().filter_map(|resource| match resource {
            Resource::HostEndpoint(endpoint) => Some(&**endpoint),
            _ => None,
        })
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.resources.values().filter_map(|resource| match resource {
            Resource::Node(node) => Some(&**node),
            _ => None,
        })
    }

    pub fn has_profile(&self, name: &str) -> bool {
        self.has(Kind::Profile, name)
    }

    /// Returns the addresses of a node, starting with its BGP addresses.
    pub fn node_addresses(&self, name: &str) -> Vec<IpAddr> {
        self.nodes().find(|node| node.metadata.name == name).map(node_addresses).unwrap_or_default()
    }

    /// Returns a rule as its author wrote it; `None` for policies that are converted from Kubernetes objects.
    pub fn rule(&self, at: &RulePosition<'_>) -> Option<&Rule> {
        let (ingress, egress) = match at.holder {
            RuleHolder::Policy { id, .. } => match self.resources.get(&policy_key(id)?)? {
                Resource::NetworkPolicy(policy) => (&policy.spec.ingress, &policy.spec.egress),
                Resource::GlobalNetworkPolicy(policy) => (&policy.spec.ingress, &policy.spec.egress),
                Resource::StagedNetworkPolicy(policy) => (&policy.spec.ingress, &policy.spec.egress),
                Resource::StagedGlobalNetworkPolicy(policy) => (&policy.spec.ingress, &policy.spec.egress),
                _ => return None,
            },
            RuleHolder::Profile(name) => {
                match self.resources.get(&StoreKey::resource(Kind::Profile, "", name))? {
                    Resource::Profile(profile) => (&profile.spec.ingress, &profile.spec.egress),
                    _ => return None,
                }
            }
        };
        match at.direction {
            PolicyDirection::Ingress => ingress.get(at.index.position()),
            PolicyDirection::Egress => egress.get(at.index.position()),
        }
    }
}

fn key(resource: &Resource) -> StoreKey {
    let meta = resource.metadata();
    StoreKey::resource(resource.kind(), &meta.namespace, &meta.name)
}

fn policy_key(id: &PolicyId) -> Option<StoreKey> {
    let kind = match id.kind {
        PolicyKind::NetworkPolicy => Kind::NetworkPolicy,
        PolicyKind::GlobalNetworkPolicy => Kind::GlobalNetworkPolicy,
        PolicyKind::StagedNetworkPolicy => Kind::StagedNetworkPolicy,
        PolicyKind::StagedGlobalNetworkPolicy => Kind::StagedGlobalNetworkPolicy,
        PolicyKind::StagedKubernetesNetworkPolicy
        | PolicyKind::KubernetesNetworkPolicy
        | PolicyKind::KubernetesClusterNetworkPolicy => return None,
    };
    Some(StoreKey::resource(kind, &id.namespace, &id.name))
}

pub fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let bgp = node.spec.bgp.iter().flat_map(|bgp| [&bgp.ipv4_address, &bgp.ipv6_address]);
    let others = node.spec.addresses.iter().map(|address| &address.address);
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in bgp.chain(others).filter_map(|text| parse_address(text)) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Parses an address with an optional prefix length.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}
