//! The result of an ADD, in the form of every version of the CNI specification.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::ser::PrettyFormatter;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CniResult {
    pub interfaces: Vec<ResultInterface>,
    pub ips: Vec<ResultIp>,
    pub routes: Vec<ResultRoute>,
    pub dns: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultInterface {
    pub name: String,
    pub mac: String,
    pub mtu: u32,
    pub sandbox: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultIp {
    pub address: IpNet,
    pub gateway: Option<IpAddr>,
    pub interface: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultRoute {
    pub dst: IpNet,
    pub gateway: Option<IpAddr>,
}

impl CniResult {
    /// Parses a result of any version.
    pub fn read(value: &Value) -> Result<CniResult, ResultFormatError> {
        let mut result = CniResult::default();
        if let Some(dns) = value.get("dns").and_then(Value::as_object) {
            result.dns = dns.clone();
        }
        for family in ["ip4", "ip6"] {
            let Some(part) = value.get(family) else { continue };
            result.ips.push(read_ip(part, "ip")?);
            result.read_routes(part)?;
        }
        for ip in value.get("ips").and_then(Value::as_array).into_iter().flatten() {
            result.ips.push(read_ip(ip, "address")?);
        }
        result.read_routes(value)?;
        for interface in value.get("interfaces").and_then(Value::as_array).into_iter().flatten() {
            let text = |key| interface.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let mtu = interface.get("mtu").and_then(Value::as_u64).and_then(|mtu| u32::try_from(mtu).ok());
            result.interfaces.push(ResultInterface {
                name: text("name"),
                mac: text("mac"),
                mtu: mtu.unwrap_or(0),
                sandbox: text("sandbox"),
            });
        }
        Ok(result)
    }

    fn read_routes(&mut self, value: &Value) -> Result<(), ResultFormatError> {
        for route in value.get("routes").and_then(Value::as_array).into_iter().flatten() {
            let dst = parse_cidr(route, "dst", "route")?;
            let gateway = route.get("gw").and_then(Value::as_str).and_then(|gw| gw.parse().ok());
            self.routes.push(ResultRoute { dst, gateway });
        }
        Ok(())
    }

    /// Renders the result as the plugin prints it: with sorted keys and an indent of four spaces.
    pub fn print(&self, version: &str) -> String {
        let value = match version {
            "0.1.0" | "0.2.0" => self.by_family(version),
            _ => self.by_list(version),
        };
        let mut text = Vec::new();
        let mut printer =
            serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
        // Cannot fail: all keys are strings, and the output is a vector.
        let _ = value.serialize(&mut printer);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn by_family(&self, version: &str) -> Value {
        let mut value = Map::new();
        value.insert("cniVersion".into(), json!(version));
        if !self.dns.is_empty() {
            value.insert("dns".into(), json!(self.dns));
        }
        for (key, v4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4) else { continue };
            let mut part = Map::new();
            if let Some(gateway) = ip.gateway {
                part.insert("gateway".into(), json!(gateway));
            }
            part.insert("ip".into(), json!(ip.address));
            let routes = self.routes.iter().filter(|route| route.dst.addr().is_ipv4() == v4);
            let routes: Vec<Value> = routes.map(print_route).collect();
            if !routes.is_empty() {
                part.insert("routes".into(), json!(routes));
            }
            value.insert(key.into(), Value::Object(part));
        }
        Value::Object(value)
    }

    fn by_list(&self, version: &str) -> Value {
        let old = version.starts_with("0.");
        let mut value = Map::new();
        value.insert("cniVersion".into(), json!(version));
        if !self.dns.is_empty() {
            value.insert("dns".into(), json!(self.dns));
        }
        let interfaces: Vec<Value> = self.interfaces.iter().map(|i| print_interface(i, old)).collect();
        if !interfaces.is_empty() {
            value.insert("interfaces".into(), json!(interfaces));
        }
        let ips: Vec<Value> = self.ips.iter().map(|ip| print_ip(ip, old)).collect();
        if !ips.is_empty() {
            value.insert("ips".into(), json!(ips));
        }
        let routes: Vec<Value> = self.routes.iter().map(print_route).collect();
        if !routes.is_empty() {
            value.insert("routes".into(), json!(routes));
        }
        Value::Object(value)
    }
}

/// A value of a result that is not a CIDR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {text:?} is not a CIDR")]
pub struct ResultFormatError {
    kind: &'static str,
    text: String,
}

fn parse_cidr(value: &Value, key: &str, kind: &'static str) -> Result<IpNet, ResultFormatError> {
    let text = value.get(key).and_then(Value::as_str).unwrap_or_default();
    text.parse().map_err(|_| ResultFormatError { kind, text: text.to_owned() })
}

fn read_ip(value: &Value, key: &str) -> Result<ResultIp, ResultFormatError> {
    let address = parse_cidr(value, key, "address")?;
    let gateway = value.get("gateway").and_then(Value::as_str).and_then(|gateway| gateway.parse().ok());
    let interface = value.get("interface").and_then(Value::as_u64).and_then(|i| usize::try_from(i).ok());
    Ok(ResultIp { address, gateway, interface })
}

fn print_route(route: &ResultRoute) -> Value {
    match route.gateway {
        Some(gateway) => json!({"dst": route.dst, "gw": gateway}),
        None => json!({"dst": route.dst}),
    }
}

fn print_interface(interface: &ResultInterface, old: bool) -> Value {
    let mut value = Map::new();
    if !interface.mac.is_empty() {
        value.insert("mac".into(), json!(interface.mac));
    }
    if interface.mtu != 0 && !old {
        value.insert("mtu".into(), json!(interface.mtu));
    }
    value.insert("name".into(), json!(interface.name));
    if !interface.sandbox.is_empty() {
        value.insert("sandbox".into(), json!(interface.sandbox));
    }
    Value::Object(value)
}

fn print_ip(ip: &ResultIp, old: bool) -> Value {
    let mut value = Map::new();
    value.insert("address".into(), json!(ip.address));
    if let Some(gateway) = ip.gateway {
        value.insert("gateway".into(), json!(gateway));
    }
    if let Some(interface) = ip.interface {
        value.insert("interface".into(), json!(interface));
    }
    if old {
        value.insert("version".into(), json!(if ip.address.addr().is_ipv4() { "4" } else { "6" }));
    }
    Value::Object(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> CniResult {
        let ip = |text: &str| ResultIp { address: text.parse().unwrap(), gateway: None, interface: Some(1) };
        let route = |text: &str| ResultRoute { dst: text.parse().unwrap(), gateway: None };
        CniResult {
            interfaces: vec![
                ResultInterface { name: "cali1".into(), ..ResultInterface::default() },
                ResultInterface {
                    name: "eth0".into(),
                    mac: "5e:11:0c:7a:90:2f".into(),
                    mtu: 1450,
                    sandbox: "/run/netns/x".into(),
                },
            ],
            ips: vec![ip("10.50.3.70/32"), ip("fd00::7/128")],
            routes: vec![route("10.50.3.70/26"), route("fd00::7/122")],
            dns: Map::new(),
        }
    }

    #[test]
    fn a_current_result_is_printed_unchanged() {
        let mut result = result();
        result.ips.truncate(1);
        result.routes.truncate(1);
        let expected = r#"{
    "cniVersion": "1.0.0",
    "interfaces": [
        {
            "name": "cali1"
        },
        {
            "mac": "5e:11:0c:7a:90:2f",
            "mtu": 1450,
            "name": "eth0",
            "sandbox": "/run/netns/x"
        }
    ],
    "ips": [
        {
            "address": "10.50.3.70/32",
            "interface": 1
        }
    ],
    "routes": [
        {
            "dst": "10.50.3.70/26"
        }
    ]
}"#;
        assert_eq!(result.print("1.0.0"), expected);
    }

    #[test]
    fn older_versions_have_their_form() {
        let old: Value = serde_json::from_str(&result().print("0.4.0")).unwrap();
        assert_eq!(old["ips"][1]["version"], "6");
        assert_eq!(old["interfaces"][1].get("mtu"), None);
        let oldest: Value = serde_json::from_str(&result().print("0.2.0")).unwrap();
        assert_eq!(oldest["ip4"], json!({"ip": "10.50.3.70/32", "routes": [{"dst": "10.50.3.70/26"}]}));
        assert_eq!(oldest["ip6"]["ip"], "fd00::7/128");
        assert_eq!(oldest.get("interfaces"), None);
    }

    #[test]
    fn every_form_reads_back() {
        for version in tortie_cni::SUPPORTED_VERSIONS {
            let text: Value = serde_json::from_str(&result().print(version)).unwrap();
            let back = CniResult::read(&text).unwrap();
            assert_eq!(back.print(version), result().print(version), "{version}");
        }
        assert!(CniResult::read(&json!({"ips": [{"address": "x"}]})).is_err());
    }
}
