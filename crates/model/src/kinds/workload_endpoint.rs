//! The interfaces of workloads: pods, containers, virtual machines.

use super::shared::{check_name, check_optional_name, check_port_name, check_port_protocol};
use crate::names::WorkloadEndpointParts;
use crate::object::NoStatus;
use crate::scalar::{Dscp, Protocol};
use crate::validation::{FieldChecker, NetworkFamily};
use crate::{Kind, ResourceSpec, TypedObject};
use ipnet::IpNet;

const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";

pub type WorkloadEndpoint = TypedObject<WorkloadEndpointSpec>;

api_types! {
    pub struct WorkloadEndpointSpec {
        pub orchestrator: String,
        pub workload: String,
        pub node: String,
        #[serde(rename = "containerID")]
        pub container_id: String,
        pub pod: String,
        pub endpoint: String,
        pub service_account_name: String,
        /// The endpoint's addresses, each as a /32 or /128.
        pub ip_networks: Vec<String>,
        /// Addresses of `ipNetworks` that the workload may use but does not get by DHCP. Read only by the DHCP server.
        pub allowed_ips: Vec<String>,
        #[serde(rename = "ipNATs")]
        pub ip_nats: Vec<IPNAT>,
        pub ipv4_gateway: String,
        pub ipv6_gateway: String,
        /// Names of profiles, in the order in which they are applied.
        pub profiles: Vec<String>,
        /// The host-side interface.
        pub interface_name: String,
        pub mac: String,
        pub ports: Vec<WorkloadEndpointPort>,
        /// Source addresses that the workload may use besides its own.
        pub allow_spoofed_source_prefixes: Vec<String>,
        pub qos_controls: Option<QoSControls>,
    }

    /// An external address that is translated to an address of the endpoint.
    pub struct IPNAT {
        #[serde(rename = "internalIP")]
        pub internal_ip: String = always,
        #[serde(rename = "externalIP")]
        pub external_ip: String = always,
    }

    /// A port that rules can refer to by its name, or that is mapped to a port of the host.
    pub struct WorkloadEndpointPort {
        pub name: String = always,
        pub protocol: Protocol = always,
        pub port: u16 = always,
        pub host_port: u16 = always,
        #[serde(rename = "hostIP")]
        pub host_ip: String = always,
    }

    /// Limits on a workload's traffic; 0 means no limit.
    pub struct QoSControls {
        /// In bits per second, as is the peak rate.
        pub ingress_bandwidth: i64,
        /// In bits.
        pub ingress_burst: i64,
        pub ingress_peakrate: i64,
        /// In bytes.
        pub ingress_minburst: i64,
        pub egress_bandwidth: i64,
        pub egress_burst: i64,
        pub egress_peakrate: i64,
        pub egress_minburst: i64,
        /// In packets per second.
        pub ingress_packet_rate: i64,
        pub ingress_packet_burst: i64,
        pub egress_packet_rate: i64,
        pub egress_packet_burst: i64,
        pub ingress_max_connections: i64,
        pub egress_max_connections: i64,
        pub dscp: Option<Dscp>,
    }
}

/// The limits of one direction, in the units of [`QoSControls`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionLimits {
    pub bandwidth: i64,
    pub burst: i64,
    pub peakrate: i64,
    pub minburst: i64,
    pub packet_rate: i64,
    pub packet_burst: i64,
    pub max_connections: i64,
}

impl QoSControls {
    pub fn new(ingress: DirectionLimits, egress: DirectionLimits, dscp: Option<Dscp>) -> QoSControls {
        QoSControls {
            ingress_bandwidth: ingress.bandwidth,
            ingress_burst: ingress.burst,
            ingress_peakrate: ingress.peakrate,
            ingress_minburst: ingress.minburst,
            ingress_packet_rate: ingress.packet_rate,
            ingress_packet_burst: ingress.packet_burst,
            ingress_max_connections: ingress.max_connections,
            egress_bandwidth: egress.bandwidth,
            egress_burst: egress.burst,
            egress_peakrate: egress.peakrate,
            egress_minburst: egress.minburst,
            egress_packet_rate: egress.packet_rate,
            egress_packet_burst: egress.packet_burst,
            egress_max_connections: egress.max_connections,
            dscp,
        }
    }

    /// Returns the limits on traffic to the workload.
    pub fn ingress(&self) -> DirectionLimits {
        DirectionLimits {
            bandwidth: self.ingress_bandwidth,
            burst: self.ingress_burst,
            peakrate: self.ingress_peakrate,
            minburst: self.ingress_minburst,
            packet_rate: self.ingress_packet_rate,
            packet_burst: self.ingress_packet_burst,
            max_connections: self.ingress_max_connections,
        }
    }

    /// Returns the limits on traffic from the workload.
    pub fn egress(&self) -> DirectionLimits {
        DirectionLimits {
            bandwidth: self.egress_bandwidth,
            burst: self.egress_burst,
            peakrate: self.egress_peakrate,
            minburst: self.egress_minburst,
            packet_rate: self.egress_packet_rate,
            packet_burst: self.egress_packet_burst,
            max_connections: self.egress_max_connections,
        }
    }
}

impl ResourceSpec for WorkloadEndpointSpec {
    const KIND: Kind = Kind::WorkloadEndpoint;
    type Status = NoStatus;

