//! Paths of keys in etcd.
//!
//! All clients of a store have to use the same paths byte for byte, so parsing accepts a path only if formatting the
//! parsed key yields the same path.

use ipnet::IpNet;
use tortie_model::key::{AffinityType, WorkloadStatusKey};
use tortie_model::{KeyRange, Kind, StoreKey};

const RESOURCES_PREFIX: &str = "/calico/resources/v3/projectcalico.org/";
const IPAM_PREFIX: &str = "/calico/ipam/v2/";
const BLOCKS_PREFIX: &str = "/calico/ipam/v2/assignment/";
const HANDLES_PREFIX: &str = "/calico/ipam/v2/handle/";
const IPAM_CONFIG_PATH: &str = "/calico/ipam/v2/config";
const FELIX_REGION_PREFIX: &str = "/calico/felix/v2/";
const FELIX_HOST_PREFIX: &str = "/calico/felix/v1/host/";
/// Never written: services exist only in the Kubernetes API.
const ENDPOINT_SLICES_PREFIX: &str = "/calico/kubernetes/endpointslices/";
const SERVICES_PREFIX: &str = "/calico/kubernetes/services/";
const DHCP_REGION_PREFIX: &str = "/calico/dhcp/v2/";
const LEGACY_DHCP_SUBNETS_PREFIX: &str = "/calico/dhcp/v1/subnet/";
const COMPACT_REVISION_PATH: &str = "compact_rev_key";
const OPENSTACK_PREFIX: &str = "/calico/openstack/v2/";
const NEUTRON_ELECTION: &str = "neutron_election";
const LEGACY_NEUTRON_ELECTION_PATH: &str = "/calico/openstack/v1/neutron_election";

/// Returns the path of a key in etcd.
pub fn path(key: &StoreKey) -> String {
    match key {
        StoreKey::Resource { kind, namespace, name } if kind.is_namespaced() => {
            format!("{RESOURCES_PREFIX}{}/{namespace}/{name}", kind.plural())
        }
        StoreKey::Resource { kind, name, .. } => format!("{RESOURCES_PREFIX}{}/{name}", kind.plural()),
        StoreKey::Block { cidr } => format!("{BLOCKS_PREFIX}{}", block_part(cidr)),
        StoreKey::BlockAffinity { affinity, owner, cidr } => {
            format!("{IPAM_PREFIX}{affinity}/{owner}/{}", block_part(cidr))
        }
        StoreKey::Handle { id } => format!("{HANDLES_PREFIX}{id}"),
        StoreKey::IpamConfig => IPAM_CONFIG_PATH.to_owned(),
        StoreKey::IpamHost { host } => format!("{IPAM_PREFIX}host/{host}"),
        StoreKey::FelixStatus { region, host } => {
            format!("{FELIX_REGION_PREFIX}{}/host/{host}/status", region_part(region))
        }
        StoreKey::FelixLastStatus { region, host } => {
            format!("{FELIX_REGION_PREFIX}{}/host/{host}/last_reported_status", region_part(region))
        }
        StoreKey::WorkloadEndpointStatus(status) => format!(
            "{FELIX_REGION_PREFIX}{}/host/{}/workload/{}/{}/endpoint/{}",
            region_part(&status.region),
            status.host,
            escape(&status.orchestrator),
            escape(&status.workload),
            escape(&status.endpoint)
        ),
        StoreKey::HostEndpointStatus { host, endpoint } => {
            format!("{FELIX_HOST_PREFIX}{host}/endpoint/{}", escape(endpoint))
        }
        StoreKey::EndpointSlice { namespace, name } => format!("{ENDPOINT_SLICES_PREFIX}{namespace}/{name}"),
        StoreKey::Service { namespace, name } => format!("{SERVICES_PREFIX}{namespace}/{name}"),
        StoreKey::DhcpSubnet { region, id } => {
            format!("{DHCP_REGION_PREFIX}{}/subnet/{id}", region_part(region))
        }
        StoreKey::LegacyDhcpSubnet { id } => format!("{LEGACY_DHCP_SUBNETS_PREFIX}{id}"),
        StoreKey::CompactRevision => COMPACT_REVISION_PATH.to_owned(),
        StoreKey::NeutronElection { region } => {
            format!("{OPENSTACK_PREFIX}{}/{NEUTRON_ELECTION}", region_part(region))
        }
        StoreKey::LegacyNeutronElection => LEGACY_NEUTRON_ELECTION_PATH.to_owned(),
    }
}

