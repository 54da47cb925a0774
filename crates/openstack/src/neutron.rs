//! Neutron's objects as the driver sends them: the JSON of Neutron's API, with the related objects that a translation
//! needs. Unknown fields are ignored; a missing field that a translation needs is an error.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// A port with everything on which its endpoint depends.
#[derive(Clone, Debug, Deserialize)]
pub struct PortRecord {
    pub port: NeutronPort,
    #[serde(default)]
    pub network: NamedObject,
    /// Subnets of the fixed addresses.
    #[serde(default)]
    pub subnets: Vec<PortSubnet>,
    /// The port's security groups, with names.
    #[serde(default)]
    pub security_groups: Vec<NamedObject>,
    #[serde(default)]
    pub floating_ips: Vec<FloatingIp>,
    /// Rules of the port's QoS policy, or of its network's if the port has none.
    #[serde(default)]
    pub qos_rules: Vec<QosRule>,
    #[serde(default)]
    pub qos_settings: QosSettings,
    #[serde(default)]
    pub project: ProjectNames,
}

#[derive(Clone, Debug, Deserialize)]
pub struct NeutronPort {
    pub id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub device_id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub device_owner: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub mac_address: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub network_id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub project_id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub fixed_ips: Vec<FixedIp>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub allowed_address_pairs: Vec<AddressPair>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub security_groups: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub dns_assignment: Vec<DnsAssignment>,
    #[serde(default, rename = "binding:host_id", deserialize_with = "null_as_default")]
    pub host: String,
    #[serde(default, rename = "binding:vif_type", deserialize_with = "null_as_default")]
    pub vif_type: String,
    #[serde(default, rename = "binding:profile", deserialize_with = "null_as_default")]
    pub profile: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct FixedIp {
    pub ip_address: String,
    #[serde(default)]
    pub subnet_id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AddressPair {
    pub ip_address: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct DnsAssignment {
    #[serde(default, deserialize_with = "null_as_default")]
    pub fqdn: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct PortSubnet {
    pub id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub gateway_ip: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct NamedObject {
    #[serde(default, deserialize_with = "null_as_default")]
    pub id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct FloatingIp {
    pub fixed_ip_address: String,
    pub floating_ip_address: String,
}

/// Names of a project from Keystone; empty if the look-up failed.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ProjectNames {
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub parent_id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct QosRule {
    #[serde(rename = "type", alias = "rule_type")]
    pub rule_type: String,
    #[serde(default)]
    pub direction: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub max_kbps: i64,
    #[serde(default, deserialize_with = "null_as_default")]
    pub max_burst_kbps: i64,
    #[serde(default, deserialize_with = "null_as_default")]
    pub max_kpps: i64,
}

/// Options of the group `[calico]` in neutron.conf that complete QoS rules.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct QosSettings {
    pub ingress_burst_bits: i64,
    pub egress_burst_bits: i64,
    pub ingress_minburst_bytes: i64,
    pub egress_minburst_bytes: i64,
    pub ingress_burst_packets: i64,
    pub egress_burst_packets: i64,
    pub max_ingress_connections_per_port: i64,
    pub max_egress_connections_per_port: i64,
}

impl Default for QosSettings {
    fn default() -> Self {
        QosSettings {
            ingress_burst_bits: 1 << 32,
            egress_burst_bits: 1 << 32,
            ingress_minburst_bytes: 0,
            egress_minburst_bytes: 0,
            ingress_burst_packets: 5,
            egress_burst_packets: 5,
            max_ingress_connections_per_port: 0,
            max_egress_connections_per_port: 0,
        }
    }
}

/// A security group with its rules.
#[derive(Clone, Debug, Deserialize)]
pub struct SecurityGroup {
    pub id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub security_group_rules: Vec<SecurityGroupRule>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SecurityGroupRule {
    #[serde(default, deserialize_with = "null_as_default")]
    pub id: String,
    pub direction: String,
    pub ethertype: String,
    #[serde(default)]
    pub protocol: Option<RuleProtocol>,
    #[serde(default)]
    pub port_range_min: Option<i64>,
    #[serde(default)]
    pub port_range_max: Option<i64>,
    #[serde(default)]
    pub remote_group_id: Option<String>,
    #[serde(default)]
    pub remote_address_group_id: Option<String>,
    #[serde(default)]
    pub remote_ip_prefix: Option<String>,
}

/// A protocol: Neutron's API sends numbers as text, its database layer also as numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum RuleProtocol {
    Number(i64),
    Name(String),
}

/// A subnet of Neutron.
#[derive(Clone, Debug, Deserialize)]
pub struct NeutronSubnet {
    pub id: String,
    pub network_id: String,
    pub cidr: String,
    #[serde(default)]
    pub enable_dhcp: bool,
    #[serde(default)]
    pub gateway_ip: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub host_routes: Vec<SubnetRoute>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub dns_nameservers: Vec<String>,
    #[serde(default)]
    pub ipv6_ra_mode: Option<String>,
    #[serde(default)]
    pub ipv6_address_mode: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SubnetRoute {
    pub destination: String,
    pub nexthop: String,
}

impl NeutronPort {
    /// Returns the destination of a live migration that is under way.
    pub fn migrating_to(&self) -> Option<&str> {
        self.profile.get("migrating_to").and_then(|host| host.as_str()).filter(|host| !host.is_empty())
    }
}

fn null_as_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
