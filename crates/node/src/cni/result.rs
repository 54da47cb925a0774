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
    pub fn parse(value: &Value) -> Result<CniResult, ResultFormatError> {
        let mut result = CniResult::default();
        if let Some(dns) = value.get("dns").and_then(Value::as_object) {
            result.dns = dns.clone();
        }
        for family in ["ip4", "ip6"] {
            let Some(part) = value.get(family) else { continue };
            result.ips.push(parse_ip(part, "ip")?);
            result.parse_routes(part)?;
        }
        for ip in value.get("ips").and_then(Value::as_array).into_iter().flatten() {
            result.ips.push(parse_ip(ip, "address")?);
        }
        result.parse_routes(value)?;
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

    fn parse_routes(&mut self, value: &Value) -> Result<(), ResultFormatError> {
        for route in value.get("routes").and_then(Value::as_array).into_iter().flatten() {
            let dst = parse_cidr(route, "dst", "route")?;
            let gateway = route.get("gw").and_then(Value::as_str).and_then(|gw| gw.parse().ok());
            self.routes.push(ResultRoute { dst, gateway });
        }
        Ok(())
    }

    /// Renders the result as the plugin prints it: with sorted keys and an indent of four spaces.
    pub fn render(&self, version: &str) -> String {
        let value = match version {
            "0.1.0" | "0.2.0" => self.render_by_family(version),
            _ => self.render_as_lists(version),
        };
        let mut text = Vec::new();
        let mut printer =
            serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
        // Cannot fail: all keys are strings, and the output is a vector.
        let _ = value.serialize(&mut printer);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Renders the form of versions before 0.3.0, which has at most one address of each family.
    fn render_by_family(&self, version: &str) -> Value {
        let part = |v4: bool| {
            let ip = self.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4)?;
            let routes = self.routes.iter().filter(|route| route.dst.addr().is_ipv4() == v4);
            Some(build_object([
                ("gateway", ip.gateway.map(|gateway| json!(gateway))),
                ("ip", Some(json!(ip.address))),
                ("routes", build_list(routes.map(render_route))),
            ]))
        };
        build_object([
            ("cniVersion", Some(json!(version))),
            ("dns", self.render_dns()),
            ("ip4", part(true)),
            ("ip6", part(false)),
        ])
    }

    fn render_as_lists(&self, version: &str) -> Value {
        let old = version.starts_with("0.");
        build_object([
            ("cniVersion", Some(json!(version))),
            ("dns", self.render_dns()),
            ("interfaces", build_list(self.interfaces.iter().map(|i| render_interface(i, old)))),
            ("ips", build_list(self.ips.iter().map(|ip| render_ip(ip, old)))),
            ("routes", build_list(self.routes.iter().map(render_route))),
        ])
    }

    fn render_dns(&self) -> Option<Value> {
        (!self.dns.is_empty()).then(|| json!(self.dns))
    }
}

/// Creates an object from the fields that have a value, in the given order.
fn build_object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    fields.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Returns a list, or `None` if it has no items.
fn build_list(items: impl Iterator<Item = Value>) -> Option<Value> {
    let items: Vec<Value> = items.collect();
    (!items.is_empty()).then_some(Value::Array(items))
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

fn parse_ip(value: &Value, key: &str) -> Result<ResultIp, ResultFormatError> {
    let address = parse_cidr(value, key, "address")?;
    let gateway = value.get("gateway").and_then(Value::as_str).and_then(|gateway| gateway.parse().ok());
    let interface = value.get("interface").and_then(Value::as_u64).and_then(|i| usize::try_from(i).ok());
    Ok(ResultIp { address, gateway, interface })
}

fn render_route(route: &ResultRoute) -> Value {
    build_object([("dst", Some(json!(route.dst))), ("gw", route.gateway.map(|gateway| json!(gateway)))])
}

fn render_interface(interface: &ResultInterface, old: bool) -> Value {
    let ResultInterface { name, mac, mtu, sandbox } = interface;
    build_object([
        ("mac", (!mac.is_empty()).then(|| json!(mac))),
        ("mtu", (*mtu != 0 && !old).then(|| json!(mtu))),
        ("name", Some(json!(name))),
        ("sandbox", (!sandbox.is_empty()).then(|| json!(sandbox))),
    ])
}

fn render_ip(ip: &ResultIp, old: bool) -> Value {
    build_object([
        ("address", Some(json!(ip.address))),
        ("gateway", ip.gateway.map(|gateway| json!(gateway))),
        ("interface", ip.interface.map(|interface| json!(interface))),
        ("version", old.then(|| json!(if ip.address.addr().is_ipv4() { "4" } else { "6" }))),
    ])
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
        assert_eq!(result.render("1.0.0"), expected);
    }

    #[test]
    fn older_versions_keep_their_format() {
        let old: Value = serde_json::from_str(&result().render("0.4.0")).unwrap();
        assert_eq!(old["ips"][1]["version"], "6");
        assert_eq!(old["interfaces"][1].get("mtu"), None);
        let oldest: Value = serde_json::from_str(&result().render("0.2.0")).unwrap();
        assert_eq!(oldest["ip4"], json!({"ip": "10.50.3.70/32", "routes": [{"dst": "10.50.3.70/26"}]}));
        assert_eq!(oldest["ip6"]["ip"], "fd00::7/128");
        assert_eq!(oldest.get("interfaces"), None);
    }

    #[test]
    fn every_version_parses_back() {
        for version in tortie_cni::SUPPORTED_VERSIONS {
            let text: Value = serde_json::from_str(&result().render(version)).unwrap();
            let back = CniResult::parse(&text).unwrap();
            assert_eq!(back.render(version), result().render(version), "{version}");
        }
        assert!(CniResult::parse(&json!({"ips": [{"address": "x"}]})).is_err());
    }
}
