//! Typed keys of datastore entries. Each backend decides how it encodes them.

use crate::Kind;
use crate::ipam::space;
use crate::kubernetes::is_derived_policy;
use ipnet::IpNet;
use std::fmt;
use std::str::FromStr;

/// The type of owner of an address block: a host, or something else such as a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AffinityType {
    Host,
    Virtual,
}

/// The key of one datastore entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StoreKey {
    /// A projectcalico.org/v3 resource; the namespace is empty for cluster-scoped kinds.
    Resource {
        kind: Kind,
        namespace: String,
        name: String,
    },
    Block {
        cidr: IpNet,
    },
    BlockAffinity {
        affinity: AffinityType,
        owner: String,
        cidr: IpNet,
    },
    Handle {
        id: String,
    },
    IpamConfig,
    /// Left over from old versions; only looked up and deleted, never written.
    IpamHost {
        host: String,
    },
    /// Felix heartbeat, attached to a lease. Here and in the keys below, the region is an OpenStack region
    /// and empty outside OpenStack.
    FelixStatus {
        region: String,
        host: String,
    },
    /// Felix's last heartbeat, kept after the lease expires.
    FelixLastStatus {
        region: String,
        host: String,
    },
    /// Boxed, because it would double the size of every key.
    WorkloadEndpointStatus(Box<WorkloadStatusKey>),
    HostEndpointStatus {
        host: String,
        endpoint: String,
    },
    /// Endpoints of a Kubernetes service; exists only in the Kubernetes API.
    EndpointSlice {
        namespace: String,
        name: String,
    },
    /// A Kubernetes service with its addresses; exists only in the Kubernetes API.
    Service {
        namespace: String,
        name: String,
    },
    /// An OpenStack subnet with DHCP enabled.
    DhcpSubnet {
        region: String,
        id: String,
    },
    /// The same as written by old versions of the Neutron driver, without a region; only read and deleted.
    LegacyDhcpSubnet {
        id: String,
    },
    /// State of the etcd compactor in kube-controllers; the key is shared with Kubernetes' own compactor.
    CompactRevision,
    /// Leader among the drivers of a Neutron, attached to a lease.
    NeutronElection {
        region: String,
    },
    /// The same for drivers of older versions.
    LegacyNeutronElection,
}

/// The workload endpoint whose status is reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadStatusKey {
    pub region: String,
    pub host: String,
    pub orchestrator: String,
    pub workload: String,
    pub endpoint: String,
}

/// A set of keys that can be listed and watched together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyRange {
    /// All resources of a kind, in one namespace if given, whose names begin with `name_prefix`.
    Resources {
        kind: Kind,
        namespace: Option<String>,
        name_prefix: String,
    },
    /// The resources of a kind that were written as Calico resources, excluding those derived from native
    /// Kubernetes objects.
    Written {
        kind: Kind,
        namespace: Option<String>,
    },
    Blocks {
        ip_version: Option<u8>,
    },
    /// `owner: None` lists every owner of that type.
    BlockAffinities {
        affinity: AffinityType,
        owner: Option<String>,
        ip_version: Option<u8>,
    },
    Handles,
    IpamConfig,
    /// Heartbeats, both live and last.
    FelixStatuses,
    WorkloadEndpointStatuses {
        region: Option<String>,
        host: Option<String>,
    },
    HostEndpointStatuses {
        host: Option<String>,
    },
    EndpointSlices,
    Services,
    DhcpSubnets {
        region: Option<String>,
    },
    LegacyDhcpSubnets,
}

impl AffinityType {
    pub const fn as_str(self) -> &'static str {
        match self {
            AffinityType::Host => "host",
            AffinityType::Virtual => "virtual",
        }
    }
}

impl FromStr for AffinityType {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [AffinityType::Host, AffinityType::Virtual].into_iter().find(|t| t.as_str() == text).ok_or(())
    }
}

impl fmt::Display for AffinityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl StoreKey {
    /// Returns the key of a resource. Ignores the namespace for cluster-scoped kinds.
    pub fn resource(kind: Kind, namespace: &str, name: &str) -> StoreKey {
        let namespace = if kind.is_namespaced() { namespace } else { "" };
        StoreKey::Resource { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// Formats the key for error messages.
impl fmt::Display for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreKey::Resource { kind, namespace, name } => f.write_str(&kind.identify(namespace, name)),
            StoreKey::Block { cidr } => write!(f, "BlockKey(cidr={cidr})"),
            StoreKey::BlockAffinity { affinity, owner, cidr } => {
                write!(f, "BlockAffinityKey(cidr={cidr}, host={owner}, affinityType={affinity})")
            }
            StoreKey::Handle { id } => write!(f, "IPAMHandleKey(id={id})"),
            StoreKey::IpamConfig => f.write_str("IPAMConfigKey()"),
            StoreKey::IpamHost { host } => write!(f, "IPAMHostKey(host={host})"),
            StoreKey::FelixStatus { host, .. } => write!(f, "StatusReport(hostname={host})"),
            StoreKey::FelixLastStatus { host, .. } => write!(f, "LastStatusReport(hostname={host})"),
            StoreKey::WorkloadEndpointStatus(status) => {
                let WorkloadStatusKey { host, orchestrator, workload, endpoint, .. } = &**status;
                write!(
                    f,
                    "WorkloadEndpointStatus(hostname={host}, orchestrator={orchestrator}, workload={workload}, \
                     name={endpoint})"
                )
            }
            StoreKey::HostEndpointStatus { host, endpoint } => {
                write!(f, "HostEndpointStatus(hostname={host}, name={endpoint})")
            }
            StoreKey::EndpointSlice { namespace, name } => write!(f, "EndpointSlice({namespace}/{name})"),
            StoreKey::Service { namespace, name } => write!(f, "Service({namespace}/{name})"),
            StoreKey::DhcpSubnet { id, .. } | StoreKey::LegacyDhcpSubnet { id } => {
                write!(f, "DHCPSubnet({id})")
            }
            StoreKey::CompactRevision => f.write_str("compact_rev_key"),
            StoreKey::NeutronElection { region } => write!(f, "NeutronElection(region={region})"),
            StoreKey::LegacyNeutronElection => f.write_str("NeutronElection(legacy)"),
        }
    }
}

