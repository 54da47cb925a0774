//! The ends of a flow as records name them.

use super::book::AddressBook;
use crate::proto::EndpointType;
use std::net::{IpAddr, Ipv4Addr};
use tortie_plan::IdentityKind;
use tortie_plan::flow::ConnectionTuple;

/// Names of addresses that belong to no object of the cluster.
const PUBLIC_NAME: &str = "pub";
const PRIVATE_NAME: &str = "pvt";
/// Text of a missing namespace or service.
pub const NO_NAME: &str = "-";

/// One end of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowEnd {
    pub kind: EndpointType,
    pub namespace: String,
    pub name: String,
    pub labels: Vec<String>,
}

impl FlowEnd {
    /// Returns the end that an address is.
    pub fn of_address(address: IpAddr, book: &AddressBook) -> FlowEnd {
        let Some(identity) = book.objects.get(&address) else {
            let name = if is_private(address) { PRIVATE_NAME } else { PUBLIC_NAME };
            return FlowEnd {
                kind: EndpointType::Network,
                namespace: NO_NAME.to_owned(),
                name: name.to_owned(),
                labels: Vec::new(),
            };
        };
        FlowEnd {
            kind: match identity.kind {
                IdentityKind::Workload => EndpointType::WorkloadEndpoint,
                IdentityKind::HostEndpoint => EndpointType::HostEndpoint,
                IdentityKind::NetworkSet => EndpointType::NetworkSet,
            },
            namespace: or_none(&identity.namespace),
            name: identity.name.clone(),
            labels: identity.labels.clone(),
        }
    }

    /// Turns the end into a host endpoint of a node, which Calico names after the node.
    pub fn make_host(&mut self, host: &str) {
        self.kind = EndpointType::HostEndpoint;
        self.namespace = NO_NAME.to_owned();
        self.name = host.to_owned();
    }
}

/// The service that a connection was opened to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowService {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

impl FlowService {
    /// Returns the service before DNAT. An address that no known service has is the name of its service.
    pub fn of_connection(connection: &ConnectionTuple, book: &AddressBook) -> FlowService {
        let original = connection.original_destination;
        let original = original.filter(|(address, _)| *address != connection.flow.destination);
        let Some((address, port)) = original else {
            return FlowService { namespace: NO_NAME.to_owned(), name: NO_NAME.to_owned(), port: 0 };
        };
        match book.services.get(&address) {
            Some(service) => {
                FlowService { namespace: or_none(&service.namespace), name: service.name.clone(), port }
            }
            None => FlowService { namespace: NO_NAME.to_owned(), name: address.to_string(), port },
        }
    }
}

fn or_none(namespace: &str) -> String {
    if namespace.is_empty() { NO_NAME.to_owned() } else { namespace.to_owned() }
}

/// Returns whether Calico calls an address private: only the addresses of RFC 1918.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::is_private(&address),
        IpAddr::V6(_) => false,
    }
}

/// Returns Calico's name of a protocol.
pub fn name_protocol(protocol: u8) -> String {
    match protocol {
        1 => "icmp".to_owned(),
        4 => "ipip".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        50 => "esp".to_owned(),
        58 => "icmp6".to_owned(),
        132 => "sctp".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rfc_1918_is_private() {
        for (address, private) in [
            ("10.1.2.3", true),
            ("172.31.0.1", true),
            ("192.168.1.1", true),
            ("172.32.0.1", false),
            ("100.64.0.1", false),
            ("169.254.1.1", false),
            ("fd00::1", false),
            ("2001:db8::1", false),
        ] {
            let end = FlowEnd::of_address(address.parse().unwrap(), &AddressBook::default());
            assert_eq!(end.name, if private { "pvt" } else { "pub" }, "{address}");
            assert_eq!((end.kind, end.namespace.as_str()), (EndpointType::Network, "-"));
        }
    }
}
