//! Settings from BGPConfiguration: `default` applies to all nodes, `node.<name>` to one node.

use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_model::kinds::{
    BGPConfiguration, BGPPassword, BindMode, ProgramClusterRoutes, ServiceIPBlock,
    ServiceLoadBalancerAggregation,
};
use tortie_model::scalar::GoDuration;
use tortie_plan::bgp::{BgpCommunity, BgpLogSeverity, PasswordReference};

const DEFAULT_AS_NUMBER: u32 = 64512;
const DEFAULT_LISTEN_PORT: u16 = 179;
const DEFAULT_ROUTE_PRIORITY: u32 = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BgpSettings {
    pub as_number: u32,
    pub mesh: bool,
    pub mesh_password: Option<PasswordReference>,
    pub mesh_restart_time: Option<u16>,
    pub listen_port: u16,
    /// Ports of nodes with their own setting; `port_of_all` applies to all others.
    pub ports: BTreeMap<String, u16>,
    pub port_of_all: u16,
    pub bind_to_node: bool,
    pub communities: Vec<(IpNet, Vec<BgpCommunity>)>,
    pub services: ServiceAdvertisementSettings,
    pub priority_v4: u32,
    pub priority_v6: u32,
    pub programs: ProgrammedRoutes,
    pub ignored_interfaces: Vec<String>,
    pub log_severity: BgpLogSeverity,
}

/// The service addresses that may be advertised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceAdvertisementSettings {
    pub cluster: Vec<IpNet>,
    pub external: Vec<IpNet>,
    pub balancers: Vec<IpNet>,
    /// Addresses of load balancers are advertised as ranges.
    pub aggregated: bool,
}

/// The routes that BGP writes into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgrammedRoutes {
    pub no_encap: bool,
    pub ipip: bool,
}

impl BgpSettings {
    pub fn new(host: &str, configurations: &BTreeMap<String, BGPConfiguration>) -> BgpSettings {
        let none = BGPConfiguration::default();
        let all = configurations.get("default").unwrap_or(&none);
        let node = configurations.get(&format!("node.{host}"));
        let port_of_all = listen_port(all).unwrap_or(DEFAULT_LISTEN_PORT);
        let ports = configurations
            .iter()
            .filter_map(|(name, configuration)| {
                Some((name.strip_prefix("node.")?.to_owned(), listen_port(configuration)?))
            })
            .collect();
        let spec = &all.spec;
        let communities = communities(node, all);
        BgpSettings {
            as_number: spec
                .as_number
                .map(|number| number.0)
                .filter(|number| *number != 0)
                .unwrap_or(DEFAULT_AS_NUMBER),
            mesh: spec.node_to_node_mesh_enabled.unwrap_or(true),
            mesh_password: secret(spec.node_mesh_password.as_ref()),
            mesh_restart_time: seconds(spec.node_mesh_max_restart_time.as_ref()),
            listen_port: node.and_then(listen_port).unwrap_or(port_of_all),
            ports,
            port_of_all,
            bind_to_node: spec.bind_mode == BindMode::NodeIP,
            communities,
            services: ServiceAdvertisementSettings::new(all),
            priority_v4: route_priority(spec.ipv4_normal_route_priority),
            priority_v6: route_priority(spec.ipv6_normal_route_priority),
            programs: ProgrammedRoutes::new(&spec.program_cluster_routes),
            ignored_interfaces: spec.ignored_interfaces.clone(),
            log_severity: node.and_then(log_severity).or_else(|| log_severity(all)).unwrap_or_default(),
        }
    }

    /// Returns the port that another node listens on.
    pub fn port_of(&self, node: &str) -> u16 {
        self.ports.get(node).copied().unwrap_or(self.port_of_all)
    }
}

fn listen_port(configuration: &BGPConfiguration) -> Option<u16> {
    Some(configuration.spec.listen_port).filter(|port| *port != 0)
}

fn log_severity(configuration: &BGPConfiguration) -> Option<BgpLogSeverity> {
    match configuration.spec.log_severity_screen.to_ascii_lowercase().as_str() {
        "" => None,
        "trace" | "debug" => Some(BgpLogSeverity::Debug),
        "warning" => Some(BgpLogSeverity::Warning),
        "error" | "fatal" => Some(BgpLogSeverity::Error),
        _ => Some(BgpLogSeverity::Info),
    }
}

fn route_priority(setting: Option<i64>) -> u32 {
    setting.and_then(|priority| u32::try_from(priority).ok()).unwrap_or(DEFAULT_ROUTE_PRIORITY)
}

