//! Interfaces of nodes that policies apply to.

use super::cel_settings;
use super::shared::{check_name, check_port_name, check_port_protocol};
use crate::object::NoStatus;
use crate::scalar::Protocol;
use crate::schema::forms;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};

pub type HostEndpoint = TypedObject<HostEndpointSpec>;

api_types! {
    #[schemars(extend("x-kubernetes-validations" = cel_settings::host_endpoint()))]
    pub struct HostEndpointSpec {
        #[schemars(schema_with = "forms::name")]
        pub node: String,
        /// An interface, or `*` for all interfaces of the node.
        #[schemars(schema_with = "forms::optional_interface")]
        pub interface_name: String,
        #[serde(rename = "expectedIPs")]
        #[schemars(schema_with = "forms::addresses", extend("x-kubernetes-list-type" = "set"))]
        pub expected_ips: Vec<String>,
        /// Names of profiles, in the order in which they are applied.
        #[schemars(schema_with = "forms::names", extend("x-kubernetes-list-type" = "set"))]
        pub profiles: Vec<String>,
        pub ports: Vec<EndpointPort>,
    }

    /// A port that rules can refer to by its name.
    #[schemars(extend("required" = ["name", "protocol", "port"]))]
    pub struct EndpointPort {
        #[schemars(schema_with = "forms::endpoint_port_name")]
        pub name: String = always,
        #[schemars(schema_with = "forms::port_protocol")]
        pub protocol: Protocol = always,
        #[schemars(range(min = 1, max = 65535))]
        pub port: u16 = always,
    }
}

impl ResourceSpec for HostEndpointSpec {
    const KIND: Kind = Kind::HostEndpoint;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        check_name(&at.field("node"), &self.node);
        if !self.interface_name.is_empty() {
            at.field("interfaceName").interface(&self.interface_name);
        } else if self.expected_ips.is_empty() {
            at.field("interfaceName").fail("", "at least one of interfaceName and expectedIPs must be set");
        }
        let place = at.field("expectedIPs");
        for (at, ip) in place.each(&self.expected_ips) {
            at.ip(ip);
        }
        place.unique(&self.expected_ips);
        let place = at.field("profiles");
        for (at, profile) in place.each(&self.profiles) {
            check_name(&at, profile);
        }
        place.unique(&self.profiles);
        for (at, port) in at.field("ports").each(&self.ports) {
            check_port_name(&at.field("name"), &port.name);
            check_port_protocol(&at.field("protocol"), &port.protocol);
            at.field("port").port_number(port.port);
        }
    }
}
