//! The facts of a workload endpoint that its lease depends on.

use super::{LeaseProblem, MAX_ENDPOINT_ADDRESSES};
use crate::codec::frame::MacAddress;
use std::net::IpAddr;
use tortie_model::kinds::WorkloadEndpoint;

const NETWORK_ANNOTATION: &str = "openstack.projectcalico.org/network-id";
const FQDN_ANNOTATION: &str = "openstack.projectcalico.org/fqdn";
/// Longest interface name of the kernel.
const MAX_INTERFACE_BYTES: usize = 15;
const MAX_DOMAIN_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

#[derive(Clone, Debug, PartialEq)]
pub struct EndpointFacts {
    /// `None` if this server does not manage it.
    pub interface: Option<String>,
    pub mac: Option<MacAddress>,
    /// The addresses that are fixed IPs of the port, and not allowed address pairs.
    pub addresses: Vec<IpAddr>,
    /// Network in Neutron; endpoints of old drivers have none.
    pub network: Option<String>,
    /// Host name and domain; the domain may be empty.
    pub name: Option<(String, String)>,
    pub problems: Vec<LeaseProblem>,
}

impl EndpointFacts {
    pub fn new(endpoint: &WorkloadEndpoint, interface_prefixes: &[String]) -> EndpointFacts {
        let spec = &endpoint.spec;
        let mut problems = Vec::new();
        let interface = Some(spec.interface_name.clone())
            .filter(|name| name.len() <= MAX_INTERFACE_BYTES && !name.contains(['/', '\0']))
            .filter(|name| interface_prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())));
        if interface.is_none() {
            problems.push(LeaseProblem::ForeignInterface(spec.interface_name.clone()));
        }
        let mac = spec.mac.parse().ok().filter(|mac: &MacAddress| mac.0[0] & 1 == 0 && mac.0 != [0; 6]);
        if mac.is_none() {
            problems.push(LeaseProblem::InvalidMac(spec.mac.clone()));
        }
        let allowed: Vec<IpAddr> = spec.allowed_ips.iter().filter_map(|text| parse_address(text)).collect();
        let mut addresses = Vec::new();
        for text in &spec.ip_networks {
            match parse_address(text) {
                None => problems.push(LeaseProblem::InvalidAddress(text.clone())),
                Some(address) if allowed.contains(&address) || addresses.contains(&address) => {}
                Some(_) if addresses.len() >= MAX_ENDPOINT_ADDRESSES => {
                    problems.push(LeaseProblem::TooManyAddresses);
                    break;
                }
                Some(address) => addresses.push(address),
            }
        }
        let annotation = |name: &str| endpoint.metadata.annotations.get(name).cloned();
        EndpointFacts {
            interface,
            mac,
            addresses,
            network: annotation(NETWORK_ANNOTATION),
            name: annotation(FQDN_ANNOTATION).as_deref().and_then(split_name),
            problems,
        }
    }
}

/// Parses an address, with or without the length of a single address.
fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let net: ipnet::IpNet = text.parse().ok()?;
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

/// Splits a fully qualified name into host name and domain; `None` if it is not a valid name.
fn split_name(fqdn: &str) -> Option<(String, String)> {
    let fqdn = fqdn.strip_suffix('.').unwrap_or(fqdn);
    if !is_domain(fqdn) {
        return None;
    }
    let (host, domain) = fqdn.split_once('.').unwrap_or((fqdn, ""));
    Some((host.to_owned(), domain.to_owned()))
}

/// Returns whether a text is a domain name of letters, digits, dashes and underscores.
pub fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.len() <= MAX_DOMAIN_BYTES && text.split('.').all(is_label)
}