/// Parses a path; `None` for the keys of other applications in the same store.
pub fn parse(path: &str) -> Option<StoreKey> {
    let key = if let Some(rest) = path.strip_prefix(RESOURCES_PREFIX) {
        parse_resource(rest)
    } else if let Some(rest) = path.strip_prefix(BLOCKS_PREFIX) {
        parse_block(rest).map(|cidr| StoreKey::Block { cidr })
    } else if let Some(rest) = path.strip_prefix(HANDLES_PREFIX) {
        (!rest.is_empty()).then(|| StoreKey::Handle { id: rest.to_owned() })
    } else if path == IPAM_CONFIG_PATH {
        Some(StoreKey::IpamConfig)
    } else if let Some(rest) = path.strip_prefix(IPAM_PREFIX) {
        parse_affinity(rest)
    } else if let Some(rest) = path.strip_prefix(FELIX_REGION_PREFIX) {
        parse_felix(rest)
    } else if let Some(rest) = path.strip_prefix(FELIX_HOST_PREFIX) {
        match segments(rest)?[..] {
            [host, "endpoint", endpoint] => {
                Some(StoreKey::HostEndpointStatus { host: host.to_owned(), endpoint: unescape(endpoint) })
            }
            _ => None,
        }
    } else if let Some(rest) = path.strip_prefix(DHCP_REGION_PREFIX) {
        match segments(rest)?[..] {
            [region, "subnet", id] => {
                Some(StoreKey::DhcpSubnet { region: parse_region(region)?, id: id.to_owned() })
            }
            _ => None,
        }
    } else if let Some(rest) = path.strip_prefix(LEGACY_DHCP_SUBNETS_PREFIX) {
        match segments(rest)?[..] {
            [id] => Some(StoreKey::LegacyDhcpSubnet { id: id.to_owned() }),
            _ => None,
        }
    } else if let Some(rest) = path.strip_prefix(OPENSTACK_PREFIX) {
        match segments(rest)?[..] {
            [region, NEUTRON_ELECTION] => Some(StoreKey::NeutronElection { region: parse_region(region)? }),
            _ => None,
        }
    } else if path == LEGACY_NEUTRON_ELECTION_PATH {
        Some(StoreKey::LegacyNeutronElection)
    } else {
        (path == COMPACT_REVISION_PATH).then_some(StoreKey::CompactRevision)
    };
    key.filter(|key| self::path(key) == path)
}

/// Returns the common path prefix of all keys of the range. Keys outside of the range may have this prefix too: filter
/// the results with [`KeyRange::contains`].
pub fn prefix(range: &KeyRange) -> String {
    match range {
        KeyRange::Resources { kind, namespace, name_prefix } => {
            let plural = kind.plural();
            match (kind.is_namespaced(), namespace) {
                (false, _) => format!("{RESOURCES_PREFIX}{plural}/{name_prefix}"),
                (true, Some(namespace)) => format!("{RESOURCES_PREFIX}{plural}/{namespace}/{name_prefix}"),
                (true, None) => format!("{RESOURCES_PREFIX}{plural}/"),
            }
        }
        KeyRange::Written { kind, namespace } => {
            let within = namespace.as_ref().filter(|_| kind.is_namespaced());
            let within = within.map(|namespace| format!("{namespace}/")).unwrap_or_default();
            format!("{RESOURCES_PREFIX}{}/{within}", kind.plural())
        }
        KeyRange::Blocks { ip_version: None } => BLOCKS_PREFIX.to_owned(),
        KeyRange::Blocks { ip_version: Some(version) } => format!("{BLOCKS_PREFIX}ipv{version}/"),
        KeyRange::BlockAffinities { affinity, owner, ip_version } => match (owner, ip_version) {
            (None, _) => format!("{IPAM_PREFIX}{affinity}/"),
            (Some(owner), None) => format!("{IPAM_PREFIX}{affinity}/{owner}/"),
            (Some(owner), Some(version)) => format!("{IPAM_PREFIX}{affinity}/{owner}/ipv{version}/block/"),
        },
        KeyRange::Handles => HANDLES_PREFIX.to_owned(),
        KeyRange::IpamConfig => IPAM_CONFIG_PATH.to_owned(),
        KeyRange::FelixStatuses => FELIX_REGION_PREFIX.to_owned(),
        KeyRange::WorkloadEndpointStatuses { region, host } => match (region, host) {
            (None, _) => FELIX_REGION_PREFIX.to_owned(),
            (Some(region), None) => format!("{FELIX_REGION_PREFIX}{}/host/", region_part(region)),
            (Some(region), Some(host)) => {
                format!("{FELIX_REGION_PREFIX}{}/host/{host}/workload/", region_part(region))
            }
        },
        KeyRange::DhcpSubnets { region: None } => DHCP_REGION_PREFIX.to_owned(),
        KeyRange::DhcpSubnets { region: Some(region) } => {
            format!("{DHCP_REGION_PREFIX}{}/subnet/", region_part(region))
        }
        KeyRange::LegacyDhcpSubnets => LEGACY_DHCP_SUBNETS_PREFIX.to_owned(),
        KeyRange::EndpointSlices => ENDPOINT_SLICES_PREFIX.to_owned(),
        KeyRange::Services => SERVICES_PREFIX.to_owned(),
        KeyRange::HostEndpointStatuses { host: None } => FELIX_HOST_PREFIX.to_owned(),
        KeyRange::HostEndpointStatuses { host: Some(host) } => format!("{FELIX_HOST_PREFIX}{host}/endpoint/"),
    }
}

