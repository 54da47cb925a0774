//! Which value a parameter of the node's daemon has: the environment first, then the FelixConfiguration of the node,
//! of a selector, of the cluster, then the default.

use ipnet::IpNet;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tortie_model::kinds::{Accepts, FelixConfiguration, FelixConfigurationSpec, FelixParameter, ProtoPort};
use tortie_model::scalar::{self, Protocol};
use tortie_model::selector::Selector;
use tortie_plan::Failsafe;

/// The variables that set parameters, by name without `FELIX_`, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

/// The values that hold for one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    values: BTreeMap<&'static str, Value>,
}

impl Environment {
    /// From all variables of a process; others than ours are passed over.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        let ours = variables.into_iter().filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            name.strip_prefix("felix_").map(|name| (name.to_owned(), value))
        });
        Environment(ours.collect())
    }
}

impl Parameters {
    pub fn resolve<'a>(
        host: &str,
        labels: &BTreeMap<String, String>,
        configurations: impl IntoIterator<Item = &'a FelixConfiguration>,
        environment: &Environment,
    ) -> Parameters {
        let own = format!("node.{host}");
        let (mut of_node, mut of_selector, mut of_all) = (None, None, None);
        for configuration in configurations {
            let meta = &configuration.metadata;
            if meta.name == own {
                of_node = Some(configuration);
            } else if meta.name == "default" {
                of_all = Some(configuration);
            } else if selects(&configuration.spec.node_selector, labels) {
                // Of several that match, the oldest counts, and of equally old ones the first by name.
                let age = |c: &FelixConfiguration| {
                    (c.metadata.creation_timestamp.clone().unwrap_or_default(), c.metadata.name.clone())
                };
                let older = of_selector.is_none_or(|other| age(configuration) < age(other));
                of_selector = if older { Some(configuration) } else { of_selector };
            }
        }
        let mut values = BTreeMap::new();
        for configuration in [of_all, of_selector, of_node].into_iter().flatten() {
            let spec = match serde_json::to_value(&configuration.spec) {
                Ok(Value::Object(spec)) => spec,
                _ => Map::new(),
            };
            for parameter in FelixConfigurationSpec::PARAMETERS {
                if let Some(value) = spec.get(parameter.key) {
                    values.insert(parameter.key, value.clone());
                }
            }
        }
        for parameter in FelixConfigurationSpec::PARAMETERS.iter().chain(OWN) {
            if let Some(value) = environment.0.get(&parameter.name.to_ascii_lowercase()) {
                values.insert(parameter.key, Value::String(value.clone()));
            }
        }
        Parameters { values }
    }

    /// Whether anybody set it.
    pub fn is_set(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    pub fn flag(&self, key: &str) -> bool {
        self.read(key, |value| match value {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "y" | "t" | "enabled" => Some(true),
                "false" | "0" | "no" | "n" | "f" | "none" | "disabled" => Some(false),
                _ => None,
            },
            _ => None,
        })
        .unwrap_or(false)
    }

    pub fn number(&self, key: &str) -> i64 {
        self.read(key, |value| match value {
            Value::Number(number) => number.as_i64(),
            Value::String(text) if text.eq_ignore_ascii_case("none") => Some(0),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        })
        .unwrap_or(0)
    }

    pub fn text(&self, key: &str) -> String {
        self.read(key, |value| match value {
            Value::String(text) if text.eq_ignore_ascii_case("none") => Some(String::new()),
            Value::String(text) => Some(text.clone()),
            _ => None,
        })
        .unwrap_or_default()
    }

    /// A span of time; bare numbers count seconds, or milliseconds where the parameter's name says so.
    pub fn span(&self, key: &str) -> Duration {
        let millis = parameter(key).is_some_and(|parameter| parameter.name.ends_with("Millis"));
        self.read(key, |value| {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            if text.eq_ignore_ascii_case("none") {
                return Some(Duration::ZERO);
            }
            match text.parse::<f64>() {
                Ok(number) => Duration::try_from_secs_f64(if millis { number / 1000.0 } else { number }).ok(),
                Err(_) => text.parse::<scalar::Duration>().ok().and_then(scalar::Duration::to_std),
            }
        })
        .unwrap_or_default()
    }

    /// Protocol, network and port of a list such as `tcp:22,udp:[fd00::/8]:53,tcp:10.0.0.0/8:80`; a list with an entry
    /// that cannot be read is as if it were not set.
    pub fn failsafes(&self, key: &str) -> Vec<Failsafe> {
        self.read(key, |value| match value {
            Value::String(text) if text.eq_ignore_ascii_case("none") => Some(Vec::new()),
            Value::String(text) => text.split(',').map(|entry| failsafe(entry.trim())).collect(),
            Value::Array(entries) => {
                let read = |entry: &Value| serde_json::from_value::<ProtoPort>(entry.clone()).ok();
                entries.iter().map(|entry| read(entry).and_then(|entry| of_entry(&entry))).collect()
            }
            _ => None,
        })
        .unwrap_or_default()
    }

    /// The value as set; what cannot be read is as if it were not set.
    fn read<T>(&self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let usual = || parameter(key).and_then(|p| read(&Value::String(p.default.to_owned())));
        self.values.get(key).and_then(&read).or_else(usual)
    }
}

