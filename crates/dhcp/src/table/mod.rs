//! Derives the lease of each interface from the entries of the store: workload endpoints of this host, and subnets.
//!
//! Unreadable entries keep their last readable version, and nothing is derived before the first complete snapshot.

mod endpoint;
mod subnet;

use crate::lease::{Dhcp4Lease, Dhcp6Lease, InterfaceLease};
use endpoint::EndpointFacts;
pub(crate) use endpoint::is_domain;
use ipnet::{Ipv4Net, Ipv6Net};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use subnet::SubnetIndex;
use tortie_model::{FeedEvent, KeyRange, Kind, Resource, StoreKey, StoreValue};

/// Maximum number of endpoints of one host; more are ignored.
pub const MAX_ENDPOINTS: usize = 16_384;
/// Maximum number of subnets of a region; more are ignored.
pub const MAX_SUBNETS: usize = 65_536;
/// Maximum number of addresses of an endpoint that get a lease.
const MAX_ENDPOINT_ADDRESSES: usize = 64;
/// Maximum number of DNS servers that clients get.
const MAX_DNS_SERVERS: usize = 8;
/// Maximum number of routes that clients get. Neutron's own limit is 20.
const MAX_ROUTES: usize = 64;

/// Settings that apply to all leases.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    pub host: String,
    /// Region of OpenStack; empty if there is only one.
    pub region: String,
    /// Prefixes of the names of served interfaces.
    pub interface_prefixes: Vec<String>,
    pub lease_seconds: u32,
    /// Domain of endpoints that Neutron gives none.
    pub domain: String,
    /// Used in subnets without name servers.
    pub dns_servers: Vec<IpAddr>,
}

/// A reason why an endpoint, or one of its addresses, has no lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseProblem {
    #[error(
        "interfaceName {0:?} is not a name of an interface that this server manages; check --interface-prefix"
    )]
    ForeignInterface(String),
    #[error("mac {0:?} is not a MAC address such as fa:16:3e:00:00:01")]
    InvalidMac(String),
    #[error("ipNetworks contains {0:?}; expected an address such as 10.65.0.2/32")]
    InvalidAddress(String),
    #[error("no subnet with DHCP in the endpoint's network contains the address {0}")]
    NoSubnet(IpAddr),
    #[error("interface {interface} already belongs to the endpoint {owner}")]
    InterfaceTaken { interface: String, owner: String },
    #[error("it has more than {MAX_ENDPOINT_ADDRESSES} addresses; the others get no lease")]
    TooManyAddresses,
}

/// The leases by interface, and the problems by endpoint.
#[derive(Debug, Default, PartialEq)]
pub struct DerivedLeases {
    pub leases: BTreeMap<String, InterfaceLease>,
    pub problems: BTreeMap<String, Vec<LeaseProblem>>,
}

/// The entries of the store that leases depend on.
#[derive(Debug)]
pub struct LeaseTable {
    settings: LeaseSettings,
    /// By name.
    endpoints: BTreeMap<String, EndpointFacts>,
    subnets: SubnetIndex,
    in_sync: bool,
    /// Entries ignored because the table was full.
    pub ignored_entries: u64,
    /// Entries that could not be decoded.
    pub unreadable_entries: u64,
}

impl LeaseTable {
    pub fn new(settings: LeaseSettings) -> LeaseTable {
        LeaseTable {
            settings,
            endpoints: BTreeMap::new(),
            subnets: SubnetIndex::default(),
            in_sync: false,
            ignored_entries: 0,
            unreadable_entries: 0,
        }
    }

    /// Returns the ranges of the store that the table follows.
    pub fn ranges(settings: &LeaseSettings) -> Vec<KeyRange> {
        let region = &settings.region;
        let namespace =
            if region.is_empty() { "openstack".to_owned() } else { format!("openstack-region-{region}") };
        let mut ranges = vec![
            KeyRange::Resources {
                kind: Kind::WorkloadEndpoint,
                namespace: Some(namespace),
                // Names consist of parts in which each dash is doubled.
                name_prefix: format!("{}-openstack-", settings.host.replace('-', "--")),
            },
            KeyRange::DhcpSubnets { region: Some(region.clone()) },
        ];
        // Old drivers did not know regions.
        if region.is_empty() {
            ranges.push(KeyRange::LegacyDhcpSubnets);
        }
        ranges
    }

