//! Computes the BGP configuration of a node from the resources that describe it: its sessions, the routes it
//! advertises and the routes that go into the kernel.
//!
//! The configuration depends on every node of the cluster, so it is recomputed as a whole when one of its inputs
//! changes in a way that matters here; the inputs are few and small.

mod export;
mod filters;
mod peers;
mod router_id;
mod services;
mod settings;
mod workloads;

use ipnet::IpNet;
use services::ServiceRoutes;
use settings::BgpSettings;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tortie_model::ipam::AffinityState;
use tortie_model::key::AffinityType;
use tortie_model::kinds::{BGPConfiguration, BGPPeer};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_plan::WorkloadPeering;
use tortie_plan::bgp::{BgpConfig, BgpFilter};
use workloads::PeeringWorkload;

use crate::conversion_error::ObjectError;
use crate::nodes::NodeFacts;
use crate::pools::PoolFacts;
use crate::workloads::EndpointName;

/// BGP settings of the operator outside of the datastore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BgpEnvironment {
    /// `CALICO_ROUTER_ID`: an address, or `hash` for an ID derived from the node name.
    pub router_id: String,
    /// BIRD is the speaker; it writes the routes to peers behind a gateway itself.
    pub by_bird: bool,
}

/// Metrics of routes to workloads that have just migrated from another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ElevatedPriorities {
    pub v4: u32,
    pub v6: u32,
}

#[derive(Debug, Default)]
pub(crate) struct BgpResolver {
    host: String,
    environment: BgpEnvironment,
    nodes: BTreeMap<String, Arc<NodeFacts>>,
    peers: BTreeMap<String, BGPPeer>,
    filters: BTreeMap<String, Arc<BgpFilter>>,
    configurations: BTreeMap<String, BGPConfiguration>,
    pools: BTreeMap<String, PoolFacts>,
    /// Blocks of this node; `false` while a block is being released.
    blocks: BTreeMap<IpNet, bool>,
    services: ServiceRoutes,
    /// Workloads of this node. `profiles` holds the labels that they may inherit.
    workloads: BTreeMap<EndpointName, PeeringWorkload>,
    profiles: BTreeMap<String, BTreeMap<String, String>>,
    elevated: ElevatedPriorities,
    changed: bool,
    published: Option<Arc<BgpConfig>>,
    /// The workloads with BGP sessions, if they may have changed.
    new_local_peers: Option<BTreeMap<EndpointName, WorkloadPeering>>,
}

impl BgpResolver {
    pub fn new(host: &str, environment: BgpEnvironment) -> BgpResolver {
        let services = ServiceRoutes::new(host);
        BgpResolver { host: host.to_owned(), environment, services, changed: true, ..BgpResolver::default() }
    }

    pub fn set_elevated(&mut self, elevated: ElevatedPriorities) {
        self.changed |= std::mem::replace(&mut self.elevated, elevated) != elevated;
    }

    pub fn put_node(&mut self, name: &str, facts: Arc<NodeFacts>) {
        self.nodes.insert(name.to_owned(), facts);
        self.changed = true;
    }

    /// Adds or replaces a pool, or removes it if it is not usable.
    pub fn put_pool(&mut self, name: &str, facts: Option<&PoolFacts>) {
        self.changed |= match facts {
            Some(facts) => set(&mut self.pools, name, *facts),
            None => self.pools.remove(name).is_some(),
        };
    }

