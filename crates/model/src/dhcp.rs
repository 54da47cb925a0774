//! Subnets of OpenStack as the Neutron driver stores them for the DHCP servers of compute hosts.

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use std::net::IpAddr;

/// Value of both modes of a subnet whose addresses follow from the prefix.
pub const SLAAC_MODE: &str = "slaac";
/// Value of both modes of a subnet whose addresses follow from the prefix and whose other options come by DHCPv6.
pub const STATELESS_MODE: &str = "dhcpv6-stateless";

/// A subnet with DHCP enabled. Unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DhcpSubnet {
    #[serde(default, deserialize_with = "null_as_default")]
    pub network_id: String,
    pub cidr: IpNet,
    #[serde(default, deserialize_with = "null_as_default")]
    pub host_routes: Vec<DhcpHostRoute>,
    #[serde(default)]
    pub gateway_ip: Option<IpAddr>,
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub dns_servers: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_ra_mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_address_mode: Option<String>,
}

/// A route that virtual machines of a subnet get in addition to the default route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DhcpHostRoute {
    pub destination: IpNet,
    pub nexthop: IpAddr,
}

/// How virtual machines of an IPv6 subnet get their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6AddressMode {
    /// By DHCPv6; also the mode of subnets without modes, or with modes that differ.
    Stateful,
    /// From the advertised prefix; other options by DHCPv6.
    Stateless,
    /// From the advertised prefix.
    Slaac,
}

impl DhcpSubnet {
    /// Returns how virtual machines get their IPv6 addresses in this subnet.
    pub fn ipv6_mode(&self) -> Ipv6AddressMode {
        match (self.ipv6_ra_mode.as_deref(), self.ipv6_address_mode.as_deref()) {
            (Some(SLAAC_MODE), Some(SLAAC_MODE)) => Ipv6AddressMode::Slaac,
            (Some(STATELESS_MODE), Some(STATELESS_MODE)) => Ipv6AddressMode::Stateless,
            _ => Ipv6AddressMode::Stateful,
        }
    }
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoreKey, StoreValue};

    fn key() -> StoreKey {
        StoreKey::DhcpSubnet { region: String::new(), id: "s1".to_owned() }
    }

    #[test]
    fn subnets_have_the_form_of_other_drivers() {
        for text in [
            r#"{"network_id":"n1","cidr":"10.65.0.0/24","host_routes":[],"gateway_ip":"10.65.0.1","dns_servers":["9.9.9.9"]}"#,
            r#"{"network_id":"n1","cidr":"fd00:65::/64","host_routes":[],"gateway_ip":"fd00:65::1","ipv6_ra_mode":"slaac","ipv6_address_mode":"slaac"}"#,
            r#"{"network_id":"n1","cidr":"10.65.0.0/24","host_routes":[{"destination":"192.0.2.0/24","nexthop":"10.65.0.9"}],"gateway_ip":null}"#,
        ] {
            let value = StoreValue::decode(&key(), text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(value.encode()).unwrap(), text);
        }
    }

    #[test]
    fn subnets_are_read_with_nulls_and_strangers() {
        let text =
            r#"{"cidr":"10.65.0.0/24","network_id":null,"host_routes":null,"dns_servers":null,"new":1}"#;
        let StoreValue::DhcpSubnet(subnet) = StoreValue::decode(&key(), text.as_bytes()).unwrap() else {
            panic!("not a subnet")
        };
        assert_eq!((subnet.network_id.as_str(), subnet.gateway_ip), ("", None));
        for wrong in
            ["", "[]", "{}", r#"{"cidr":"10.65.0.0/99"}"#, r#"{"cidr":"10.65.0.0/24","gateway_ip":"x"}"#]
        {
            assert!(StoreValue::decode(&key(), wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modes_count_only_in_pairs() {
        let mut subnet: DhcpSubnet = serde_json::from_str(r#"{"cidr":"fd00::/64"}"#).unwrap();
        assert_eq!(subnet.ipv6_mode(), Ipv6AddressMode::Stateful);
        subnet.ipv6_ra_mode = Some(SLAAC_MODE.to_owned());
        assert_eq!(subnet.ipv6_mode(), Ipv6AddressMode::Stateful);
        subnet.ipv6_address_mode = Some(SLAAC_MODE.to_owned());
        assert_eq!(subnet.ipv6_mode(), Ipv6AddressMode::Slaac);
        let stateless = Some(STATELESS_MODE.to_owned());
        subnet = DhcpSubnet { ipv6_ra_mode: stateless.clone(), ipv6_address_mode: stateless, ..subnet };
        assert_eq!(subnet.ipv6_mode(), Ipv6AddressMode::Stateless);
    }
}
