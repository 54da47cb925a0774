//! Floating addresses: decides which of the requested addresses an endpoint gets.
//!
//! Every user who can create a pod can name any address in an annotation, so an address is granted only if it has no
//! other owner: it is in an IPPool for workloads, and no node, service, IPAM block or other endpoint uses it. All
//! nodes decide on the same data.

use crate::pools::PoolFacts;
use crate::workloads::{EndpointName, addresses};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use thiserror::Error;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_plan::FloatingIp;

/// Maximum number of floating addresses of one endpoint; the rest are refused.
pub const MAX_FLOATING_IPS: usize = 32;

const OPENSTACK: &str = "openstack";

/// Reason why an endpoint does not get a floating address. It names no other owner, because the user who created the
/// pod sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FloatingRefusal {
    #[error("it is in no enabled IPPool that allows workloads")]
    OutsidePools,
    #[error("it belongs to a node")]
    Node,
    #[error("it belongs to a service")]
    Service,
    #[error("IPAM gives the addresses of its block to workloads; use a pool with assignmentMode Manual")]
    Block,
    #[error("it belongs to another endpoint")]
    Endpoint,
    #[error("another endpoint had asked for it before")]
    Claimed,
    #[error("its internal address is not an address of the endpoint in the same family")]
    NotOwn,
    #[error("an endpoint may have {MAX_FLOATING_IPS} floating addresses")]
    TooMany,
}

/// The floating addresses that the endpoints of the cluster request.
#[derive(Debug)]
pub(crate) struct FloatingClaims {
    host: String,
    /// Whether floating addresses are allowed. Endpoints of OpenStack need no permission: Neutron chose the
    /// addresses, not the tenants.
    enabled: bool,
    /// Pools from which addresses may be requested.
    pools: BTreeMap<String, PoolFacts>,
    requests: BTreeMap<EndpointName, FloatingRequest>,
    /// By external address; the first claim wins.
    claims: BTreeMap<IpAddr, BTreeSet<FloatingClaim>>,
    /// Refused addresses of this node's endpoints, as of the last decision.
    refusals: BTreeMap<EndpointName, Vec<RefusedAddress>>,
}

#[derive(Clone, Debug)]
struct RefusedAddress {
    address: String,
    reason: FloatingRefusal,
}

#[derive(Debug)]
struct FloatingRequest {
    is_local: bool,
    is_openstack: bool,
    wanted: Vec<FloatingIp>,
    /// Refused regardless of other endpoints.
    unusable: Vec<RefusedAddress>,
}

/// A claim to an external address. The oldest endpoint sorts first; of several of the same age, the one whose own
/// address sorts first as text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FloatingClaim {
    is_undated: bool,
    created: String,
    internal_text: String,
    internal: IpAddr,
    name: EndpointName,
}

impl FloatingClaims {
    pub fn new(host: &str) -> FloatingClaims {
        FloatingClaims {
            host: host.to_owned(),
            enabled: false,
            pools: BTreeMap::new(),
            requests: BTreeMap::new(),
            claims: BTreeMap::new(),
            refusals: BTreeMap::new(),
        }
    }