fn parse_ranges(blocks: &[ServiceIPBlock]) -> Vec<IpNet> {
    blocks.iter().filter_map(|block| block.cidr.parse().ok()).map(|net: IpNet| net.trunc()).collect()
}

impl ServiceAdvertisementSettings {
    fn new(all: &BGPConfiguration) -> ServiceAdvertisementSettings {
        let spec = &all.spec;
        ServiceAdvertisementSettings {
            cluster: parse_ranges(&spec.service_cluster_ips),
            external: parse_ranges(&spec.service_external_ips),
            balancers: parse_ranges(&spec.service_load_balancer_ips),
            aggregated: spec.service_load_balancer_aggregation != ServiceLoadBalancerAggregation::Disabled,
        }
    }

    /// Returns the ranges that are advertised as a whole. Routes inside them do not go into the kernel.
    pub fn ranges(&self) -> Vec<IpNet> {
        let balancers = self.balancers.iter().filter(|_| self.aggregated);
        let outside = self.external.iter().chain(balancers).filter(|net| !is_single(net));
        self.cluster.iter().chain(outside).copied().collect()
    }

    /// Returns all ranges in which services may have addresses.
    pub fn all(&self) -> Vec<IpNet> {
        self.cluster.iter().chain(&self.external).chain(&self.balancers).copied().collect()
    }

    /// Returns the ranges whose routes a route reflector passes on.
    pub fn reflected(&self) -> Vec<IpNet> {
        self.balancers.iter().chain(&self.external).copied().collect()
    }
}

/// Returns whether a range is a single address.
pub(super) fn is_single(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

impl ProgrammedRoutes {
    fn new(setting: &ProgramClusterRoutes) -> ProgrammedRoutes {
        match setting {
            ProgramClusterRoutes::Enabled => ProgrammedRoutes { no_encap: true, ipip: true },
            ProgramClusterRoutes::Disabled => ProgrammedRoutes { no_encap: false, ipip: false },
            ProgramClusterRoutes::EnabledIPIPOnly => ProgrammedRoutes { no_encap: false, ipip: true },
            _ => ProgrammedRoutes { no_encap: true, ipip: false },
        }
    }
}

pub(super) fn secret(password: Option<&BGPPassword>) -> Option<PasswordReference> {
    let reference = password?.secret_key_ref.as_ref()?;
    Some(PasswordReference { name: reference.name.clone(), key: reference.key.clone() })
}

/// Returns whole seconds, limited to the maximum of the protocol.
pub(super) fn seconds(duration: Option<&GoDuration>) -> Option<u16> {
    let seconds = duration?.to_std()?.as_secs();
    Some(u16::try_from(seconds).unwrap_or(u16::MAX))
}

pub(super) fn parse_community(text: &str) -> Option<BgpCommunity> {
    let parts: Vec<u32> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match parts[..] {
        [high, low] => Some(BgpCommunity::Standard(u16::try_from(high).ok()?, u16::try_from(low).ok()?)),
        [first, second, third] => Some(BgpCommunity::Large(first, second, third)),
        _ => None,
    }
}

/// Returns the communities of prefixes. In each family, the node's own configuration replaces the common one if it
/// has any.
fn communities(node: Option<&BGPConfiguration>, all: &BGPConfiguration) -> Vec<(IpNet, Vec<BgpCommunity>)> {
    let own = node.map(advertised_communities).unwrap_or_default();
    let own_v4 = own.iter().any(|(net, _)| net.addr().is_ipv4());
    let own_v6 = own.iter().any(|(net, _)| net.addr().is_ipv6());
    let mut communities = advertised_communities(all);
    communities.retain(|(net, _)| if net.addr().is_ipv4() { !own_v4 } else { !own_v6 });
    communities.extend(own);
    communities.sort_unstable();
    communities
}

/// Returns the communities of the prefixes that one configuration advertises.
fn advertised_communities(configuration: &BGPConfiguration) -> Vec<(IpNet, Vec<BgpCommunity>)> {
    let spec = &configuration.spec;
    let entries = spec.prefix_advertisements.iter().filter_map(|advertisement| {
        let net = advertisement.cidr.parse().ok()?;
        let texts = advertisement.communities.iter().map(|text| {
            let named = spec.communities.iter().find(|community| community.name == *text);
            named.map_or(text, |community| &community.value)
        });
        let mut values: Vec<BgpCommunity> = texts.filter_map(|text| parse_community(text)).collect();
        values.sort_unstable();
        values.dedup();
        (!values.is_empty()).then_some((net, values))
    });
    entries.collect()
}
