//! Ports as WorkloadEndpoints.

use super::{TranslateError, translate_qos};
use crate::names::{
    MAX_GROUP_NAME_CHARS, MAX_LABEL_CHARS, ORCHESTRATOR, compose_endpoint_name, compose_interface_name,
};
use crate::neutron::{NeutronPort, PortRecord};
use crate::{OpenStackRegion, sanitize_label};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_model::kinds::{IPNAT, WorkloadEndpoint, WorkloadEndpointSpec};
use tortie_model::{ObjectMeta, Resource};

const OWNER_PREFIXES: [&str; 2] = ["compute:", "kuryr:container"];
const VIF_UNBOUND: &str = "unbound";
pub const NETWORK_ID_ANNOTATION: &str = "openstack.projectcalico.org/network-id";
const FQDN_ANNOTATION: &str = "openstack.projectcalico.org/fqdn";

/// Returns whether a port has an endpoint on a host: on the host to which it is bound, and on the destination of its
/// live migration.
pub fn is_wanted(port: &NeutronPort, host: &str) -> bool {
    if host.is_empty() || !OWNER_PREFIXES.iter().any(|prefix| port.device_owner.starts_with(prefix)) {
        return false;
    }
    let destination = port.migrating_to();
    let is_bound =
        port.host == host && (destination.is_some() || !matches!(port.vif_type.as_str(), VIF_UNBOUND | ""));
    is_bound || destination == Some(host)
}

/// Returns the endpoint of a port on a host.
pub fn translate_port(
    record: &PortRecord,
    host: &str,
    region: &OpenStackRegion,
) -> Result<WorkloadEndpoint, TranslateError> {
    let port = &record.port;
    let name = compose_endpoint_name(host, &port.device_id, &port.id)
        .ok_or_else(|| reject(port, "device_id", &port.device_id, "an id that can be part of a name"))?;
    let fixed = parse_addresses(port, "fixed_ips", port.fixed_ips.iter().map(|ip| ip.ip_address.as_str()))?;
    let pairs = port.allowed_address_pairs.iter().map(|pair| pair.ip_address.as_str());
    let pairs = parse_addresses(port, "allowed_address_pairs", pairs)?;
    let allowed: Vec<String> = pairs.iter().map(print_network).collect();
    let spec = WorkloadEndpointSpec {
        orchestrator: ORCHESTRATOR.to_owned(),
        workload: port.device_id.clone(),
        node: host.to_owned(),
        endpoint: port.id.clone(),
        interface_name: compose_interface_name(&port.id),
        mac: port.mac_address.clone(),
        ip_networks: fixed.iter().map(print_network).chain(allowed.iter().cloned()).collect(),
        allowed_ips: allowed,
        ipv4_gateway: find_gateway(record, IpAddr::is_ipv4),
        ipv6_gateway: find_gateway(record, IpAddr::is_ipv6),
        ip_nats: translate_nats(record),
        qos_controls: translate_qos(&record.qos_rules, &record.qos_settings),
        ..WorkloadEndpointSpec::default()
    };
    let metadata = ObjectMeta {
        name,
        namespace: region.namespace(),
        labels: translate_labels(record, region),
        annotations: translate_annotations(record),
        ..ObjectMeta::default()
    };
    let endpoint = WorkloadEndpoint::new(metadata, spec);
    endpoint
        .validate()
        .map_err(|error| TranslateError::Invalid { object: format!("port {}", port.id), error })?;
    Ok(endpoint)
}

/// Returns the endpoint as a resource of any kind.
impl PortRecord {
    pub fn to_resource(&self, host: &str, region: &OpenStackRegion) -> Result<Resource, TranslateError> {
        translate_port(self, host, region).map(Resource::from)
    }
}

fn reject(port: &NeutronPort, field: &'static str, value: &str, expected: &'static str) -> TranslateError {
    TranslateError::PortField { port: port.id.clone(), field, value: value.to_owned(), expected }
}

fn parse_addresses<'a>(
    port: &NeutronPort,
    field: &'static str,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<IpAddr>, TranslateError> {
    const EXPECTED: &str = "an IP address without a prefix length";
    texts.map(|text| text.parse().map_err(|_| reject(port, field, text, EXPECTED))).collect()
}

