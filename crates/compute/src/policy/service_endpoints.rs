//! The endpoints of services, for rules that reference a service.

use super::PolicyCompute;
use super::sets::MatchView;
use hashbrown::HashMap;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_model::kubernetes::{EndpointSlice, ServicePort};
use tortie_plan::{SetKind, SetMember};

/// A service and its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ServiceReference {
    pub namespace: Box<str>,
    pub name: Box<str>,
}

/// An EndpointSlice of a service. There may be one for each service of the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RuleServiceSlice {
    service: Box<str>,
    addresses: Box<[IpAddr]>,
    ports: Box<[ServicePort]>,
}

#[derive(Debug, Default)]
pub(super) struct ServiceEndpoints {
    /// By namespace and name of the slice.
    slices: HashMap<(Box<str>, Box<str>), RuleServiceSlice>,
    /// The names of a service's slices, which are in its namespace.
    of_service: HashMap<ServiceReference, BTreeSet<Box<str>>>,
}

impl ServiceReference {
    pub fn new(namespace: &str, name: &str) -> ServiceReference {
        ServiceReference { namespace: namespace.into(), name: name.into() }
    }
}

impl RuleServiceSlice {
    pub fn new(slice: &EndpointSlice) -> RuleServiceSlice {
        RuleServiceSlice {
            service: slice.service.as_str().into(),
            addresses: slice.addresses.as_slice().into(),
            ports: slice.ports.as_slice().into(),
        }
    }

    /// Returns the service it belongs to.
    pub fn service(&self, namespace: &str) -> ServiceReference {
        ServiceReference::new(namespace, &self.service)
    }

    pub fn members(&self, kind: SetKind, visit: &mut dyn FnMut(SetMember)) {
        for &address in &self.addresses {
            match kind {
                SetKind::Nets => visit(SetMember::Net(IpNet::from(address))),
                SetKind::Ports => {
                    for &ServicePort { protocol, port } in &self.ports {
                        visit(SetMember::Port { address, protocol, port });
                    }
                }
            }
        }
    }

    fn contains(&self, member: SetMember) -> bool {
        match member {
            SetMember::Net(net) => self.addresses.iter().any(|address| IpNet::from(*address) == net),
            SetMember::Port { address, protocol, port } => {
                self.addresses.contains(&address) && self.ports.contains(&ServicePort { protocol, port })
            }
        }
    }
}

impl ServiceEndpoints {
    /// Returns whether a slice is already known with this content.
    pub fn is(&self, namespace: &str, name: &str, slice: &EndpointSlice) -> bool {
        self.slice(namespace, name).is_some_and(|known| {
            *known.service == *slice.service
                && *known.addresses == *slice.addresses
                && *known.ports == *slice.ports
        })
    }

    pub fn slice(&self, namespace: &str, name: &str) -> Option<&RuleServiceSlice> {
        self.slices.get(&(namespace.into(), name.into()))
    }

    pub fn put(&mut self, namespace: &str, name: &str, slice: RuleServiceSlice) {
        self.remove(namespace, name);
        self.of_service.entry(slice.service(namespace)).or_default().insert(name.into());
        self.slices.insert((namespace.into(), name.into()), slice);
    }

    pub fn remove(&mut self, namespace: &str, name: &str) {
        let Some(old) = self.slices.remove(&(namespace.into(), name.into())) else { return };
        let service = ServiceReference { namespace: namespace.into(), name: old.service };
        if let Some(names) = self.of_service.get_mut(&service) {
            names.remove(name);
            if names.is_empty() {
                self.of_service.remove(&service);
            }
        }
    }

    fn slices_of<'a>(&'a self, service: &'a ServiceReference) -> impl Iterator<Item = &'a RuleServiceSlice> {
        let names = self.of_service.get(service).into_iter().flatten();
        names.filter_map(|name| self.slice(&service.namespace, name))
    }

    /// Visits the members that a service adds to a set; several of its slices may have the same member.
    pub fn members(&self, service: &ServiceReference, kind: SetKind, mut visit: impl FnMut(SetMember)) {
        self.slices_of(service).for_each(|slice| slice.members(kind, &mut visit));
    }

    pub fn contains(&self, service: &ServiceReference, member: SetMember) -> bool {
        self.slices_of(service).any(|slice| slice.contains(member))
    }
}

impl PolicyCompute {
    /// Adds or replaces an EndpointSlice of a service.
    pub fn put_slice(&mut self, namespace: &str, name: &str, slice: &EndpointSlice) {
        if self.services.is(namespace, name, slice) {
            return;
        }
        self.touch_slice(namespace, name);
        let service = ServiceReference::new(namespace, &slice.service);
        let coming = RuleServiceSlice::new(slice);
        self.sets.touch_service(
            &MatchView::new(&self.labelled, &self.cluster_matches, &self.services, &self.nodes),
            &service,
            |kind, visit| coming.members(kind, visit),
        );
        self.services.put(namespace, name, coming);
    }

    pub fn remove_slice(&mut self, namespace: &str, name: &str) {
        self.touch_slice(namespace, name);
        self.services.remove(namespace, name);
    }

    fn touch_slice(&mut self, namespace: &str, name: &str) {
        let Some(slice) = self.services.slice(namespace, name) else { return };
        let service = slice.service(namespace);
        self.sets.touch_service(
            &MatchView::new(&self.labelled, &self.cluster_matches, &self.services, &self.nodes),
            &service,
            |kind, visit| slice.members(kind, visit),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(service: &str, addresses: &[&str], ports: &[u16]) -> EndpointSlice {
        EndpointSlice {
            service: service.to_owned(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ports: ports.iter().map(|&port| ServicePort { protocol: 6, port }).collect(),
            ..EndpointSlice::default()
        }
    }

    fn members(endpoints: &ServiceEndpoints, service: &str, kind: SetKind) -> usize {
        let mut count = 0;
        endpoints.members(&ServiceReference::new("ns", service), kind, |_| count += 1);
        count
    }

    #[test]
    fn slices_come_change_their_service_and_go() {
        let mut endpoints = ServiceEndpoints::default();
        endpoints.put("ns", "a", RuleServiceSlice::new(&slice("web", &["10.0.0.1", "10.0.0.2"], &[80, 81])));
        endpoints.put("ns", "b", RuleServiceSlice::new(&slice("web", &["fd00::1"], &[80])));
        endpoints.put("other", "a", RuleServiceSlice::new(&slice("web", &["10.0.0.9"], &[80])));
        assert_eq!(members(&endpoints, "web", SetKind::Ports), 5);
        assert_eq!(members(&endpoints, "web", SetKind::Nets), 3);
        let member = SetMember::Port { address: "10.0.0.2".parse().unwrap(), protocol: 6, port: 81 };
        assert!(endpoints.contains(&ServiceReference::new("ns", "web"), member));
        assert!(endpoints.is("ns", "b", &slice("web", &["fd00::1"], &[80])));
        endpoints.put("ns", "a", RuleServiceSlice::new(&slice("db", &["10.0.0.1"], &[80])));
        assert_eq!(members(&endpoints, "web", SetKind::Ports), 1);
        assert_eq!(members(&endpoints, "db", SetKind::Ports), 1);
        endpoints.remove("ns", "a");
        endpoints.remove("ns", "b");
        endpoints.remove("ns", "b");
        endpoints.remove("other", "a");
        assert!(endpoints.slices.is_empty() && endpoints.of_service.is_empty());
    }
}
