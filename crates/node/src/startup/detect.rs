//! Autodetection of the node's address, with the methods of Calico, as functions of the interface list.

use super::interfaces::HostInterface;
use ipnet::IpNet;
use regex::Regex;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

/// Name prefixes of interfaces of other software or of our own that never carry the node's address.
const EXCLUDED_INTERFACE_PREFIXES: &[&str] = &[
    "docker",
    "cbr",
    "dummy",
    "podman",
    "virbr",
    "lxcbr",
    "veth",
    "lo",
    "br-",
    "cali",
    "tunl",
    "flannel",
    "kube-ipvs",
    "cni",
    "vxlan.calico",
    "vxlan-v6.calico",
    "wireguard.cali",
    "wg-v6.cali",
    "nodelocaldns",
];

/// The detected address and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectedAddress {
    pub address: IpNet,
    pub reason: String,
}

#[derive(Debug, thiserror::Error)]
pub enum DetectionError {
    #[error("invalid IP autodetection method: {0}")]
    Method(String),
    #[error("autodetection {method:?}: not a list of CIDRs")]
    Cidrs { method: String },
    #[error("autodetection pattern {text:?}: {source}")]
    Pattern { text: String, source: regex::Error },
    #[error("autodetection {method:?} found no {family} address; interfaces: {}", interfaces.join(", "))]
    NotFound { method: String, family: &'static str, interfaces: Vec<String> },
    #[error("autodetection can-reach={destination}: {source}")]
    Unreachable { destination: String, source: io::Error },
    #[error("autodetection can-reach={destination}: it has no address of the family")]
    NoAddress { destination: String },
}

/// Detects an address of the family by a method: `first-found`, `interface=eth.*`, `can-reach=10.0.0.1`, ...
pub fn detect(
    method: &str,
    interfaces: &[HostInterface],
    v6: bool,
) -> Result<DetectedAddress, DetectionError> {
    let method = if method.is_empty() { "first-found" } else { method };
    let (name, value) = method.split_once('=').unwrap_or((method, ""));
    let found = match name {
        "first-found" => find_first(interfaces, v6, |i, _| !is_excluded(i)),
        "interface" => {
            let wanted = parse_patterns(value)?;
            find_first(interfaces, v6, |i, _| wanted.iter().any(|regex| regex.is_match(i)))
        }
        "skip-interface" => {
            let skipped = parse_patterns(value)?;
            find_first(interfaces, v6, |i, _| {
                !is_excluded(i) && !skipped.iter().any(|regex| regex.is_match(i))
            })
        }
        "cidr" => {
            let nets: Result<Vec<IpNet>, _> = value.split(',').map(str::parse).collect();
            let nets = nets.map_err(|_| DetectionError::Cidrs { method: method.to_owned() })?;
            find_first(interfaces, v6, |_, address| nets.iter().any(|net| net.contains(&address.addr())))
        }
        "can-reach" => return find_source_address(value, interfaces, v6),
        _ => return Err(DetectionError::Method(method.to_owned())),
    };
    let (interface, address) = found.ok_or_else(|| DetectionError::NotFound {
        method: method.to_owned(),
        family: if v6 { "IPv6" } else { "IPv4" },
        interfaces: interfaces.iter().map(|interface| interface.name.clone()).collect(),
    })?;
    Ok(DetectedAddress { address, reason: format!("on interface {interface}, by {method}") })
}

/// Returns the interfaces whose addresses the node publishes, sorted by name.
pub fn find_published(interfaces: &[HostInterface]) -> Vec<&HostInterface> {
    let mut kept: Vec<&HostInterface> = interfaces.iter().filter(|i| !is_excluded(&i.name)).collect();
    kept.sort_by(|a, b| a.name.cmp(&b.name));
    kept
}

fn is_excluded(interface: &str) -> bool {
    EXCLUDED_INTERFACE_PREFIXES.iter().any(|beginning| interface.starts_with(beginning))
}

/// Returns whether the address is global unicast in the sense of Go's `net` package, which includes private
/// addresses.
pub fn is_global_unicast(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !link_local && !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

/// Returns the first usable address. The interfaces are searched from the end of the kernel's list.
fn find_first(
    interfaces: &[HostInterface],
    v6: bool,
    wanted: impl Fn(&str, &IpNet) -> bool,
) -> Option<(&str, IpNet)> {
    interfaces.iter().rev().find_map(|interface| {
        let address = interface.addresses.iter().find(|net| {
            net.addr().is_ipv6() == v6 && is_global_unicast(net.addr()) && wanted(&interface.name, net)
        });
        Some((interface.name.as_str(), *address?))
    })
}

/// Returns the source address of packets to a destination. Sends nothing.
fn find_source_address(
    destination: &str,
    interfaces: &[HostInterface],
    v6: bool,
) -> Result<DetectedAddress, DetectionError> {
    let unreachable = |source| DetectionError::Unreachable { destination: destination.to_owned(), source };
    let mut targets = (destination, 80).to_socket_addrs().map_err(unreachable)?;
    let target = targets
        .find(|target| target.is_ipv6() == v6)
        .ok_or_else(|| DetectionError::NoAddress { destination: destination.to_owned() })?;
    let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    let local = local.map_err(unreachable)?.ip();
    let address = with_mask(local, interfaces).unwrap_or_else(|| IpNet::from(local));
    Ok(DetectedAddress { address, reason: format!("the route to {destination} leaves through it") })
}

/// Returns the address with the prefix length that it has on its interface.
pub fn with_mask(address: IpAddr, interfaces: &[HostInterface]) -> Option<IpNet> {
    interfaces.iter().flat_map(|interface| &interface.addresses).find(|net| net.addr() == address).copied()
}

fn parse_patterns(list: &str) -> Result<Vec<Regex>, DetectionError> {
    let patterns = list.split(',').map(|text| {
        Regex::new(text.trim()).map_err(|source| DetectionError::Pattern { text: text.to_owned(), source })
    });
    patterns.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Vec<HostInterface> {
        let interface = |name: &str, nets: &[&str]| HostInterface {
            name: name.into(),
            addresses: nets.iter().map(|net| net.parse().unwrap()).collect(),
        };
        vec![
            interface("lo", &["127.0.0.1/8", "::1/128"]),
            interface("eth0", &["192.0.2.5/24", "fe80::1/64", "2001:db8::5/64"]),
            interface("eth1", &["169.254.7.7/16", "198.51.100.9/25"]),
            interface("docker0", &["172.17.0.1/16"]),
            interface("cali123", &["10.0.0.1/32"]),
        ]
    }

    fn found(method: &str, v6: bool) -> Result<String, DetectionError> {
        detect(method, &host(), v6).map(|choice| choice.address.to_string())
    }

    #[test]
    fn methods_choose_as_the_reference_does() {
        for (method, v6, expected) in [
            ("", false, "198.51.100.9/25"),
            ("first-found", true, "2001:db8::5/64"),
            ("interface=eth0", false, "192.0.2.5/24"),
            ("interface=wlan,docker", false, "172.17.0.1/16"),
            ("skip-interface=eth1", false, "192.0.2.5/24"),
            ("cidr=192.0.2.0/24", false, "192.0.2.5/24"),
            ("cidr=10.0.0.0/8,172.17.0.0/16", false, "10.0.0.1/32"),
        ] {
            assert_eq!(found(method, v6).unwrap(), expected, "{method}");
        }
    }

    #[test]
    fn what_cannot_be_found_says_why() {
        for method in ["interface=nope", "interface=[", "cidr=x", "guess", "cidr=203.0.113.0/24"] {
            assert!(found(method, false).is_err(), "{method}");
        }
        let error = found("skip-interface=eth.*", false).unwrap_err().to_string();
        assert!(error.contains("docker0"), "{error}");
    }

    #[test]
    fn reaching_ourselves_finds_loopback() {
        assert_eq!(found("can-reach=127.0.0.1", false).unwrap(), "127.0.0.1/8");
    }

    #[test]
    fn only_the_host_s_own_interfaces_are_published() {
        let host = host();
        let names: Vec<&str> =
            find_published(&host).iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["eth0", "eth1"]);
    }
}