fn print_network(address: &IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Returns the gateway of the subnet of the last fixed address of a family; empty without such an address.
fn find_gateway(record: &PortRecord, is_family: fn(&IpAddr) -> bool) -> String {
    let of_family = |text: &str| text.parse().is_ok_and(|address| is_family(&address));
    let fixed = record.port.fixed_ips.iter().rev().find(|ip| of_family(&ip.ip_address));
    let subnet = fixed.and_then(|ip| record.subnets.iter().find(|subnet| subnet.id == ip.subnet_id));
    subnet.map(|subnet| subnet.gateway_ip.clone()).unwrap_or_default()
}

fn translate_nats(record: &PortRecord) -> Vec<IPNAT> {
    let nats = record.floating_ips.iter().map(|ip| IPNAT {
        internal_ip: ip.fixed_ip_address.clone(),
        external_ip: ip.floating_ip_address.clone(),
    });
    nats.collect()
}

fn translate_labels(record: &PortRecord, region: &OpenStackRegion) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = [
        ("projectcalico.org/namespace", region.namespace()),
        ("projectcalico.org/orchestrator", ORCHESTRATOR.to_owned()),
        ("projectcalico.org/openstack-project-id", record.port.project_id.clone()),
        ("projectcalico.org/openstack-network-name", sanitize_label(&record.network.name, MAX_LABEL_CHARS)),
    ]
    .map(|(label, value)| (label.to_owned(), value))
    .into();
    let project = [
        ("projectcalico.org/openstack-project-name", sanitize_label(&record.project.name, MAX_LABEL_CHARS)),
        ("projectcalico.org/openstack-project-parent-id", record.project.parent_id.clone()),
    ];
    for (label, value) in project {
        if !value.is_empty() {
            labels.insert(label.to_owned(), value);
        }
    }
    for id in &record.port.security_groups {
        let group = record.security_groups.iter().find(|group| group.id == *id);
        let name = group.map(|group| sanitize_label(&group.name, MAX_GROUP_NAME_CHARS)).unwrap_or_default();
        if !name.is_empty() {
            labels.insert(format!("sg-name.projectcalico.org/openstack-{name}"), id.clone());
        }
        labels.insert(format!("sg.projectcalico.org/openstack-{id}"), name);
    }
    labels
}