    /// Processes an entry that concerns BGP, except nodes and pools. An unusable resource counts as absent; the error
    /// gives the reason.
    pub fn put(&mut self, key: &StoreKey, value: &StoreValue) -> Result<(), ObjectError> {
        let changed = match value {
            StoreValue::Resource(Resource::BGPPeer(peer)) => {
                self.remove(key);
                peer.validate()?;
                set(&mut self.peers, &peer.metadata.name, (**peer).clone())
            }
            StoreValue::Resource(Resource::BGPFilter(filter)) => {
                self.remove(key);
                filter.validate()?;
                set(&mut self.filters, &filter.metadata.name, Arc::new(filters::convert_filter(filter)?))
            }
            StoreValue::Resource(Resource::BGPConfiguration(configuration)) => {
                self.remove(key);
                configuration.validate()?;
                set(&mut self.configurations, &configuration.metadata.name, (**configuration).clone())
            }
            StoreValue::BlockAffinity(affinity) => match self.own_block(key) {
                Some(cidr) if affinity.state == AffinityState::Pending || affinity.deleted => {
                    self.blocks.remove(&cidr).is_some()
                }
                Some(cidr) => {
                    let announced = affinity.state != AffinityState::PendingDeletion;
                    self.blocks.insert(cidr, announced) != Some(announced)
                }
                None => false,
            },
            StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) => {
                let meta = &endpoint.metadata;
                let name = (meta.namespace.clone(), meta.name.clone());
                if endpoint.spec.node != self.host {
                    self.changed |= self.workloads.remove(&name).is_some() && self.selects_workloads();
                    return Ok(());
                }
                let facts = PeeringWorkload::new(endpoint);
                let changed = self.workloads.get(&name) != Some(&facts);
                self.workloads.insert(name, facts);
                changed && self.selects_workloads()
            }
            StoreValue::Resource(Resource::Profile(profile)) => {
                let labels = &profile.spec.labels_to_apply;
                let changed = if labels.is_empty() {
                    self.profiles.remove(&profile.metadata.name).is_some()
                } else {
                    set(&mut self.profiles, &profile.metadata.name, labels.clone())
                };
                changed && self.selects_workloads()
            }
            // The next flush determines whether they change anything for this node.
            StoreValue::Service(_) | StoreValue::EndpointSlice(_) => {
                self.services.put(key, value);
                false
            }
            _ => false,
        };
        self.changed |= changed;
        Ok(())
    }

    pub fn remove(&mut self, key: &StoreKey) {
        self.services.remove(key);
        self.changed |= match key {
            StoreKey::Resource { kind: Kind::Node, name, .. } => self.nodes.remove(name).is_some(),
            StoreKey::Resource { kind: Kind::IPPool, name, .. } => self.pools.remove(name).is_some(),
            StoreKey::Resource { kind: Kind::BGPPeer, name, .. } => self.peers.remove(name).is_some(),
            StoreKey::Resource { kind: Kind::BGPFilter, name, .. } => self.filters.remove(name).is_some(),
            StoreKey::Resource { kind: Kind::BGPConfiguration, name, .. } => {
                self.configurations.remove(name).is_some()
            }
            StoreKey::Resource { kind: Kind::WorkloadEndpoint, namespace, name } => {
                let gone = self.workloads.remove(&(namespace.clone(), name.clone())).is_some();
                gone && self.selects_workloads()
            }
            StoreKey::Resource { kind: Kind::Profile, name, .. } => {
                self.profiles.remove(name).is_some() && self.selects_workloads()
            }
            _ => self.own_block(key).is_some_and(|cidr| self.blocks.remove(&cidr).is_some()),
        };
    }

    fn own_block(&self, key: &StoreKey) -> Option<IpNet> {
        match key {
            StoreKey::BlockAffinity { affinity: AffinityType::Host, owner, cidr } if *owner == self.host => {
                Some(*cidr)
            }
            _ => None,
        }
    }

    /// Returns the peers behind a gateway for which the node itself writes routes.
    pub fn gateways(&self, bgp: &BgpConfig) -> BTreeMap<IpNet, IpAddr> {
        if self.environment.by_bird { BTreeMap::new() } else { bgp.gateways() }
    }

    /// Returns the configuration if it changed since the last flush.
    pub fn flush(&mut self) -> Option<Arc<BgpConfig>> {
        if self.changed {
            let services = BgpSettings::new(&self.host, &self.configurations).services;
            let excluded = self.nodes.get(&self.host).is_some_and(|own| own.is_excluded_from_services());
            self.services.configure(services, excluded);
        }
        if !(std::mem::take(&mut self.changed) | self.services.flush()) {
            return None;
        }
        let new = Arc::new(self.compute());
        self.new_local_peers = Some(self.local_peers());
        if self.published.as_ref() == Some(&new) {
            return None;
        }
        self.published = Some(new.clone());
        Some(new)
    }

    /// Returns the configuration of the last flush, or `None` before the first.
    pub fn published(&self) -> Option<&BgpConfig> {
        self.published.as_deref()
    }

    /// Returns the workloads with BGP sessions if they may have changed since the last call.
    pub fn take_local_peers(&mut self) -> Option<BTreeMap<EndpointName, WorkloadPeering>> {
        self.new_local_peers.take()
    }

    fn compute(&self) -> BgpConfig {
        let settings = BgpSettings::new(&self.host, &self.configurations);
        let own = self.nodes.get(&self.host).cloned().unwrap_or_default();
        let as_number = own.as_number.unwrap_or(settings.as_number);
        let sessions = peers::SessionBuilder {
            host: &self.host,
            own: &own,
            as_number,
            settings: &settings,
            nodes: &self.nodes,
            peers: &self.peers,
            workloads: self.workload_ends(),
        }
        .sessions();
        let used = sessions.values().flat_map(|session| &session.filters);
        let filters = used.filter_map(|name| Some((name.clone(), self.filters.get(name)?.clone()))).collect();
        let peering = self.local_peers().into_values().flat_map(|peer| peer.addresses);
        let listen: BTreeSet<IpAddr> = if settings.bind_to_node {
            own.bgp_addresses().chain(peering).collect()
        } else {
            BTreeSet::new()
        };
        BgpConfig {
            as_number,
            router_id: self.environment.router_id(&self.host, &own),
            listen_port: settings.listen_port,
            listen: listen.into_iter().collect(),
            sessions,
            filters,
            export: export::export(
                &settings,
                &self.pools,
                &self.blocks,
                &self.services,
                own.cluster_id.is_some(),
                self.elevated,
            ),
            install: export::install(&settings, &self.pools, own.bgp_v4_subnet),
            ignored_interfaces: settings.ignored_interfaces,
            log_severity: settings.log_severity,
        }
    }
}

/// Inserts a value. Returns whether the map changed.
fn set<T: PartialEq>(map: &mut BTreeMap<String, T>, name: &str, new: T) -> bool {
    if map.get(name) == Some(&new) {
        return false;
    }
    map.insert(name.to_owned(), new);
    true
}

#[cfg(test)]
mod tests;