fn version_of(cidr: &IpNet) -> u8 {
    match cidr {
        IpNet::V4(_) => 4,
        IpNet::V6(_) => 6,
    }
}

/// Returns for example `ipv4/block/10.65.3.0-26`.
fn block_part(cidr: &IpNet) -> String {
    format!("ipv{}/block/{}-{}", version_of(cidr), cidr.network(), cidr.prefix_len())
}

fn region_part(region: &str) -> String {
    if region.is_empty() { "no-region".to_owned() } else { format!("region-{region}") }
}

fn parse_region(part: &str) -> Option<String> {
    match part {
        "no-region" => Some(String::new()),
        other => other.strip_prefix("region-").filter(|name| !name.is_empty()).map(str::to_owned),
    }
}

fn escape(part: &str) -> String {
    part.replace('%', "%25").replace('/', "%2f")
}

fn unescape(part: &str) -> String {
    part.replace("%2f", "/").replace("%25", "%")
}

/// Splits a path into its segments; `None` if one of them is empty.
fn segments(rest: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = rest.split('/').collect();
    parts.iter().all(|part| !part.is_empty()).then_some(parts)
}

fn parse_resource(rest: &str) -> Option<StoreKey> {
    let parts = segments(rest)?;
    let kind = Kind::from_plural(parts.first()?)?;
    match (kind.is_namespaced(), &parts[1..]) {
        (true, [namespace, name]) => Some(StoreKey::resource(kind, namespace, name)),
        (false, [name]) => Some(StoreKey::resource(kind, "", name)),
        _ => None,
    }
}

fn parse_block(rest: &str) -> Option<IpNet> {
    let (_version, cidr) = rest.split_once("/block/")?;
    cidr.replacen('-', "/", 1).parse().ok()
}

fn parse_affinity(rest: &str) -> Option<StoreKey> {
    let (affinity, rest) = rest.split_once('/')?;
    let affinity: AffinityType = affinity.parse().ok()?;
    match rest.split_once('/') {
        None if affinity == AffinityType::Host && !rest.is_empty() => {
            Some(StoreKey::IpamHost { host: rest.to_owned() })
        }
        Some((owner, block)) if !owner.is_empty() => {
            Some(StoreKey::BlockAffinity { affinity, owner: owner.to_owned(), cidr: parse_block(block)? })
        }
        _ => None,
    }
}

fn parse_felix(rest: &str) -> Option<StoreKey> {
    let parts = segments(rest)?;
    let (region, parts) = parts.split_first()?;
    let region = parse_region(region)?;
    match *parts {
        ["host", host, "status"] => Some(StoreKey::FelixStatus { region, host: host.to_owned() }),
        ["host", host, "last_reported_status"] => {
            Some(StoreKey::FelixLastStatus { region, host: host.to_owned() })
        }
        ["host", host, "workload", orchestrator, workload, "endpoint", endpoint] => {
            Some(StoreKey::WorkloadEndpointStatus(Box::new(WorkloadStatusKey {
                region,
                host: host.to_owned(),
                orchestrator: unescape(orchestrator),
                workload: unescape(workload),
                endpoint: unescape(endpoint),
            })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