fn translate_annotations(record: &PortRecord) -> BTreeMap<String, String> {
    let mut annotations =
        BTreeMap::from([(NETWORK_ID_ANNOTATION.to_owned(), record.port.network_id.clone())]);
    if let Some(assignment) = record.port.dns_assignment.first().filter(|found| !found.fqdn.is_empty()) {
        annotations.insert(FQDN_ANNOTATION.to_owned(), assignment.fqdn.clone());
    }
    annotations
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn record(change: impl FnOnce(&mut Value)) -> PortRecord {
        let mut value = json!({
            "port": {
                "id": "p1-bb", "device_id": "d0-aa", "device_owner": "compute:nova", "mac_address": "fa:16:3e:01:02:03",
                "network_id": "n1", "project_id": "proj1", "binding:host_id": "cmp-1", "binding:vif_type": "tap",
                "fixed_ips": [{"ip_address": "10.65.0.5", "subnet_id": "s1"}, {"ip_address": "fd00::5", "subnet_id": "s2"}],
                "allowed_address_pairs": [{"ip_address": "23.23.23.2"}],
                "security_groups": ["sg1", "sg2"], "dns_assignment": [{"fqdn": "web.example.org."}],
                "binding:profile": null,
            },
            "network": {"id": "n1", "name": "my net"},
            "subnets": [{"id": "s1", "gateway_ip": "10.65.0.1"}, {"id": "s2", "gateway_ip": null}],
            "security_groups": [{"id": "sg1", "name": "web servers"}, {"id": "sg2", "name": "***"}],
            "floating_ips": [{"fixed_ip_address": "10.65.0.5", "floating_ip_address": "172.24.0.9"}],
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn translate(record: &PortRecord) -> Value {
        translate_port(record, "cmp-1", &OpenStackRegion::default()).unwrap().to_value()
    }

    #[test]
    fn ports_become_endpoints() {
        let expected = json!({
            "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {
                "name": "cmp--1-openstack-d0--aa-p1--bb", "namespace": "openstack",
                "labels": {
                    "projectcalico.org/namespace": "openstack", "projectcalico.org/orchestrator": "openstack",
                    "projectcalico.org/openstack-network-name": "my_net", "projectcalico.org/openstack-project-id": "proj1",
                    "sg-name.projectcalico.org/openstack-web_servers": "sg1",
                    "sg.projectcalico.org/openstack-sg1": "web_servers", "sg.projectcalico.org/openstack-sg2": "",
                },
                "annotations": {
                    "openstack.projectcalico.org/fqdn": "web.example.org.", "openstack.projectcalico.org/network-id": "n1",
                },
            },
            "spec": {
                "orchestrator": "openstack", "workload": "d0-aa", "node": "cmp-1", "endpoint": "p1-bb",
                "ipNetworks": ["10.65.0.5/32", "fd00::5/128", "23.23.23.2/32"], "allowedIps": ["23.23.23.2/32"],
                "ipNATs": [{"internalIP": "10.65.0.5", "externalIP": "172.24.0.9"}],
                "ipv4Gateway": "10.65.0.1", "interfaceName": "tapp1-bb", "mac": "fa:16:3e:01:02:03",
            },
        });
        assert_eq!(translate(&record(|_| {})), expected);
    }

    #[test]
    fn project_names_are_labels_if_known() {
        let value = translate(&record(|value| {
            value["project"] = json!({"name": "Team A", "parent_id": "default"});
        }));
        let labels = &value["metadata"]["labels"];
        assert_eq!(labels["projectcalico.org/openstack-project-name"], "Team_A");
        assert_eq!(labels["projectcalico.org/openstack-project-parent-id"], "default");
    }

    #[test]
    fn regions_have_their_own_namespace() {
        let region = OpenStackRegion::new("east").unwrap();
        let endpoint = translate_port(&record(|_| {}), "cmp-1", &region).unwrap();
        assert_eq!(endpoint.metadata.namespace, "openstack-region-east");
        assert_eq!(endpoint.metadata.labels["projectcalico.org/namespace"], "openstack-region-east");
    }

    #[test]
    fn endpoints_exist_only_on_bound_hosts() {
        for (owner, host, vif, migrating_to, on_one, on_two) in [
            ("compute:nova", "cmp-1", "tap", "", true, false),
            ("kuryr:container", "cmp-1", "tap", "", true, false),
            ("network:dhcp", "cmp-1", "tap", "", false, false),
            ("compute:nova", "cmp-1", "unbound", "", false, false),
            ("compute:nova", "cmp-1", "unbound", "cmp-2", true, true),
            ("compute:nova", "cmp-1", "tap", "cmp-2", true, true),
            ("compute:nova", "", "tap", "", false, false),
        ] {
            let port = record(|value| {
                value["port"]["device_owner"] = json!(owner);
                value["port"]["binding:host_id"] = json!(host);
                value["port"]["binding:vif_type"] = json!(vif);
                value["port"]["binding:profile"] = json!({"migrating_to": migrating_to});
            })
            .port;
            let found = [is_wanted(&port, "cmp-1"), is_wanted(&port, "cmp-2")];
            assert_eq!(found, [on_one, on_two], "{owner} {host} {vif} {migrating_to}");
        }
    }

    #[test]
    fn invalid_ports_name_field_and_value() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str, &str); 4] = [
            (
                |value| value["port"]["allowed_address_pairs"][0]["ip_address"] = json!("10.0.0.0/24"),
                "allowed_address_pairs",
                "10.0.0.0/24",
            ),
            (|value| value["port"]["fixed_ips"][0]["ip_address"] = json!("x"), "fixed_ips", "\"x\""),
            (|value| value["port"]["device_id"] = json!(""), "device_id", "\"\""),
            (|value| value["port"]["mac_address"] = json!("fa:16"), "MAC", "fa:16"),
        ];
        for (change, field, value) in cases {
            let error = translate_port(&record(change), "cmp-1", &OpenStackRegion::default()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(field) && text.contains(value) && text.contains("p1-bb"), "{text}");
        }
    }
}