/// Parameters that the reference does not have. They are set in the environment alone: FelixConfiguration is the
/// reference's and has no room for them.
const OWN: &[FelixParameter] = &[FelixParameter {
    key: "cutDeniedFlows",
    name: "CutDeniedFlows",
    accepts: Accepts::Any,
    default: "false",
}];

fn failsafe(text: &str) -> Option<Failsafe> {
    let (protocol, rest) = text.split_once(':')?;
    let (net, port) = match rest.rsplit_once(':') {
        Some((net, port)) => (net.trim_start_matches('[').trim_end_matches(']'), port),
        None => ("", rest),
    };
    of_entry(&ProtoPort { protocol: protocol.to_owned(), port: port.parse().ok()?, net: net.to_owned() })
}

fn of_entry(entry: &ProtoPort) -> Option<Failsafe> {
    let protocol = match entry.protocol.as_str() {
        "" => Protocol::TCP,
        text => Protocol::from_any_case(text).number()?,
    };
    let net = match entry.net.as_str() {
        "" => None,
        text => {
            let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().map(IpNet::from).ok())?;
            Some(net.trunc())
        }
    };
    Some(Failsafe { protocol, port: entry.port, net })
}

fn parameter(key: &str) -> Option<&'static FelixParameter> {
    FelixConfigurationSpec::PARAMETERS.iter().chain(OWN).find(|parameter| parameter.key == key)
}

fn selects(selector: &str, labels: &BTreeMap<String, String>) -> bool {
    !selector.is_empty() && Selector::parse(selector).is_ok_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::ObjectMeta;

    fn configuration(name: &str, created: &str, spec: FelixConfigurationSpec) -> FelixConfiguration {
        let meta = ObjectMeta {
            name: name.to_owned(),
            creation_timestamp: Some(created.to_owned()),
            ..ObjectMeta::default()
        };
        FelixConfiguration::new(meta, spec)
    }

    fn port(port: i64, selector: &str) -> FelixConfigurationSpec {
        FelixConfigurationSpec {
            health_port: Some(port),
            node_selector: selector.to_owned(),
            ..FelixConfigurationSpec::default()
        }
    }

    #[test]
    fn the_strongest_source_wins() {
        let labels = BTreeMap::from([("rack".to_owned(), "1".to_owned())]);
        let mut all = vec![];
        let resolved = |all: &[FelixConfiguration], variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            Parameters::resolve("n1", &labels, all, &Environment::new(variables)).number("healthPort")
        };
        assert_eq!(resolved(&all, &[]), 9099);
        all.push(configuration("default", "2026-01-01T00:00:00Z", port(1, "")));
        assert_eq!(resolved(&all, &[]), 1);
        all.push(configuration("younger", "2026-01-03T00:00:00Z", port(2, "rack == '1'")));
        all.push(configuration("older", "2026-01-02T00:00:00Z", port(3, "rack == '1'")));
        all.push(configuration("other", "2026-01-01T00:00:00Z", port(4, "rack == '2'")));
        assert_eq!(resolved(&all, &[]), 3);
        all.push(configuration("node.n1", "2026-01-09T00:00:00Z", port(5, "")));
        all.push(configuration("node.n2", "2026-01-09T00:00:00Z", port(6, "")));
        assert_eq!(resolved(&all, &[]), 5);
        assert_eq!(resolved(&all, &[("FELIX_HEALTHPORT", "7")]), 7);
        assert_eq!(resolved(&all, &[("felix_HealthPort", "8")]), 8);
        // What cannot be read is as if it were not set at all.
        assert_eq!(resolved(&all, &[("FELIX_HEALTHPORT", "x")]), 9099);
        assert_eq!(resolved(&all, &[("FELIX_HEALTHPORT", "None")]), 0);
    }

    #[test]
    fn values_are_read_in_every_form() {
        let variables = [("FELIX_REPORTINGINTERVALSECS", "5"), ("FELIX_HEALTHENABLED", "TRUE")];
        let variables = variables.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let none: [FelixConfiguration; 0] = [];
        let set = Parameters::resolve("n1", &BTreeMap::new(), &none, &Environment::new(variables));
        assert_eq!(set.span("reportingInterval"), Duration::from_secs(5));
        assert!(set.flag("healthEnabled"));
        let unset = Parameters::default();
        assert_eq!(unset.span("reportingInterval"), Duration::from_secs(30));
        assert!(!unset.flag("healthEnabled"));
        assert_eq!(unset.text("interfacePrefix"), "cali");
        assert_eq!(unset.number("noSuchThing"), 0);
    }
}