    /// Returns whether the first snapshot is complete.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    pub fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    pub fn subnet_count(&self) -> usize {
        self.subnets.count()
    }

    /// Processes an event. Returns whether leases may have changed.
    pub fn apply(&mut self, event: FeedEvent) -> bool {
        match event {
            FeedEvent::Put { key, value, .. } => self.put(key, value),
            FeedEvent::Delete { key, .. } => self.delete(&key),
            FeedEvent::Unreadable { key, text, reason, .. } => {
                self.unreadable_entries += 1;
                tracing::warn!(%key, %reason, value = text, "ignoring an entry that cannot be read; its last readable version stays in force");
                false
            }
            FeedEvent::InSync => !std::mem::replace(&mut self.in_sync, true),
            FeedEvent::ConnectionLost { .. } | FeedEvent::ConnectionBack { .. } => false,
        }
    }

    fn put(&mut self, key: StoreKey, value: StoreValue) -> bool {
        match (key, value) {
            (StoreKey::Resource { name, .. }, StoreValue::Resource(Resource::WorkloadEndpoint(endpoint))) => {
                if endpoint.spec.node != self.settings.host || endpoint.spec.orchestrator != "openstack" {
                    return self.endpoints.remove(&name).is_some();
                }
                if self.endpoints.len() >= MAX_ENDPOINTS && !self.endpoints.contains_key(&name) {
                    self.ignored_entries += 1;
                    tracing::error!(
                        endpoint = name,
                        "ignoring an endpoint: there are {MAX_ENDPOINTS} already"
                    );
                    return false;
                }
                let facts = EndpointFacts::new(&endpoint, &self.settings.interface_prefixes);
                self.endpoints.insert(name, facts.clone()).is_none_or(|before| before != facts)
            }
            (key, StoreValue::DhcpSubnet(subnet)) => {
                if self.subnets.count() >= MAX_SUBNETS && !self.subnets.contains(&key) {
                    self.ignored_entries += 1;
                    tracing::error!(%key, "ignoring a subnet: there are {MAX_SUBNETS} already");
                    return false;
                }
                self.subnets.insert(key, *subnet)
            }
            _ => false,
        }
    }

    fn delete(&mut self, key: &StoreKey) -> bool {
        match key {
            StoreKey::Resource { name, .. } => self.endpoints.remove(name).is_some(),
            key => self.subnets.remove(key),
        }
    }

    /// Derives all leases.
    pub fn derive(&self) -> DerivedLeases {
        let mut derived = DerivedLeases::default();
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, facts) in &self.endpoints {
            let mut problems = facts.problems.clone();
            if let (Some(interface), Some(lease)) =
                (&facts.interface, self.derive_lease(facts, &mut problems))
            {
                match owners.get(interface.as_str()) {
                    Some(owner) => problems.push(LeaseProblem::InterfaceTaken {
                        interface: interface.clone(),
                        owner: (*owner).to_owned(),
                    }),
                    None => {
                        owners.insert(interface, name);
                        derived.leases.insert(interface.clone(), lease);
                    }
                }
            }
            if !problems.is_empty() {
                derived.problems.insert(name.clone(), problems);
            }
        }
        derived
    }

    fn derive_lease(
        &self,
        facts: &EndpointFacts,
        problems: &mut Vec<LeaseProblem>,
    ) -> Option<InterfaceLease> {
        let mac = facts.mac?;
        let mut v4: Option<Dhcp4Lease> = None;
        let mut v6 = Dhcp6Lease::default();
        for address in &facts.addresses {
            let Some(subnet) = self.subnets.find(facts.network.as_deref(), *address) else {
                problems.push(LeaseProblem::NoSubnet(*address));
                continue;
            };
            match (*address, subnet.cidr) {
                // DHCPv4 grants one address; further ones are configured in the machine.
                (IpAddr::V4(address), ipnet::IpNet::V4(net)) if v4.is_none() => {
                    v4 = Some(Dhcp4Lease {
                        address,
                        subnet: net,
                        gateway: subnet.gateway_ip.and_then(only_v4),
                        dns_servers: self.choose_dns_servers(&subnet.dns_servers, only_v4),
                        routes: list_routes(subnet),
                    });
                }
                (IpAddr::V6(address), ipnet::IpNet::V6(net)) => {
                    self.add_v6(&mut v6, address, net, subnet);
                }
                _ => {}
            }
        }
        let v6 = (!v6.prefixes.is_empty()).then_some(v6);
        if v4.is_none() && v6.is_none() {
            return None;
        }
        let (host_name, domain) = self.choose_name(facts, v4.as_ref(), v6.as_ref());
        Some(InterfaceLease { mac, host_name, domain, lease_seconds: self.settings.lease_seconds, v4, v6 })
    }

    fn add_v6(
        &self,
        lease: &mut Dhcp6Lease,
        address: Ipv6Addr,
        net: Ipv6Net,
        subnet: &tortie_model::dhcp::DhcpSubnet,
    ) {
        use tortie_model::dhcp::Ipv6AddressMode;
        let mode = subnet.ipv6_mode();
        if mode == Ipv6AddressMode::Stateful {
            lease.is_managed = true;
        }
        if mode != Ipv6AddressMode::Slaac {
            lease.has_other = true;
            // Also in stateless subnets: a machine that asks gets the address that it would form.
            lease.addresses.push(address);
        }
        let is_autonomous = mode != Ipv6AddressMode::Stateful;
        if lease.prefixes.iter().all(|prefix| prefix.net != net) {
            lease.prefixes.push(crate::codec::neighbour::AdvertisedPrefix { net, is_autonomous });
            for server in self.choose_dns_servers(&subnet.dns_servers, only_v6) {
                if lease.dns_servers.len() < MAX_DNS_SERVERS && !lease.dns_servers.contains(&server) {
                    lease.dns_servers.push(server);
                }
            }
        }
    }

    fn choose_dns_servers<T>(&self, of_subnet: &[IpAddr], only: fn(IpAddr) -> Option<T>) -> Vec<T> {
        let servers = if of_subnet.is_empty() { &self.settings.dns_servers } else { of_subnet };
        servers.iter().copied().filter_map(only).take(MAX_DNS_SERVERS).collect()
    }

    /// Returns host name and domain. Without a name from Neutron, the host name follows from the address, as Neutron's
    /// own agent chooses it.
    fn choose_name(
        &self,
        facts: &EndpointFacts,
        v4: Option<&Dhcp4Lease>,
        v6: Option<&Dhcp6Lease>,
    ) -> (String, String) {
        let (host_name, domain) = facts.name.clone().unwrap_or_default();
        let domain = if domain.is_empty() { self.settings.domain.clone() } else { domain };
        if !host_name.is_empty() {
            return (host_name, domain);
        }
        let address = match (v4, v6.and_then(|v6| v6.addresses.first())) {
            (Some(v4), _) => v4.address.to_string(),
            (None, Some(address)) => address.to_string(),
            (None, None) => return (String::new(), domain),
        };
        (format!("host-{}", address.replace(['.', ':'], "-")), domain)
    }
}

fn list_routes(subnet: &tortie_model::dhcp::DhcpSubnet) -> Vec<(Ipv4Net, Ipv4Addr)> {
    let routes = subnet.host_routes.iter().filter_map(|route| match (route.destination, route.nexthop) {
        (ipnet::IpNet::V4(destination), IpAddr::V4(next_hop)) => Some((destination, next_hop)),
        _ => None,
    });
    routes.take(MAX_ROUTES).collect()
}

fn only_v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn only_v6(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    }
}
