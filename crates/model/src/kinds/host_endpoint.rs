//! Interfaces of nodes that policies apply to.

use super::cel_settings;
use super::shared::{check_name, check_port_name, check_port_protocol};
use crate::object::{NoStatus, StatusForm};
use crate::scalar::{Protocol, is_default};
use crate::schema::forms;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub type HostEndpoint = TypedObject<HostEndpointSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel_settings::host_endpoint()))]
pub struct HostEndpointSpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::name")]
    pub node: String,
    /// An interface, or `*` for all interfaces of the node.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_interface")]
    pub interface_name: String,
    #[serde(rename = "expectedIPs", skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::addresses", extend("x-kubernetes-list-type" = "set"))]
    pub expected_ips: Vec<String>,
    /// Names of profiles, in the order in which they are applied.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::names", extend("x-kubernetes-list-type" = "set"))]
    pub profiles: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub ports: Vec<EndpointPort>,
}

/// A port that rules can refer to by its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["name", "protocol", "port"]))]
pub struct EndpointPort {
    #[schemars(schema_with = "forms::endpoint_port_name")]
    pub name: String,
    #[schemars(schema_with = "forms::port_protocol")]
    pub protocol: Protocol,
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

impl ResourceSpec for HostEndpointSpec {
    const KIND: Kind = Kind::HostEndpoint;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(endpoint: &HostEndpoint, at: &FieldChecker<'_>) {
        let (spec, at) = (&endpoint.spec, at.field("spec"));
        check_name(&at.field("node"), &spec.node);
        if !spec.interface_name.is_empty() {
            at.field("interfaceName").interface(&spec.interface_name);
        } else if spec.expected_ips.is_empty() {
            at.field("interfaceName").fail("", "at least one of interfaceName and expectedIPs must be set");
        }
        let place = at.field("expectedIPs");
        for (at, ip) in place.each(&spec.expected_ips) {
            at.ip(ip);
        }
        place.unique(&spec.expected_ips);
        let place = at.field("profiles");
        for (at, profile) in place.each(&spec.profiles) {
            check_name(&at, profile);
        }
        place.unique(&spec.profiles);
        for (at, port) in at.field("ports").each(&spec.ports) {
            check_port_name(&at.field("name"), &port.name);
            check_port_protocol(&at.field("protocol"), &port.protocol);
            at.field("port").port_number(port.port);
        }
    }
}
