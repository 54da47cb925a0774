//! Assigns addresses to Services of type LoadBalancer, from pools whose allowed uses include LoadBalancer.
//!
//! Pure: services, pools and blocks in, actions out. IPAM blocks are the source of truth: they record the addresses
//! of a service under a handle derived from its name and UID. The status of the Service is updated from them.

use crate::absence::{AbsenceClaim, AbsenceSubject, ReferenceCounts, SubjectClass};
use data_encoding::BASE64URL_NOPAD;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_ipam::block::{self, AddressAllocation, ReleaseRequest};
use tortie_ipam::owner::attribute;
use tortie_ipam::pool::{AddressUse, AllocationPool};
use tortie_ipam::{BlockOwner, space};
use tortie_model::ipam::AddressBlock;
use tortie_model::key::AffinityType;
use tortie_model::kinds::AssignIPs;
use tortie_model::kubernetes::{KubernetesService, ServiceType};

const LOAD_BALANCER_CLASS: &str = "calico";
const POOL_ANNOTATIONS: [&str; 2] = ["projectcalico.org/ipv4pools", "projectcalico.org/ipv6pools"];
const ADDRESS_ANNOTATION: &str = "projectcalico.org/loadBalancerIPs";
/// IPAM type attribute of the address of a service, and the attribute that names the service.
const ALLOCATION_TYPE: &str = "LoadBalancer";
const SERVICE_ATTRIBUTE: &str = "service";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadBalancerServiceName {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BalancerAction {
    /// Releases addresses of a service that was deleted or must not have them.
    Release(Vec<ReleaseRequest>),
    Assign(AddressAssignment),
    /// Writes the addresses of a service to its status.
    Report {
        service: LoadBalancerServiceName,
        uid: String,
        addresses: Vec<IpAddr>,
    },
}

/// Addresses to assign to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressAssignment {
    pub service: LoadBalancerServiceName,
    pub handle: String,
    pub attributes: BTreeMap<String, String>,
    pub choice: AddressChoice,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressChoice {
    /// Exactly these addresses.
    Addresses(Vec<IpAddr>),
    /// One address of each of these families. It comes from the listed pools, or from any pool if none is listed.
    Any { v4: bool, v6: bool, v4_pools: Vec<IpNet>, v6_pools: Vec<IpNet> },
}

#[derive(Debug, Default)]
pub struct ServiceBalancer {
    services: BTreeMap<LoadBalancerServiceName, KubernetesService>,
    pools: BTreeMap<String, AllocationPool>,
    /// Addresses of services by block; blocks without any are omitted.
    held: BTreeMap<IpNet, Vec<HeldAddress>>,
}

/// An address of a service as recorded in a block.
#[derive(Clone, Debug)]
struct HeldAddress {
    handle: String,
    address: IpAddr,
    sequence_number: u64,
    /// Service that the address was assigned to; `None` if the block does not record it.
    service: Option<LoadBalancerServiceName>,
}

impl HeldAddress {
    /// Returns the address if it was assigned to a service.
    fn from_allocation(allocation: AddressAllocation<'_>) -> Option<HeldAddress> {
        let service = allocation
            .attribute(SERVICE_ATTRIBUTE)
            .filter(|_| allocation.attribute(attribute::TYPE_ATTRIBUTE) == Some(ALLOCATION_TYPE))?;
        let handle = allocation.handle().filter(|handle| handle.starts_with("lb-"))?;
        let namespace = allocation.attribute(attribute::NAMESPACE_ATTRIBUTE);
        Some(HeldAddress {
            handle: handle.to_owned(),
            address: allocation.address,
            sequence_number: allocation.sequence_number,
            service: namespace.map(|namespace| LoadBalancerServiceName {
                namespace: namespace.to_owned(),
                name: service.to_owned(),
            }),
        })
    }
}

/// Returns the owner of the blocks of load balancers.
pub fn block_owner() -> BlockOwner {
    BlockOwner { affinity: AffinityType::Virtual, name: "load-balancer".to_owned() }
}

/// Returns the IPAM handle of a service: `lb-` and a digest of its name, namespace and UID.
pub fn derive_handle(service: &LoadBalancerServiceName, uid: &str) -> String {
    let text = format!("{}-{}-{uid}", service.name, service.namespace).to_lowercase();
    let digest = BASE64URL_NOPAD.encode(&Sha256::digest(text.as_bytes()));
    format!("lb-{}", digest.replace(['-', '_', '.'], ""))
}

impl ServiceBalancer {
    pub fn put_service(&mut self, name: LoadBalancerServiceName, service: KubernetesService) {
        self.services.insert(name, service);
    }

    pub fn remove_service(&mut self, name: &LoadBalancerServiceName) {
        self.services.remove(name);
    }

    pub fn put_pool(&mut self, name: &str, pool: Option<AllocationPool>) {
        match pool {
            Some(pool) => self.pools.insert(name.to_owned(), pool),
            None => self.pools.remove(name),
        };
    }

    pub fn put_block(&mut self, block: &AddressBlock) {
        let held: Vec<_> = block::allocations(block).filter_map(HeldAddress::from_allocation).collect();
        if held.is_empty() {
            self.held.remove(&block.cidr);
        } else {
            self.held.insert(block.cidr, held);
        }
    }

    pub fn remove_block(&mut self, cidr: &IpNet) {
        self.held.remove(cidr);
    }

    /// Returns the actions to take. Without `mode` no service gets an address, and existing assignments are kept.
    pub fn decide(&self, mode: Option<&AssignIPs>) -> Vec<AbsenceClaim<BalancerAction>> {
        let Some(mode) = mode else { return Vec::new() };
        let mut by_handle: BTreeMap<&str, Vec<&HeldAddress>> = BTreeMap::new();
        for held in self.held.values().flatten() {
            by_handle.entry(&held.handle).or_default().push(held);
        }
        let mut claims = Vec::new();
        for (name, service) in &self.services {
            let handle = derive_handle(name, &service.uid);
            let held = by_handle.remove(handle.as_str()).unwrap_or_default();
            if is_managed(service, mode) {
                claims.extend(self.decide_one(name, service, handle, held));
            } else if !held.is_empty() {
                // The service exists, but must not have an address.
                claims.push(AbsenceClaim::certain(BalancerAction::Release(release_requests(&held))));
            }
        }
        // The services of the remaining handles are not known.
        for (handle, held) in by_handle {
            let Some(service) = held.iter().find_map(|held| held.service.clone()) else { continue };
            let subject = AbsenceSubject::ServiceHold { service, handle: handle.to_owned() };
            claims.push(AbsenceClaim::if_absent(BalancerAction::Release(release_requests(&held)), subject));
        }
        claims
    }

    /// Returns the number of services that have an address, and the number of their addresses.
    pub fn references(&self) -> ReferenceCounts {
        let handles: BTreeSet<&str> = self.held.values().flatten().map(|held| held.handle.as_str()).collect();
        let addresses = self.held.values().map(Vec::len).sum();
        ReferenceCounts::from([
            (SubjectClass::Services, handles.len()),
            (SubjectClass::PoolAddresses, addresses),
        ])
    }

    fn decide_one(
        &self,
        name: &LoadBalancerServiceName,
        service: &KubernetesService,
        handle: String,
        held: Vec<&HeldAddress>,
    ) -> Vec<AbsenceClaim<BalancerAction>> {
        let requested = read_requested_addresses(service);
        let requested = requested.as_deref();
        let pools = [4, 6].map(|version| self.named_pools(service, version));
        let mut kept = BTreeSet::new();
        let mut unwanted = Vec::new();
        let mut claims = Vec::new();
        for held in held {
            let address = held.address;
            if self.pools.values().any(|pool| pool.cidr.contains(&address)) {
                if self.may_keep(address, requested, &pools) {
                    kept.insert(address);
                } else {
                    unwanted.push(held);
                }
                continue;
            }
            // Keep the address until it is proven that no pool contains it.
            kept.insert(address);
            let subject = AbsenceSubject::PoolOfAddress { address };
            claims.push(AbsenceClaim::if_absent(BalancerAction::Release(release_requests(&[held])), subject));
        }
        let mut actions = Vec::new();
        if !unwanted.is_empty() {
            actions.push(BalancerAction::Release(release_requests(&unwanted)));
        }
        match self.missing_addresses(service, requested, &kept, &pools) {
            Some(choice) => {
                let attributes = [
                    (SERVICE_ATTRIBUTE, name.name.as_str()),
                    (attribute::NAMESPACE_ATTRIBUTE, &name.namespace),
                    (attribute::TYPE_ATTRIBUTE, ALLOCATION_TYPE),
                ];
                let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
                actions.push(BalancerAction::Assign(AddressAssignment {
                    service: name.clone(),
                    handle,
                    attributes,
                    choice,
                }));
            }
            None if actions.is_empty() => {}
            None => return combine_claims(actions, claims),
        }
        // Keep the addresses in the status while further addresses are assigned.
        let reported: BTreeSet<IpAddr> = service.ingress_ips.iter().copied().collect();
        if reported != kept {
            let addresses = kept.into_iter().collect();
            actions.push(BalancerAction::Report {
                service: name.clone(),
                uid: service.uid.clone(),
                addresses,
            });
        }
        combine_claims(actions, claims)
    }

    /// Returns whether a service may keep an address.
    fn may_keep(
        &self,
        address: IpAddr,
        requested: Option<&[IpAddr]>,
        pools: &[Option<Vec<IpNet>>; 2],
    ) -> bool {
        let pool = self.pools.values().find(|pool| pool.cidr.contains(&address));
        let Some(pool) = pool.filter(|pool| pool.uses.contains(&AddressUse::LoadBalancer)) else {
            return false;
        };
        if let Some(requested) = requested {
            return requested.contains(&address);
        }
        match &pools[usize::from(space::version_of(address) == 6)] {
            Some(named) => named.contains(&pool.cidr),
            None => pool.automatic,
        }
    }

    /// Returns the addresses that a service still needs, or `None` if it has all.
    fn missing_addresses(
        &self,
        service: &KubernetesService,
        requested: Option<&[IpAddr]>,
        kept: &BTreeSet<IpAddr>,
        pools: &[Option<Vec<IpNet>>; 2],
    ) -> Option<AddressChoice> {
        if let Some(requested) = requested {
            let missing: Vec<IpAddr> =
                requested.iter().copied().filter(|address| !kept.contains(address)).collect();
            return (!missing.is_empty()).then_some(AddressChoice::Addresses(missing));
        }
        let [v4, v6] = [4, 6].map(|version| {
            let has = kept.iter().any(|address| space::version_of(*address) == version);
            service.ip_versions.contains(&version) && !has && self.has_usable_pool(version, pools)
        });
        let [v4_pools, v6_pools] = pools.clone().map(Option::unwrap_or_default);
        (v4 || v6).then_some(AddressChoice::Any { v4, v6, v4_pools, v6_pools })
    }

    /// Returns whether a pool of a family can assign an address to a service that names these pools.
    fn has_usable_pool(&self, version: u8, pools: &[Option<Vec<IpNet>>; 2]) -> bool {
        let named = pools[usize::from(version == 6)].as_ref();
        self.pools.values().any(|pool| {
            let is_allowed = named.map_or(pool.automatic, |named| named.contains(&pool.cidr));
            let fits = space::version(&pool.cidr) == version && pool.uses.contains(&AddressUse::LoadBalancer);
            is_allowed && fits && pool.enabled
        })
    }

    /// Returns the existing pools that a service names for a family, by name or by CIDR, or `None` if it names none.
    fn named_pools(&self, service: &KubernetesService, version: u8) -> Option<Vec<IpNet>> {
        let texts = parse_list_annotation(service, POOL_ANNOTATIONS[usize::from(version == 6)])?;
        let pools = texts.iter().filter_map(|text| {
            self.pools.get(text).or_else(|| self.pools.values().find(|pool| text.parse() == Ok(pool.cidr)))
        });
        Some(pools.map(|pool| pool.cidr).filter(|net| space::version(net) == version).collect())
    }
}

/// Returns whether this controller assigns addresses to the service.
fn is_managed(service: &KubernetesService, mode: &AssignIPs) -> bool {
    if service.form != ServiceType::LoadBalancer {
        return false;
    }
    match service.load_balancer_class.as_deref() {
        Some(class) => class == LOAD_BALANCER_CLASS,
        None if *mode == AssignIPs::RequestedServicesOnly => {
            let annotated = POOL_ANNOTATIONS
                .into_iter()
                .chain([ADDRESS_ANNOTATION])
                .any(|name| service.annotations.contains_key(name));
            annotated || service.load_balancer_ip.is_some()
        }
        None => true,
    }
}

/// Returns the addresses that a service requests, at most one per family, or `None` if it accepts any.
fn read_requested_addresses(service: &KubernetesService) -> Option<Vec<IpAddr>> {
    let all: Vec<IpAddr> = match parse_list_annotation(service, ADDRESS_ANNOTATION) {
        Some(texts) => texts.iter().filter_map(|text| text.parse().ok()).collect(),
        None => vec![service.load_balancer_ip?],
    };
    let mut requested: Vec<IpAddr> = Vec::new();
    for address in all {
        if !requested.iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            requested.push(address);
        }
    }
    Some(requested)
}

/// Parses a list in an annotation. Returns an empty list if the annotation is invalid: a service that requests a
/// specific address must not be assigned another.
fn parse_list_annotation(service: &KubernetesService, annotation: &str) -> Option<Vec<String>> {
    let text = service.annotations.get(annotation)?;
    Some(serde_json::from_str(text).unwrap_or_default())
}

/// Returns claims for actions that rely on no absence, followed by the claims that do.
fn combine_claims(
    actions: Vec<BalancerAction>,
    claims: Vec<AbsenceClaim<BalancerAction>>,
) -> Vec<AbsenceClaim<BalancerAction>> {
    actions.into_iter().map(AbsenceClaim::certain).chain(claims).collect()
}

fn release_requests(held: &[&HeldAddress]) -> Vec<ReleaseRequest> {
    let requests = held.iter().map(|held| ReleaseRequest {
        address: held.address,
        handle: Some(held.handle.clone()),
        sequence_number: Some(held.sequence_number),
    });
    requests.collect()
}

#[cfg(test)]
mod tests;