    fn set_defaults(endpoint: &mut WorkloadEndpoint) {
        let meta = &mut endpoint.metadata;
        if meta.name.is_empty()
            && let Ok(name) = endpoint.spec.name_parts().name()
        {
            meta.name = name;
        }
        for (label, value) in
            [(NAMESPACE_LABEL, &meta.namespace), (ORCHESTRATOR_LABEL, &endpoint.spec.orchestrator)]
        {
            if !value.is_empty() {
                meta.labels.insert(label.to_owned(), value.clone());
            }
        }
    }

    fn check(endpoint: &WorkloadEndpoint, at: &FieldChecker<'_>) {
        endpoint.check_name(at);
        endpoint.spec.check_spec(&at.field("spec"));
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        for (key, name) in [
            ("orchestrator", &self.orchestrator),
            ("workload", &self.workload),
            ("node", &self.node),
            ("pod", &self.pod),
            ("endpoint", &self.endpoint),
            ("serviceAccountName", &self.service_account_name),
        ] {
            check_optional_name(&at.field(key), name);
        }
        at.field("containerID").ensure(
            self.container_id.is_empty() || is_container_id(&self.container_id),
            &self.container_id,
            "must consist of letters, digits and '-', and begin and end with a letter or digit",
        );
        self.check_addresses(at);
        for (at, profile) in at.field("profiles").each(&self.profiles) {
            check_name(&at, profile);
        }
        at.field("interfaceName").interface(&self.interface_name);
        if !self.mac.is_empty() {
            at.field("mac").mac(&self.mac);
        }
        for (at, port) in at.field("ports").each(&self.ports) {
            port.check(&at);
        }
        for (at, prefix) in at.field("allowSpoofedSourcePrefixes").each(&self.allow_spoofed_source_prefixes) {
            at.cidr(prefix);
        }
        if let Some(dscp) = self.qos_controls.as_ref().and_then(|qos| qos.dscp.as_ref()) {
            at.field("qosControls").field("dscp").ensure(
                dscp.value().is_some(),
                dscp,
                "must be a number between 0 and 63 or one of DF, EF, AF11..AF43, CS0..CS6",
            );
        }
    }
}

impl WorkloadEndpoint {
    /// Checks the name, which the spec determines.
    fn check_name(&self, at: &FieldChecker<'_>) {
        let parts = self.spec.name_parts();
        if parts.make(&self.metadata.name) {
            return;
        }
        match parts.name() {
            Ok(name) => at.field("metadata").field("name").ensure(
                self.metadata.name == name,
                &self.metadata.name,
                format_args!("must be {name}, which follows from the spec"),
            ),
            Err(parts) => {
                for part in parts {
                    at.field("spec").field(part.field).fail(part.value, part.reason);
                }
            }
        }
    }
}

impl WorkloadEndpointSpec {
    /// Returns the parts from which the endpoint's name is composed.
    pub fn name_parts(&self) -> WorkloadEndpointParts<'_> {
        WorkloadEndpointParts {
            node: &self.node,
            orchestrator: &self.orchestrator,
            pod: &self.pod,
            container_id: &self.container_id,
            workload: &self.workload,
            endpoint: &self.endpoint,
        }
    }

    fn check_addresses(&self, at: &FieldChecker<'_>) {
        let mut networks = Vec::new();
        for (at, text) in at.field("ipNetworks").each(&self.ip_networks) {
            if let Some(net) = at.net(text) {
                at.ensure(
                    net.prefix_len() == net.max_prefix_len(),
                    text,
                    "must be one address: an IPv4 /32 or an IPv6 /128",
                );
                networks.push(net);
            }
        }
        for (at, nat) in at.field("ipNATs").each(&self.ip_nats) {
            nat.check(&at, &networks);
        }
        for (key, gateway, family) in [
            ("ipv4Gateway", &self.ipv4_gateway, NetworkFamily::V4),
            ("ipv6Gateway", &self.ipv6_gateway, NetworkFamily::V6),
        ] {
            if !gateway.is_empty() {
                at.field(key).ip_of(gateway, family);
            }
        }
    }
}

impl IPNAT {
    fn check(&self, at: &FieldChecker<'_>, networks: &[IpNet]) {
        let internal = at.field("internalIP").ip(&self.internal_ip);
        let external = at.field("externalIP").ip(&self.external_ip);
        let Some(internal) = internal else { return };
        at.field("internalIP").ensure(
            networks.iter().any(|net| net.contains(&internal)),
            &self.internal_ip,
            "must be one of the endpoint's ipNetworks",
        );
        if let Some(external) = external {
            at.field("externalIP").ensure(
                NetworkFamily::of(internal) == NetworkFamily::of(external),
                &self.external_ip,
                "must be of the same address family as internalIP",
            );
        }
    }
}

impl WorkloadEndpointPort {
    fn check(&self, at: &FieldChecker<'_>) {
        if !self.name.is_empty() {
            check_port_name(&at.field("name"), &self.name);
        } else {
            at.field("name").ensure(self.host_port != 0, "", "a port must have a name or a hostPort");
        }
        check_port_protocol(&at.field("protocol"), &self.protocol);
        at.field("port").port_number(self.port);
        if !self.host_ip.is_empty() {
            at.field("hostIP").net(&self.host_ip);
        }
    }
}

fn is_container_id(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}
