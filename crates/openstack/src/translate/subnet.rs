//! Subnets with DHCP.

use super::TranslateError;
use crate::neutron::NeutronSubnet;
use std::str::FromStr;
use tortie_model::dhcp::{DhcpHostRoute, DhcpSubnet};

const ADDRESS: &str = "an IP address";
const NETWORK: &str = "an IP network";

/// Returns the DHCP data of a subnet; `None` if Neutron's DHCP is disabled for it.
pub fn translate_subnet(subnet: &NeutronSubnet) -> Result<Option<DhcpSubnet>, TranslateError> {
    if !subnet.enable_dhcp {
        return Ok(None);
    }
    let has_both_modes = subnet.ipv6_ra_mode.is_some() && subnet.ipv6_address_mode.is_some();
    let gateway = subnet.gateway_ip.as_deref().filter(|gateway| !gateway.is_empty());
    let mut host_routes = Vec::new();
    for route in &subnet.host_routes {
        host_routes.push(DhcpHostRoute {
            destination: parse(subnet, "host_routes", &route.destination, NETWORK)?,
            nexthop: parse(subnet, "host_routes", &route.nexthop, ADDRESS)?,
        });
    }
    let servers = subnet.dns_nameservers.iter();
    Ok(Some(DhcpSubnet {
        network_id: subnet.network_id.clone(),
        cidr: parse(subnet, "cidr", &subnet.cidr, NETWORK)?,
        host_routes,
        gateway_ip: gateway.map(|gateway| parse(subnet, "gateway_ip", gateway, ADDRESS)).transpose()?,
        dns_servers: servers
            .map(|server| parse(subnet, "dns_nameservers", server, ADDRESS))
            .collect::<Result<_, _>>()?,
        ipv6_ra_mode: subnet.ipv6_ra_mode.clone().filter(|_| has_both_modes),
        ipv6_address_mode: subnet.ipv6_address_mode.clone().filter(|_| has_both_modes),
    }))
}

fn parse<T: FromStr>(
    subnet: &NeutronSubnet,
    field: &'static str,
    text: &str,
    expected: &'static str,
) -> Result<T, TranslateError> {
    text.parse().map_err(|_| TranslateError::SubnetField {
        subnet: subnet.id.clone(),
        field,
        value: text.to_owned(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn translate(value: Value) -> Result<Value, TranslateError> {
        let subnet: NeutronSubnet = serde_json::from_value(value).unwrap();
        translate_subnet(&subnet).map(|subnet| serde_json::to_value(subnet).unwrap())
    }

    #[test]
    fn subnets_with_dhcp_are_stored() {
        let mut subnet = json!({"id": "s1", "network_id": "n1", "cidr": "10.65.0.0/24", "enable_dhcp": true,
            "gateway_ip": "10.65.0.1", "host_routes": [], "dns_nameservers": ["9.9.9.9"], "ipv6_ra_mode": null});
        let stored = json!({"network_id": "n1", "cidr": "10.65.0.0/24", "host_routes": [], "gateway_ip": "10.65.0.1",
            "dns_servers": ["9.9.9.9"]});
        assert_eq!(translate(subnet.clone()).unwrap(), stored);
        subnet["enable_dhcp"] = json!(false);
        assert_eq!(translate(subnet).unwrap(), Value::Null);
    }

    #[test]
    fn modes_are_stored_only_together() {
        let mut subnet = json!({"id": "s1", "network_id": "n1", "cidr": "fd00::/64", "enable_dhcp": true,
            "host_routes": [{"destination": "fd01::/64", "nexthop": "fd00::9"}], "ipv6_ra_mode": "slaac"});
        let only_one = translate(subnet.clone()).unwrap();
        assert!(only_one.get("ipv6_ra_mode").is_none());
        assert_eq!(only_one["gateway_ip"], Value::Null);
        subnet["ipv6_address_mode"] = json!("slaac");
        let both = translate(subnet).unwrap();
        assert_eq!((&both["ipv6_ra_mode"], &both["ipv6_address_mode"]), (&json!("slaac"), &json!("slaac")));
        assert_eq!(both["host_routes"], json!([{"destination": "fd01::/64", "nexthop": "fd00::9"}]));
    }

    #[test]
    fn invalid_subnets_name_field_and_value() {
        for (field, value) in [("cidr", json!("10.0.0/24")), ("gateway_ip", json!("x"))] {
            let mut subnet =
                json!({"id": "s1", "network_id": "n1", "cidr": "10.0.0.0/24", "enable_dhcp": true});
            subnet[field] = value.clone();
            let text = translate(subnet).unwrap_err().to_string();
            assert!(text.contains(field) && text.contains(value.as_str().unwrap()), "{text}");
        }
    }
}