    pub fn configure(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub fn put_pool(&mut self, name: &str, pool: PoolFacts) {
        if pool.for_workloads {
            self.pools.insert(name.to_owned(), pool);
        } else {
            self.pools.remove(name);
        }
    }

    pub fn remove_pool(&mut self, name: &str) {
        self.pools.remove(name);
    }

    /// Adds or replaces an endpoint of any node of the cluster.
    pub fn put_endpoint(&mut self, name: &EndpointName, endpoint: &WorkloadEndpoint) {
        self.remove_endpoint(name);
        if endpoint.spec.ip_nats.is_empty() {
            return;
        }
        let request = FloatingRequest::read(endpoint, &self.host);
        let created = &endpoint.metadata.creation_timestamp;
        for FloatingIp { external, internal } in &request.wanted {
            self.claims.entry(*external).or_default().insert(FloatingClaim {
                is_undated: created.is_none(),
                created: created.clone().unwrap_or_default(),
                internal_text: internal.to_string(),
                internal: *internal,
                name: name.clone(),
            });
        }
        self.requests.insert(name.clone(), request);
    }

    pub fn remove_endpoint(&mut self, name: &EndpointName) {
        let Some(request) = self.requests.remove(name) else { return };
        for FloatingIp { external, .. } in request.wanted {
            if let Some(claims) = self.claims.get_mut(&external) {
                claims.retain(|claim| claim.name != *name);
                if claims.is_empty() {
                    self.claims.remove(&external);
                }
            }
        }
    }

    /// Returns the floating addresses of each endpoint of this node. `find_owner` returns the other owner of an
    /// address, `has_block` whether it is in an IPAM block.
    pub fn decide(
        &mut self,
        find_owner: impl Fn(IpAddr) -> Option<FloatingRefusal>,
        has_block: impl Fn(IpAddr) -> bool,
    ) -> BTreeMap<EndpointName, Vec<FloatingIp>> {
        let mut granted: BTreeMap<EndpointName, Vec<FloatingIp>> = BTreeMap::new();
        let mut refusals = BTreeMap::new();
        let local = self.requests.iter().filter(|(_, request)| request.is_local && self.permits(request));
        for (name, request) in local {
            let mut refused = request.unusable.clone();
            for floating in &request.wanted {
                let refusal = find_owner(floating.external)
                    .or_else(|| self.check_pool(request, floating.external, &has_block))
                    .or_else(|| self.check_claim(floating));
                match refusal {
                    None => granted.entry(name.clone()).or_default().push(*floating),
                    Some(reason) => {
                        refused.push(RefusedAddress { address: floating.external.to_string(), reason });
                    }
                }
            }
            if !refused.is_empty() {
                refusals.insert(name.clone(), refused);
            }
        }
        self.refusals = refusals;
        granted
    }

    /// Returns the endpoints of this node that do not get all requested addresses, with a description.
    pub fn refusals(&self) -> impl Iterator<Item = (&EndpointName, String)> {
        self.refusals.iter().filter_map(|(name, refused)| Some((name, describe_refusals(refused)?)))
    }

    /// Describes the refusals that prevent attaching an endpoint. An address that another endpoint claimed first is
    /// not one of them: in a rolling update the old pod holds the address until the new one runs.
    pub fn fatal_refusal(&self, name: &EndpointName) -> Option<String> {
        let refused = self.refusals.get(name)?.iter();
        describe_refusals(refused.filter(|refused| refused.reason != FloatingRefusal::Claimed))
    }

    fn permits(&self, request: &FloatingRequest) -> bool {
        self.enabled || request.is_openstack
    }

    fn check_pool(
        &self,
        request: &FloatingRequest,
        external: IpAddr,
        has_block: impl Fn(IpAddr) -> bool,
    ) -> Option<FloatingRefusal> {
        let pool = self.pools.values().find(|pool| pool.cidr.contains(&external));
        match pool {
            None if !request.is_openstack => Some(FloatingRefusal::OutsidePools),
            Some(pool) if pool.is_manual => None,
            _ => has_block(external).then_some(FloatingRefusal::Block),
        }
    }

    fn check_claim(&self, floating: &FloatingIp) -> Option<FloatingRefusal> {
        let FloatingIp { external, internal } = floating;
        let mut claims = self.claims.get(external).into_iter().flatten();
        let holder =
            claims.find(|claim| self.requests.get(&claim.name).is_some_and(|request| self.permits(request)));
        // A machine that migrates has two endpoints with the same addresses.
        holder.filter(|holder| holder.internal != *internal).map(|_| FloatingRefusal::Claimed)
    }
}

fn describe_refusals<'a>(refused: impl IntoIterator<Item = &'a RefusedAddress>) -> Option<String> {
    let texts = refused.into_iter().map(|RefusedAddress { address, reason }| format!("{address}: {reason}"));
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| format!("floating addresses refused: {}", texts.join("; ")))
}

impl FloatingRequest {
    fn read(endpoint: &WorkloadEndpoint, host: &str) -> FloatingRequest {
        let spec = &endpoint.spec;
        let mut wanted = Vec::new();
        let mut unusable = Vec::new();
        for nat in &spec.ip_nats {
            if wanted.len() == MAX_FLOATING_IPS {
                let address = nat.external_ip.clone();
                unusable.push(RefusedAddress { address, reason: FloatingRefusal::TooMany });
                break;
            }
            if let (Ok(external), Ok(internal)) =
                (nat.external_ip.parse::<IpAddr>(), nat.internal_ip.parse::<IpAddr>())
                && external.is_ipv4() == internal.is_ipv4()
                && addresses(endpoint).any(|address| address == internal)
            {
                wanted.push(FloatingIp { external, internal });
            } else if unusable.len() < MAX_FLOATING_IPS {
                let address = nat.external_ip.clone();
                unusable.push(RefusedAddress { address, reason: FloatingRefusal::NotOwn });
            }
        }
        FloatingRequest {
            is_local: spec.node == host,
            is_openstack: spec.orchestrator == OPENSTACK,
            wanted,
            unusable,
        }
    }
}
