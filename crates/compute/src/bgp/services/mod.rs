//! Determines the service routes that this node advertises: ranges on every node, single addresses only if there are
//! endpoints to receive the traffic.
//!
//! The endpoints of services change all the time and hardly ever change the routes of one node. So a service is
//! re-evaluated only if it or one of its slices changed, and BGP is recomputed only if the result differs.

use super::settings::{ServiceAdvertisementSettings, is_single};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::kubernetes::{EndpointSlice, ExternalTraffic, KubernetesService, ServiceType};
use tortie_model::{StoreKey, StoreValue};

/// Namespace and name of a service or a slice.
type ServiceKey = (Box<str>, Box<str>);

#[derive(Debug, Default)]
pub(super) struct ServiceRoutes {
    host: String,
    settings: ServiceAdvertisementSettings,
    /// This node advertises no service routes.
    excluded: bool,
    services: BTreeMap<ServiceKey, Box<KubernetesService>>,
    slices: BTreeMap<ServiceKey, SliceReadiness>,
    /// The names of a service's slices, which are in its namespace.
    slices_of: BTreeMap<ServiceKey, BTreeSet<Box<str>>>,
    undecided: BTreeSet<ServiceKey>,
    /// Advertised addresses of each service that has any.
    decided: BTreeMap<ServiceKey, Vec<IpAddr>>,
    /// Number of services that advertise each address.
    addresses: BTreeMap<IpAddr, usize>,
}

/// The properties of an EndpointSlice that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceReadiness {
    service: Box<str>,
    ip_version: Option<u8>,
    ready_here: bool,
    ready_anywhere: bool,
}

impl ServiceRoutes {
    pub fn new(host: &str) -> ServiceRoutes {
        ServiceRoutes { host: host.to_owned(), ..ServiceRoutes::default() }
    }

    pub fn put(&mut self, key: &StoreKey, value: &StoreValue) {
        match (key, value) {
            (StoreKey::Service { namespace, name }, StoreValue::Service(service)) => {
                let name = named(namespace, name);
                if self.services.get(&name) != Some(service) {
                    self.services.insert(name.clone(), service.clone());
                    self.undecided.insert(name);
                }
            }
            (StoreKey::EndpointSlice { namespace, name }, StoreValue::EndpointSlice(slice)) => {
                self.put_slice(namespace, name, SliceReadiness::new(slice, &self.host));
            }
            _ => {}
        }
    }

    pub fn remove(&mut self, key: &StoreKey) {
        match key {
            StoreKey::Service { namespace, name } => {
                let name = named(namespace, name);
                if self.services.remove(&name).is_some() {
                    self.undecided.insert(name);
                }
            }
            StoreKey::EndpointSlice { namespace, name } => self.remove_slice(namespace, name),
            _ => {}
        }
    }

    fn put_slice(&mut self, namespace: &str, name: &str, slice: SliceReadiness) {
        let key = named(namespace, name);
        if self.slices.get(&key) == Some(&slice) {
            return;
        }
        self.remove_slice(namespace, name);
        let service = named(namespace, &slice.service);
        self.slices_of.entry(service.clone()).or_default().insert(name.into());
        self.undecided.insert(service);
        self.slices.insert(key, slice);
    }

    fn remove_slice(&mut self, namespace: &str, name: &str) {
        let Some(old) = self.slices.remove(&named(namespace, name)) else { return };
        let service = named(namespace, &old.service);
        if let Some(names) = self.slices_of.get_mut(&service) {
            names.remove(name);
            if names.is_empty() {
                self.slices_of.remove(&service);
            }
        }
        self.undecided.insert(service);
    }

    /// Sets the configuration. A change re-evaluates every service.
    pub fn configure(&mut self, settings: ServiceAdvertisementSettings, excluded: bool) {
        if self.settings != settings || self.excluded != excluded {
            (self.settings, self.excluded) = (settings, excluded);
            self.undecided.extend(self.services.keys().cloned());
        }
    }