impl KeyRange {
    /// Returns the range of all resources of a kind, in every namespace.
    pub fn all(kind: Kind) -> KeyRange {
        KeyRange::Resources { kind, namespace: None, name_prefix: String::new() }
    }

    /// Returns whether the key belongs to the range.
    pub fn contains(&self, key: &StoreKey) -> bool {
        match (self, key) {
            (
                KeyRange::Resources { kind, namespace, name_prefix },
                StoreKey::Resource { kind: its_kind, namespace: its_namespace, name },
            ) => {
                kind == its_kind
                    && (!kind.is_namespaced() || wanted(namespace, its_namespace))
                    && name.starts_with(name_prefix)
            }
            (
                KeyRange::Written { kind, namespace },
                StoreKey::Resource { kind: its_kind, namespace: its_namespace, name },
            ) => {
                kind == its_kind
                    && (!kind.is_namespaced() || wanted(namespace, its_namespace))
                    && !is_derived_policy(*kind, name)
            }
            (KeyRange::Blocks { ip_version }, StoreKey::Block { cidr }) => {
                wanted(ip_version, &space::version(cidr))
            }
            (
                KeyRange::BlockAffinities { affinity, owner, ip_version },
                StoreKey::BlockAffinity { affinity: its_affinity, owner: its_owner, cidr },
            ) => {
                affinity == its_affinity
                    && wanted(owner, its_owner)
                    && wanted(ip_version, &space::version(cidr))
            }
            (KeyRange::Handles, StoreKey::Handle { .. }) | (KeyRange::IpamConfig, StoreKey::IpamConfig) => {
                true
            }
            (KeyRange::FelixStatuses, StoreKey::FelixStatus { .. } | StoreKey::FelixLastStatus { .. }) => {
                true
            }
            (
                KeyRange::WorkloadEndpointStatuses { region, host },
                StoreKey::WorkloadEndpointStatus(status),
            ) => wanted(region, &status.region) && wanted(host, &status.host),
            (
                KeyRange::HostEndpointStatuses { host },
                StoreKey::HostEndpointStatus { host: its_host, .. },
            ) => wanted(host, its_host),
            (KeyRange::EndpointSlices, StoreKey::EndpointSlice { .. }) => true,
            (KeyRange::Services, StoreKey::Service { .. }) => true,
            (KeyRange::DhcpSubnets { region }, StoreKey::DhcpSubnet { region: its_region, .. }) => {
                wanted(region, its_region)
            }
            (KeyRange::LegacyDhcpSubnets, StoreKey::LegacyDhcpSubnet { .. }) => true,
            _ => false,
        }
    }
}

/// Formats the range for logs and the health page.
impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, parts) = match self {
            KeyRange::Resources { kind, namespace, name_prefix } => {
                let name = (!name_prefix.is_empty()).then(|| format!("{name_prefix}*"));
                let namespace = namespace.as_ref().map(|namespace| format!("namespace {namespace}"));
                (kind.name(), [namespace, name])
            }
            KeyRange::Written { kind, namespace } => {
                let namespace = namespace.as_ref().map(|namespace| format!("namespace {namespace}"));
                (kind.name(), [Some("as written".to_owned()), namespace])
            }
            KeyRange::Blocks { ip_version } => ("IPAM blocks", [family_name(ip_version), None]),
            KeyRange::BlockAffinities { affinity, owner, ip_version } => {
                let owner = owner.as_deref().unwrap_or("*");
                ("IPAM block affinities", [Some(format!("{affinity} {owner}")), family_name(ip_version)])
            }
            KeyRange::Handles => ("IPAM handles", [None, None]),
            KeyRange::IpamConfig => ("IPAM configuration", [None, None]),
            KeyRange::FelixStatuses => ("node heartbeats", [None, None]),
            KeyRange::WorkloadEndpointStatuses { region, host } => {
                let region = region.as_ref().map(|region| format!("region '{region}'"));
                ("workload endpoint statuses", [region, host.clone()])
            }
            KeyRange::HostEndpointStatuses { host } => ("host endpoint statuses", [host.clone(), None]),
            KeyRange::EndpointSlices => ("endpoint slices", [None, None]),
            KeyRange::Services => ("services", [None, None]),
            KeyRange::DhcpSubnets { region } => {
                ("DHCP subnets", [region.as_ref().map(|region| format!("region '{region}'")), None])
            }
            KeyRange::LegacyDhcpSubnets => ("DHCP subnets", [Some("of old drivers".to_owned()), None]),
        };
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(what)?;
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

fn wanted<T: PartialEq>(filter: &Option<T>, value: &T) -> bool {
    filter.as_ref().is_none_or(|wanted| wanted == value)
}

fn family_name(version: &Option<u8>) -> Option<String> {
    version.map(|version| format!("IPv{version}"))
}

#[cfg(test)]
mod tests;