    /// Re-evaluates the changed services. Returns whether the advertised addresses changed.
    pub fn flush(&mut self) -> bool {
        let mut changed = false;
        for name in std::mem::take(&mut self.undecided) {
            let wanted = self.decide(&name);
            let before = self.decided.remove(&name).unwrap_or_default();
            if wanted == before {
                if !wanted.is_empty() {
                    self.decided.insert(name, wanted);
                }
                continue;
            }
            for address in &wanted {
                let services = self.addresses.entry(*address).or_default();
                *services += 1;
                changed |= *services == 1;
            }
            for address in before {
                let services = self.addresses.entry(address).or_default();
                *services = services.saturating_sub(1);
                if *services == 0 {
                    self.addresses.remove(&address);
                    changed = true;
                }
            }
            if !wanted.is_empty() {
                self.decided.insert(name, wanted);
            }
        }
        changed
    }

    pub fn ranges(&self) -> Vec<IpNet> {
        if self.excluded { Vec::new() } else { self.settings.ranges() }
    }

    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.addresses.keys().copied().collect()
    }

    fn decide(&self, name: &ServiceKey) -> Vec<IpAddr> {
        let Some(service) = self.services.get(name).filter(|_| !self.excluded) else { return Vec::new() };
        let names = self.slices_of.get(name).into_iter().flatten();
        let slices = names.filter_map(|slice| self.slices.get(&(name.0.clone(), slice.clone())));
        if !leads_somewhere(&self.settings, service, slices) {
            return Vec::new();
        }
        list_announced(&self.settings, service)
    }
}

impl SliceReadiness {
    fn new(slice: &EndpointSlice, host: &str) -> SliceReadiness {
        SliceReadiness {
            service: slice.service.as_str().into(),
            ip_version: slice.ip_version,
            ready_here: slice.ready_on.iter().any(|node| node == host),
            ready_anywhere: !slice.ready_on.is_empty(),
        }
    }
}

/// Returns whether this node advertises single addresses of a service.
fn leads_somewhere<'a>(
    settings: &ServiceAdvertisementSettings,
    service: &KubernetesService,
    mut slices: impl Iterator<Item = &'a SliceReadiness>,
) -> bool {
    if service.form == ServiceType::Other || service.cluster_ips.is_empty() {
        return false;
    }
    if service.traffic == ExternalTraffic::Cluster && has_single_range(settings, service) {
        return true;
    }
    let local = service.traffic == ExternalTraffic::Local;
    if !local && settings.aggregated {
        return false;
    }
    slices.any(|slice| {
        let its_family = slice.ip_version.is_some_and(|version| service.ip_versions.contains(&version));
        its_family && if local { slice.ready_here } else { slice.ready_anywhere }
    })
}

/// Returns whether an address of the service is configured as a range of one address, which no advertised range
/// covers.
fn has_single_range(settings: &ServiceAdvertisementSettings, service: &KubernetesService) -> bool {
    let mut balanced = service.load_balancer_ip.iter().chain(&service.ingress_ips);
    (service.form == ServiceType::LoadBalancer
        && balanced.any(|address| is_single_range(&settings.balancers, address)))
        || service.external_ips.iter().any(|address| is_single_range(&settings.external, address))
}

fn is_single_range(ranges: &[IpNet], address: &IpAddr) -> bool {
    ranges.iter().any(|range| is_single(range) && range.contains(address))
}

fn is_within(ranges: &[IpNet], address: &IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(address))
}

/// Returns the addresses of a service that may be advertised.
fn list_announced(settings: &ServiceAdvertisementSettings, service: &KubernetesService) -> Vec<IpAddr> {
    let cluster = service.cluster_ips.iter().filter(|_| !settings.cluster.is_empty());
    let external = service.external_ips.iter().filter(|address| is_within(&settings.external, address));
    let balanced = service.ingress_ips.iter().filter(|address| is_within(&settings.balancers, address));
    let all: BTreeSet<IpAddr> = cluster.chain(external).chain(balanced).copied().collect();
    all.into_iter().collect()
}

fn named(namespace: &str, name: &str) -> ServiceKey {
    (namespace.into(), name.into())
}

#[cfg(test)]
mod tests;
